"""Writes typings/: types of the GPU libraries that the services use, for mypy on machines without a GPU or its libraries.

CV-CUDA ships stubs and cannot be imported without a driver; nvImageCodec and cuda-bindings ship none. Of each only the names
that our code uses are written, and what these refer to, without the libraries' texts. Run it again after a new name or version:

    pip download --no-deps cvcuda-cu12==0.19.0 && python tools/typings.py --cvcuda cvcuda_cu12-*.whl

With --check it writes nothing and fails where typings/ is not what it would write. A library that is not there is left alone.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
TYPINGS = ROOT / "typings"
SOURCES = ROOT / "services"  # what mypy checks
# Methods that say nothing of their own.
EVERY_OBJECTS = {"__eq__", "__ne__", "__hash__", "__repr__", "__str__", "__getstate__", "__setstate__"}
CUDA_MODULES = ("driver", "runtime", "nvrtc")
# What a documented type of cuda-bindings is in Python; all else that is not one of its classes is Any.
CUDA_TYPES = {"int": "int", "bool": "bool", "bytes": "bytes", "size_t": "int", "float": "float", "str": "str"}


def main() -> int:
    """Write, or check; exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--cvcuda", type=Path, help="CV-CUDA's wheel, where it is not installed")
    args = parser.parse_args()
    stale = False
    for path, text in _stubs(args.cvcuda):
        target = TYPINGS / path
        if text is None:
            print(f"typings: {path} was NOT COMPARED: the library is not installed here")
        elif not args.check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"typings: {path} is not what the library says: run python tools/typings.py", file=sys.stderr)
            stale = True
    return int(stale)


def _stubs(wheel: Path | None) -> Iterator[tuple[str, str | None]]:
    """(path below typings/, its text; None where the library is not there)."""
    used = _used()
    yield "cvcuda/__init__.pyi", _cvcuda(wheel, used["cvcuda"])
    yield "nvidia/nvimgcodec/__init__.pyi", _nvimgcodec(used["nvidia.nvimgcodec"])
    yield "cuda/bindings/__init__.pyi", ""
    for name in CUDA_MODULES:
        if used[f"cuda.bindings.{name}"]:
            yield f"cuda/bindings/{name}.pyi", _cuda(name, used[f"cuda.bindings.{name}"])


def _used() -> dict[str, set[str]]:
    """Module -> the names of it that our code uses."""
    used: dict[str, set[str]] = {
        "cvcuda": set(),
        "nvidia.nvimgcodec": set(),
        **{f"cuda.bindings.{m}": set() for m in CUDA_MODULES},
    }
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\b(cvcuda|nvimgcodec|cuda)\b", text):
            continue
        tree = ast.parse(text)
        aliases = dict(_aliases(tree, used))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            if isinstance(node.value, ast.Name) and node.value.id in aliases:
                used[aliases[node.value.id]].add(node.attr)
            elif isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name):
                module = aliases.get(node.value.value.id, "")
                if module.startswith("cuda"):  # a member of an enumeration
                    used[module].add(node.attr)
    return used


def _aliases(tree: ast.Module, modules: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """(name in this file, module) of each import of one of the modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" in modules:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


# --- stubs that are there, or that pybind11-stubgen makes ----------------------------------------------------------------


def _cvcuda(wheel: Path | None, used: set[str]) -> str | None:
    spec = None if wheel else importlib.util.find_spec("cvcuda")
    if wheel:
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read("cvcuda/__init__.pyi").decode()
        release = wheel.name.split("-")[1]
    elif spec and spec.origin:
        text = Path(spec.origin).with_suffix(".pyi").read_text(encoding="utf-8")
        release = version("cvcuda-cu12")
    else:
        return None
    return _reduced(text, used, f"CV-CUDA {release}, of the stubs that it ships (Apache-2.0, NVIDIA)")


def _nvimgcodec(used: set[str]) -> str | None:
    try:
        release = version("nvidia-nvimgcodec-cu12")
    except PackageNotFoundError:
        return None
    with tempfile.TemporaryDirectory() as out:
        module = "nvidia.nvimgcodec.nvimgcodec_impl"
        run = [sys.executable, "-m", "pybind11_stubgen", module, "-o", out]
        subprocess.run(run, check=False, capture_output=True)  # noqa: S603 - it has no better word for defaults than `...`
        text = (Path(out) / f"{module.replace('.', '/')}.pyi").read_text(encoding="utf-8")
    return _reduced(text, used, f"nvImageCodec {release}, by pybind11-stubgen")


def _reduced(text: str, used: set[str], origin: str) -> str:
    """The stub with the definitions that are used, and those that they refer to, alone, without docstrings."""
    tree = ast.parse(text)
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _names(node):
            defined.setdefault(name, []).append(node)
    wanted, todo = set[str](), sorted(used)
    while todo:
        name = todo.pop()
        if name in wanted or name not in defined:
            continue
        wanted.add(name)
        todo += [inner.id for node in defined[name] for inner in ast.walk(node) if _is_read(inner)]
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    kept = [node for node in tree.body if wanted.intersection(_names(node))]
    body = "\n".join(ast.unparse(_plain(node)) for node in kept)
    heads = [ast.unparse(node) for node in imports if _is_used(node, body)]
    return "\n".join(
        [f"# Written by tools/typings.py from {origin}. The names that our code uses alone.", *heads, "", body, ""]
    )


def _is_read(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id != "__all__"]


def _plain(node: ast.stmt) -> ast.stmt:
    """Without docstrings and what every object has; a body that is empty then is `...`."""
    if isinstance(node, ast.ClassDef):
        node.body = [inner for inner in node.body if not (isinstance(inner, ast.FunctionDef) and inner.name in EVERY_OBJECTS)]
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            first = inner.body[0] if inner.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                inner.body = inner.body[1:] or [ast.Expr(ast.Constant(...))]
    return node


def _is_used(node: ast.Import | ast.ImportFrom, body: str) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return False
    node.names = [alias for alias in node.names if re.search(rf"\b{re.escape(alias.asname or alias.name)}\b", body)]
    return bool(node.names)


# --- cuda-bindings: from its documentation -------------------------------------------------------------------------------


def _cuda(name: str, used: set[str]) -> str | None:
    """Stub of one module. Each function's documentation has its signature and, in numpy's form, what it returns."""
    try:
        module = importlib.import_module(f"cuda.bindings.{name}")
    except ImportError:
        return None
    classes, functions = dict[str, str](), list[str]()
    for attr in sorted(used & set(dir(module))):
        thing = getattr(module, attr)
        if isinstance(thing, type):
            classes[attr] = _cuda_class(thing, used)
        elif not callable(thing):
            functions.append(f"{attr}: {type(thing).__name__}")
        else:
            arguments, returned = _cuda_signature(thing.__doc__ or "", attr)
            for kind in {*arguments.values(), *returned}:
                if kind != "Any" and isinstance(getattr(module, kind, None), type):
                    classes.setdefault(kind, _cuda_class(getattr(module, kind), used))
            known = {**CUDA_TYPES, **{kind: kind for kind in classes}}
            taken = ", ".join(f"{arg}: {known.get(kind, 'Any')}" for arg, kind in arguments.items())
            given = ", ".join(known.get(kind, "Any") for kind in returned) or "Any"  # not all say what they return
            functions.append(f"def {attr}({taken}) -> tuple[{given}]: ...")
    head = f"# Written by tools/typings.py from the documentation of cuda-bindings {version('cuda-bindings')}."
    return "\n".join([head, "from enum import IntEnum", "from typing import Any", "", *classes.values(), *functions, ""])


def _cuda_class(kind: type, used: set[str]) -> str:
    """An enumeration with the members that are used; any other class as an opaque one that may be made of an address."""
    members = getattr(kind, "__members__", None)
    if members:
        members = {name: value for name, value in members.items() if name in used}
        return "\n".join(
            [f"class {kind.__name__}(IntEnum):", *(f"    {name} = {int(value)}" for name, value in members.items()), "    ..."]
        )
    fields = [name for name in dir(kind) if not name.startswith("_")]
    lines = [f"    def {name}(self) -> int: ..." if name == "getPtr" else f"    {name}: Any" for name in fields]
    return "\n".join(
        [
            f"class {kind.__name__}:",
            "    def __init__(self, *args: Any, **kwargs: Any) -> None: ...",
            "    def __int__(self) -> int: ...",
            *lines,
        ]
    )


def _cuda_signature(doc: str, name: str) -> tuple[dict[str, str], list[str]]:
    """(argument -> its type, types returned), as far as the documentation tells."""
    found = re.match(rf"{name}\((.*?)\)", doc, re.DOTALL)
    arguments: dict[str, str] = {}
    for part in found.group(1).split(",") if found and found.group(1).strip() else []:
        text, _, hint = part.strip().partition(":")
        words = text.split()
        kind = hint.strip() or (words[0] if len(words) > 1 and words[0] == "size_t" else "Any")
        arguments[words[-1].lstrip("*")] = (
            kind.split("|")[-1].strip() if "None" not in kind.split("|")[-1] else kind.split("|")[0].strip()
        )
    section = doc.partition("Returns\n-------\n")[2].partition("\n\n")[0]
    returned = []
    for line in section.splitlines():
        if line and not line.startswith(" "):
            kind = line.rpartition(":")[2].strip()
            returned.append(re.sub(r":py:obj:`~?\.?(\w+)`", r"\1", kind))
    return arguments, returned


if __name__ == "__main__":
    sys.exit(main())
