"""Print what to install for a test with the oldest versions that pyproject.toml admits, a requirement a line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

# What the product needs on a CPU; of what its tests need the tools alone, in any version.
EXTRAS = ("coordinator", "worker", "datasets", "cli", "plots", "demo")
TOOLS = re.compile(r"pytest|hypothesis|moto|httpx|cryptography|psutil|nvidia-ml-py|nvidia-nvimgcodec")
LOWEST = re.compile(r"(?P<name>[A-Za-z0-9_.\[\]-]+)>=(?P<version>[0-9.]+)")


def main() -> None:
    """Print them."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    for one in dict.fromkeys(needed):
        if not one.startswith("headrace["):
            found = LOWEST.match(one)
            assert found, f"{one} names no lowest version"
            print(f"{found['name']}=={found['version']}")
    for one in extras["test"]:
        if TOOLS.match(one):
            print(one)


if __name__ == "__main__":
    main()
