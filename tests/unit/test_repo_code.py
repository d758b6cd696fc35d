"""Rules that the code keeps, read from its source: sizes, forbidden things, errors that say what they are."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.core import errors
from headrace.core.errors import HeadraceError

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services/headrace"
FILES = sorted(
    path
    for folder in ("services", "tests", "examples", "loadtest")
    for path in (ROOT / folder).rglob("*.py")
    if "gen" not in path.relative_to(ROOT).parts
)
OURS = [path for path in FILES if path.is_relative_to(SERVICES)]
SCRIPTS = [ROOT / "Makefile", ROOT / ".ci/run", *sorted((ROOT / "tools").glob("*"))]

MOST_LINES = 500
MOST_FUNCTION_LINES = 70
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing"}
FORBIDDEN_CALLS = {"eval", "exec", "fork", "forkpty"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function below its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def imports(tree: ast.AST) -> set[str]:
    """First parts of the names of all modules imported."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_there_is_code_to_judge() -> None:
    assert len(OURS) > 30
    assert body_lines(next(functions(ast.parse("def f():\n  '''doc'''\n  a\n  b")))) == 2
    assert imports(ast.parse("import os.path as p\nfrom pickle import loads")) == {"os", "pickle"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    long = {f.name: body_lines(f) for f in functions(tree_of(path)) if body_lines(f) > MOST_FUNCTION_LINES}
    assert not long, "split them"


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_nothing_that_runs_strangers_code_or_forks(path: Path) -> None:
    tree = tree_of(path)
    assert not imports(tree) & FORBIDDEN_IMPORTS
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    names |= {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "os"
    }
    assert not names & FORBIDDEN_CALLS


# What runs code out of data, a shell, or a race for a file's name; by the last parts of what is called.
FORBIDDEN_DOTTED = {
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "torch.load", "joblib.load", "pandas.read_pickle",
    "tempfile.mktemp", "os.system", "os.popen", "os.tempnam", "asyncio.create_subprocess_shell", "subprocess.getoutput",
    "subprocess.getstatusoutput", "builtins.eval", "builtins.exec", "ctypes.pythonapi", "code.interact", "runpy.run_path",
}  # fmt: skip
FORBIDDEN_NAMES = {"__import__", "compile", "mktemp", "create_subprocess_shell"}
# Keyword arguments that turn a harmless call into one of these.
FORBIDDEN_KEYWORDS = {"shell", "allow_pickle"}
# Temporary files by mkstemp's way are fine; archives are never unpacked, and XML is not read.
FORBIDDEN_METHODS = {"extractall", "extract", "unpack_archive"}


def dotted(node: ast.expr) -> str:
    """`a.b.c` as a text; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def dangers(tree: ast.AST) -> list[str]:
    """Calls that could run what a stranger wrote."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func).replace("np.", "numpy.")
        keywords = {word.arg for word in node.keywords if not (isinstance(word.value, ast.Constant) and not word.value.value)}
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if ".".join(name.split(".")[-2:]) in FORBIDDEN_DOTTED or name in FORBIDDEN_NAMES or method in FORBIDDEN_METHODS:
            found.append(f"line {node.lineno}: {name or method}")
        if keywords & FORBIDDEN_KEYWORDS:
            found.append(f"line {node.lineno}: {name}({', '.join(sorted(keywords & FORBIDDEN_KEYWORDS))}=...)")
    return found


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_no_call_runs_code_out_of_data(path: Path) -> None:
    assert not dangers(tree_of(path))


@pytest.mark.parametrize(
    "code",
    [
        "yaml.load(f)", "torch.load(f)", "np.load(f, allow_pickle=True)", "numpy.load(f, allow_pickle=x)", "tempfile.mktemp()",
        "subprocess.run(c, shell=True)", "os.system(c)", "asyncio.create_subprocess_shell(c)", "compile(s, 'x', 'exec')",
        "__import__(n)", "tar.extractall(d)",
    ],
)  # fmt: skip
def test_the_check_finds_such_calls(code: str) -> None:
    assert dangers(ast.parse(code))
    assert not dangers(ast.parse("re.compile(p); np.load(f); subprocess.run(c, shell=False); np.load(f, allow_pickle=False)"))


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_no_cancellation_is_lost(path: Path) -> None:
    """asyncio.wait_for of Python 3.11 loses a cancellation that comes while its result is ready; asyncio.timeout does not."""
    assert "asyncio.wait_for(" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_nothing_is_swallowed(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"line {node.lineno}: a bare except"
            wide = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            empty = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not (wide and empty), f"line {node.lineno}: every error is swallowed"


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_public_things_say_what_they_are(path: Path) -> None:
    tree = tree_of(path)
    if tree.body:
        assert ast.get_docstring(tree), "a module without a docstring"
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", [*FILES, *SCRIPTS], ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    words = "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK"))
    assert not re.findall(rf"\b(?:{words})\b", path.read_text(encoding="utf-8"))


def subclasses(cls: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from subclasses(sub)


# Loads only where an NVIDIA driver is.
NEEDS_A_GPU = {"headrace.worker.engines.cvcuda_lane"}


def test_every_error_has_a_code_of_its_own_and_a_docstring() -> None:
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if module.name in NEEDS_A_GPU:
            path = Path(headrace.__path__[0], *module.name.split(".")[1:]).with_suffix(".py")
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"^class .*(Error|Exception)", text, re.MULTILINE), "an error class where it is not looked at"
        elif not module.name.endswith("__main__") and ".gen." not in module.name:
            importlib.import_module(module.name)
    classes = list(subclasses(HeadraceError))
    assert len(classes) > 20
    by_code: dict[str, str] = {}
    for cls in classes:
        assert cls is HeadraceError or "code" in vars(cls), f"{cls.__name__} has no code of its own"
        assert re.fullmatch(r"[a-z][a-z_]+", cls.code)
        assert by_code.setdefault(cls.code, cls.__name__) == cls.__name__, f"{cls.code} is used twice"
        assert (cls.__doc__ or "").strip().endswith("."), f"{cls.__name__} does not say when it is raised"


def test_an_errors_ids_are_attributes_and_survive_the_wire() -> None:
    error = errors.from_code("shard_missing", "gone", {"shard": 4})
    assert isinstance(error, errors.ShardMissing)
    assert error.shard == 4
    assert str(error) == "gone [shard_missing shard=4]"
    with pytest.raises(AttributeError, match="no id 'lane'; it has"):
        _ = error.lane
    assert type(errors.from_code("from_the_future", "?", {})) is HeadraceError
