"""Wheels for a machine without a network, in pieces that are carried there over several visits. Standard library alone.

    python tests/gpu/wheels.py fetch [--python 3.12] [--out tests/gpu/wheels] [--sets base,decode] [--visit-mib 58]
    python tests/gpu/wheels.py plan  [--out DIR]        what each visit carries, and what each part of the proof needs
    python tests/gpu/wheels.py join DIR --into DIR      on the other machine: put them together again, and say what lacks

`fetch` asks pip for the versions that pyproject.toml names, and lays what a visit carries in a folder of its own: visit-01,
visit-02, ..., each with the manifest. `join` finds the pieces wherever they lie below DIR and checks every one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "services/headrace/worker/engines/libheadrace_native.so.1"
PIECE_BYTES, MIB = 60_000_000, 1 << 20
MANIFEST = "manifest.json"
# The order in which they are worth carrying. Each: what it is for.
SETS = {
    "base": "all that runs without a GPU, `headrace doctor`, and pytest",
    "decode": "nvImageCodec and nvJPEG: decode on the GPU, also by its JPEG engine",
    "ipc": "cuda-bindings: memory of a GPU shared by two processes, hand-over, PCIe",
    "cvcuda": "CV-CUDA: with `decode` and `ipc` the engine `cvcuda`",
    "dali": "DALI: the engine `dali-gpu`, and what all is measured against",
    "photos": "scikit-image: the kinds of images that the contract suite is made of",
}
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]


def requirements() -> dict[str, list[str]]:
    """Set -> what pip is asked for, by pyproject.toml, so that what is proven is what is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def of(extra: str, *names: str) -> list[str]:
        found = [one for one in extras[extra] if one.startswith(names)]
        assert len(found) >= len(names), f"pyproject's {extra} lacks one of {names}"
        return found

    worker = [one for one in extras["worker"] + extras["datasets"] if not one.startswith("headrace[")]
    tests = of("test", "pytest>", "pytest-xdist", "pytest-timeout", "pytest-asyncio", "hypothesis", "nvidia-ml-py")
    return {
        "base": [*project["dependencies"], *worker, *tests],
        "decode": of("gpu", "nvidia-nvimgcodec-cu12", "nvidia-nvjpeg-cu12"),
        "ipc": of("gpu", "cuda-bindings"),
        "cvcuda": of("gpu", "cvcuda-cu12"),
        "dali": of("dali", "nvidia-dali-cuda120"),
        "photos": of("demo", "scikit-image"),
    }


# --- with a network ---------------------------------------------------------------------------------------------------------


def fetch(out: Path, python: str, sets: list[str], visit_bytes: int) -> dict[str, Any]:
    """Download, split, lay out; returns the manifest. What earlier fetches left in `out` is replaced."""
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        held: dict[str, str] = {}  # wheel -> the first set that needs it
        for name in sets:
            folder = Path(scratch, name)
            _pip_download(requirements()[name], python, folder)
            for wheel in sorted(folder.glob("*.whl")):
                if held.setdefault(wheel.name, name) != name:
                    wheel.unlink()
        _extras(Path(scratch, sets[0]))
        entries = [entry_of(path, name) for name in sets for path in sorted(Path(scratch, name).iterdir())]
        manifest = {"python": python, "sets": {name: requirements()[name] for name in sets}, "files": entries}
        assign_visits(entries, visit_bytes)
        shutil.rmtree(out, ignore_errors=True)
        lay_out(manifest, Path(scratch), out)
    return manifest


def lay_out(manifest: dict[str, Any], source: Path, out: Path) -> None:
    """Write what each visit carries: pieces of SET/NAME below `source`, and the manifest."""
    for entry in manifest["files"]:
        with (source / entry["set"] / entry["name"]).open("rb") as whole:
            for part in entry["parts"]:
                target = out / f"visit-{part['visit']:02d}" / part["file"]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(whole.read(part["bytes"]))
    for folder in sorted(out.iterdir()):
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def _pip_download(wanted: list[str], python: str, folder: Path) -> None:
    folder.mkdir()
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--implementation", "cp"]
    subprocess.run([*command, "--python-version", python, *platforms, "-d", str(folder), *wanted], check=True)


def _extras(folder: Path) -> None:
    """Beside the wheels of the first set: real photos, and the native core where it was built."""
    code = "import sys; from pathlib import Path; from tests.gpu import photos; photos.save(Path(sys.argv[1]), 96)"
    made = subprocess.run([sys.executable, "-c", code, str(folder / "photos.npz")], cwd=ROOT, check=False)
    if made.returncode:
        print("no photos: run this with the Python of Headrace's environment (.venv/bin/python)", file=sys.stderr)
        (folder / "photos.npz").unlink(missing_ok=True)
    if NATIVE.exists():
        shutil.copy(NATIVE, folder / NATIVE.name)


def entry_of(path: Path, name: str, most: int = PIECE_BYTES) -> dict[str, Any]:
    """A file of a set and its pieces of at most so many bytes: `x.whl` where it is small, else `x.whl.part00`, ..."""
    size = path.stat().st_size
    count = max(1, -(-size // most))
    parts = []
    with path.open("rb") as file:
        for number in range(count):
            data = file.read(min(most, size - number * most))
            part = path.name if count == 1 else f"{path.name}.part{number:02d}"
            parts.append({"file": part, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return {"name": path.name, "set": name, "bytes": size, "parts": parts}


def assign_visits(entries: list[dict[str, Any]], visit_bytes: int) -> int:
    """Give each piece a visit, earlier sets first; returns how many visits there are. Raises ValueError."""
    free: list[int] = []
    for entry in entries:
        for part in entry["parts"]:
            if part["bytes"] > visit_bytes:
                raise ValueError(f"{part['file']} is larger than a visit of {visit_bytes} bytes")
            fits = next((number for number, left in enumerate(free) if left >= part["bytes"]), None)
            if fits is None:
                free.append(visit_bytes)
                fits = len(free) - 1
            free[fits] -= part["bytes"]
            part["visit"] = fits + 1
    return len(free)


def plan(manifest: dict[str, Any]) -> str:
    """For people."""
    files = manifest["files"]
    visits = max(part["visit"] for entry in files for part in entry["parts"])
    lines = [f"for Python {manifest['python']}: {visits} visits", "", "set      MB     visits  what for"]
    for name in manifest["sets"]:
        mine = [entry for entry in files if entry["set"] == name]
        seen = sorted({part["visit"] for entry in mine for part in entry["parts"]})
        megabytes = sum(entry["bytes"] for entry in mine) / 1e6
        lines.append(f"{name:8} {megabytes:6.1f} {','.join(map(str, seen)):>7}  {SETS[name]}")
    for visit in range(1, visits + 1):
        parts = [part for entry in files for part in entry["parts"] if part["visit"] == visit]
        lines.append(f"visit-{visit:02d}: {len(parts)} files, {sum(part['bytes'] for part in parts) / MIB:.1f} MiB")
    return "\n".join(lines)


# --- without ----------------------------------------------------------------------------------------------------------------


def join(source: Path, into: Path) -> dict[str, Any]:
    """Put whole files into a folder.

    Returns {"whole": {set: [name]}, "lacking": {set: [piece that did not come, or is damaged]}, "sets": as in the manifest}.
    """
    manifests = sorted(source.rglob(MANIFEST))
    if not manifests:
        return {"whole": {}, "lacking": {"base": [f"no {MANIFEST} below {source}"]}, "sets": {}}
    manifest = json.loads(manifests[-1].read_text())
    there = {path.name: path for path in sorted(source.rglob("*")) if path.is_file()}
    into.mkdir(parents=True, exist_ok=True)
    whole, lacking = dict[str, list[str]](), dict[str, list[str]]()
    for entry in manifest["files"]:
        missing = [trouble for part in entry["parts"] if (trouble := _trouble(part, there))]
        if missing:
            lacking.setdefault(entry["set"], []).extend(missing)
            continue
        with (into / entry["name"]).open("wb") as target:
            for part in entry["parts"]:
                target.write(there[part["file"]].read_bytes())
        whole.setdefault(entry["set"], []).append(entry["name"])
    return {"whole": whole, "lacking": lacking, "sets": manifest["sets"]}


def _trouble(part: dict[str, Any], there: dict[str, Path]) -> str:
    """Why a piece is no good; empty if it is."""
    path = there.get(part["file"])
    if path is None:
        return f"{part['file']} (visit-{part['visit']:02d}) did not come"
    if hashlib.sha256(path.read_bytes()).hexdigest() != part["sha256"]:
        return f"{part['file']} is damaged: carry it again"
    return ""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("fetch", "plan"):
        command = commands.add_parser(name)
        command.add_argument("--out", type=Path, default=ROOT / "tests/gpu/wheels")
        if name == "fetch":
            command.add_argument("--python", default="3.12")
            command.add_argument("--sets", default=",".join(SETS))
            # What travels beside them counts, too: the tree itself has some 6 MiB.
            command.add_argument("--visit-mib", type=int, default=58)
    command = commands.add_parser("join")
    command.add_argument("source", type=Path)
    command.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "join":
        print(json.dumps(join(options.source, options.into), indent=1))
        return
    if options.command == "fetch":
        options.out.parent.mkdir(parents=True, exist_ok=True)
        print(plan(fetch(options.out, options.python, options.sets.split(","), options.visit_mib * MIB)))
        return
    (found, *_) = sorted(options.out.rglob(MANIFEST)) or [None]
    print(plan(json.loads(found.read_text())) if found else f"nothing in {options.out}: run `wheels.py fetch` first")


if __name__ == "__main__":
    main()
