"""Regenerate `wire/gen` from `proto/`: run `python -m headrace.wire.generate` from the repository root (needs grpcio-tools).

Generated code runs with its own and newer versions of protobuf and grpcio, never with older ones. So pyproject.toml pins
grpcio-tools to an old version, and a trainer's environment may have any protobuf from there on.
"""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = "headrace.wire.gen"


def generate(proto_root: Path, out: Path) -> None:
    """Write the generated modules into `out`, importing one another in the package. Raises RuntimeError if protoc fails."""
    from grpc_tools import protoc

    names = [f"headrace/v1/{path.name}" for path in sorted((proto_root / "headrace/v1").glob("*.proto"))]
    well_known = str(Path(protoc.__file__).parent / "_proto")
    code = protoc.main(
        [
            "protoc",
            f"-I{proto_root}",
            f"-I{well_known}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *names,
        ]
    )
    if code != 0:
        raise RuntimeError(f"protoc failed with {code}")
    for path in (out / "headrace/v1").iterdir():
        text = path.read_text().replace("from headrace.v1 import", f"from {PACKAGE} import")
        if not path.name.endswith("_grpc.py") or "class " in text:  # without a service there is nothing in it
            (out / path.name).write_text(text)
        path.unlink()
    (out / "headrace/v1").rmdir()
    (out / "headrace").rmdir()


if __name__ == "__main__":
    root = Path.cwd()
    if not (root / "proto/headrace/v1").is_dir():
        sys.exit("run this from the repository root: proto/headrace/v1 is not here")
    generate(root / "proto", root / "services/headrace/wire/gen")
