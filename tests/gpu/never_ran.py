"""What of the code has never run on a GPU, read from the code itself, for docs/gpu.md.

    python -m tests.gpu.never_ran      writes the page's table anew

A function that calls CUDA, CV-CUDA or torch's CUDA cannot have run where there is no GPU: those are found here by their names.
What else is taken on a GPU alone stands in BRANCHES, by hand. Once a report of a GPU is committed, what it ran leaves the list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/gpu.md"
BEGIN, END = "<!-- never ran: begin -->", "<!-- never ran: end -->"
# What only a GPU answers: names that these files give to the modules.
MODULES = {"cuda.bindings": ("driver", "runtime"), "cvcuda": (), "torch": ("cuda",)}
# Files all of whose calls need a GPU: what runs of them without one is their import and their plain helpers.
WHOLE = {
    "services/headrace/wire/cuda_calls.py": "all calls of the CUDA driver; played by one that is none (testing/fake_driver.py)",
    "services/headrace/wire/cuda_vmm.py": "memory by descriptors; played as above",
    "services/headrace/wire/cuda_legacy.py": "memory by handles; played as above",
    "services/headrace/wire/cuda_device.py": "opening a GPU; only its end without a driver has run",
    "services/headrace/worker/engines/cuda_runtime.py": "every call of the CUDA runtime; types by mypy",
    "services/headrace/worker/engines/cvcuda_lane.py": "every call of CV-CUDA; types by mypy; played by testing/numpy_lane.py",
}
# (file, function, what of it). Functions that run without a GPU in another way.
BRANCHES = (
    ("services/headrace/worker/engines/codec.py", "_backends", "HW_GPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU"),
    ("services/headrace/worker/engines/codec.py", "Codec.decode", "with a GPU and a stream"),
    ("services/headrace/worker/engines/region_probe.py", "main", "with a GPU"),
    ("services/headrace/worker/engines/cvcuda.py", "first_gpu", "an answer of a real NVML"),
    ("services/headrace/worker/engines/dali_stages.py", "decode_graph", "device `mixed`"),
    ("services/headrace/worker/engines/dali_stages.py", "Work.graph", "`.gpu()` and what follows on a GPU"),
    ("services/headrace/worker/engines/dali_stages.py", "in_format", "on a GPU"),
    ("services/headrace/worker/engines/dali_stages.py", "host_images", "of a TensorListGPU"),
    ("services/headrace/worker/engines/dali_stages.py", "copy_to_gpu", "into a real slot on a GPU"),
    ("services/headrace/worker/engines/dali_versions.py", "_model", "past the loading of the driver"),
    ("services/headrace/telemetry/nvml.py", "Nvml.gpus", "an answer of a real driver; tests ask a stand-in"),
    ("services/headrace/telemetry/nvml.py", "Nvml.figures", "an answer of a real driver; tests ask a stand-in"),
    ("services/headrace/client/device_pixels.py", "DevicePixels.__getattr__", "`__cuda_array_interface__`: read by nobody yet"),
    ("services/headrace/client/dlpack.py", "capsule", "of memory on a GPU"),
    ("services/headrace/client/iterators/torch.py", "CudaLane.pinned_like", "all"),
    ("services/headrace/client/iterators/jax.py", "own_copy", "of memory on a GPU"),
    ("services/headrace/worker/pixel_places.py", "PixelPlaces.writing", "pinned memory, and its copy to a GPU"),
    ("services/headrace/client/transports/mapping.py", "Slab.pin", "a real registration"),
    ("tests/gpu/handoff.py", "PcieCounter.during", "all"),
    ("tests/gpu/bench.py", "Keeper.__call__", "the copy"),
)  # fmt: skip


def found() -> list[tuple[str, str]]:
    """(file, function) of services/headrace that call what needs a GPU, but for files of WHOLE."""
    rows = []
    for path in sorted((ROOT / "services/headrace").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in WHOLE or "/gen/" in name or "/testing/" in name:
            continue
        rows += [(name, function) for function in calling(path.read_text(encoding="utf-8"))]
    return rows


def calling(source: str) -> list[str]:
    """Functions of a file that use a module of MODULES, as `Class.method`."""
    tree = ast.parse(source)
    names = set(_imported(tree))
    return [name for name, body in functions(tree) if names & set(_used(body))]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods of a module by name; one within another belongs to it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _imported(tree: ast.AST) -> Iterator[str]:
    """Names, with dots, by which this file calls what needs a GPU."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "cvcuda":
                    yield alias.asname or alias.name
                if alias.name == "torch":
                    yield "torch.cuda"
        elif isinstance(node, ast.ImportFrom) and node.module == "cuda.bindings":
            yield from (alias.asname or alias.name for alias in node.names)


def _used(body: ast.AST) -> Iterator[str]:
    for node in ast.walk(body):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def table() -> str:
    """The page's part, as Markdown."""
    lines = ["| file | function | what of it |", "|---|---|---|"]
    lines += [f"| `{_short(file)}` | all | {what} |" for file, what in WHOLE.items()]
    rows = [(file, function, "its calls of CUDA") for file, function in found()] + list(BRANCHES)
    lines += [f"| `{_short(file)}` | `{function}` | {what} |" for file, function, what in sorted(rows)]
    return "\n".join(lines)


def _short(file: str) -> str:
    return file.removeprefix("services/headrace/")


def renewed(page: str) -> str:
    """The page with the table as it should be."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
