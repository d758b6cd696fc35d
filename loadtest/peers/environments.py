"""A virtual environment for each peer, made from its pinned requirements under envs/, so that no peer's libraries meet ours."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("envs")
_INSTALL_S = 1200


def ensure(cache: Path, name: str) -> tuple[Path | None, str]:
    """(its Python, "") or (None, why it could not be made). Made once, and again when its requirements change."""
    requirements = REQUIREMENTS / f"{name}.txt"
    folder = cache / "envs" / name
    stamp = folder / "made-from"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python, ""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"making the environment of {name} (once)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", requirements]
    done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=_INSTALL_S)
    (cache / "logs").mkdir(parents=True, exist_ok=True)
    (cache / "logs" / f"pip-{name}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        return None, "does not install: " + _reason(done.stderr)
    stamp.write_text(wanted)
    return python, ""


def _reason(text: str) -> str:
    """The line of pip's output that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error:" in line or line.startswith("ERROR")]
    return (errors or lines or ["no output"])[0][:200]
