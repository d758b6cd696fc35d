"""Installs each set of wheels that came whole: `python install.py JOINED.json WHEELS LACKING.json`. Standard library alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main(joined: Path, wheels: Path, lacking: Path) -> None:
    """pip install, set by set, of what `wheels.py join` says; what is not installed, and why, goes into `lacking`."""
    told = json.loads(joined.read_text())
    missing: dict[str, str] = {}
    if not told["sets"]:
        missing["base"] = told["lacking"]["base"][0]
    for name, wanted in told["sets"].items():
        # Also with pieces missing: the machine's own packages may do instead.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-compile", "--find-links", str(wheels)]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            said = told["lacking"].get(name) or done.stderr.strip().splitlines()[-2:]
            missing[name] = f"set {name} is not installed: {'; '.join(said)}"
            print(missing[name], file=sys.stderr)
    lacking.write_text(json.dumps(missing))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
