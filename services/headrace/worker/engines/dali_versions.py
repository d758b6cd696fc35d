"""Which DALI this is, for the fingerprint, and whether the GPU that it is to use can be used."""

from __future__ import annotations

import ctypes
from importlib.metadata import PackageNotFoundError, version

import nvidia.dali
from nvidia.dali import backend

from headrace.core.errors import EngineUnsupported, GpuMemoryFull
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.worker.engines.dali_line import Line


def dali_versions(gpu: int | None) -> str:
    """DALI, its codecs and where it works, one line without spaces. Raises EngineUnsupported if the GPU cannot be used."""
    # nvImageCodec holds its own libjpeg-turbo for the CPU, so that its version says that one's, too.
    versions = f"dali={nvidia.dali.__version__},nvimgcodec={backend.GetNvimgcodecVersion()}"  # type: ignore[attr-defined]
    if gpu is None:
        return f"{versions},backend=cpu"
    cuda = int(backend.__cuda_version__)  # type: ignore[attr-defined]
    return f"{versions},nvjpeg={_installed('nvidia-nvjpeg-cu', cuda)},cuda={cuda},backend=gpu,gpu={_model(gpu)}"


def _installed(package: str, cuda: int) -> str:
    """Version of a package that is named for its CUDA."""
    try:
        return version(f"{package}{cuda // 1000}")
    except PackageNotFoundError:
        return "none"


def _model(gpu: int) -> str:
    """Name of a CUDA device on which DALI decodes, and the newest CUDA of its driver."""
    name = ctypes.create_string_buffer(256)
    device, newest = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        steps = (
            ("cuInit", (0,)),
            ("cuDeviceGet", (ctypes.byref(device), gpu)),
            ("cuDeviceGetName", (name, len(name), device)),
            ("cuDriverGetVersion", (ctypes.byref(newest),)),
        )
        for call, arguments in steps:
            if code := getattr(driver, call)(*arguments):
                raise _unusable(gpu, f"{call} gives CUDA error {code}")
    except (OSError, AttributeError) as error:
        raise _unusable(gpu, f"the NVIDIA driver is missing here ({error})") from error
    line = Line(PipelineSpec(ops=(CenterCrop((8, 8)),)), 1, 1, gpu)
    try:
        if fault := line.fault():
            raise _unusable(gpu, f"DALI decodes nothing on it ({fault})")
    except GpuMemoryFull as error:
        raise _unusable(gpu, error.message) from error
    finally:
        line.close()
    return f"{name.value.decode().replace(' ', '-')},driver_cuda={newest.value}"


def _unusable(gpu: int, why: str) -> EngineUnsupported:
    return EngineUnsupported(f"engine dali-gpu cannot use GPU {gpu}: {why}; without a GPU take engine dali", engine="dali-gpu")
