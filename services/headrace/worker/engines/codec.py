"""nvImageCodec: whole JPEGs decoded to RGB, on a GPU or on the CPU by the same calls.

Which decoder takes a sample is decided before (codec_plan.Route). Each decoder of nvImageCodec gets the backends of one route,
so that it has no load to balance: pixels would depend on neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

import structlog
from nvidia import nvimgcodec

from headrace.worker.engines.codec_plan import Route

log = structlog.get_logger()

# y, x, height, width of an image as it is stored.
Cut: TypeAlias = tuple[int, int, int, int]
# libjpeg's way of scaling chroma up; nvJPEG's own default is nearer to nothing.
_OPTIONS = ":fancy_upsampling=1"


@dataclass(frozen=True, slots=True)
class Device:
    """Where to decode, and how.

    gpu: ordinal in this process; None: the CPU. hardware: whether the GPU has a JPEG engine. regions: decode no more of an
    image than its cut; see region_probe.
    """

    gpu: int | None
    hardware: bool
    regions: bool = False


def versions(device: Device) -> str:
    """Names and versions of what decodes, one line without spaces, for the engine's fingerprint."""
    parts = [f"nvimgcodec={version('nvidia-nvimgcodec-cu12')}"]
    if device.gpu is not None:
        parts.append(f"nvjpeg={installed('nvidia-nvjpeg-cu12')}")
    backend = "cpu" if device.gpu is None else "gpu"
    return ",".join([*parts, f"jpeg_engine={int(device.hardware)}", f"backend={backend}", f"regions={int(device.regions)}"])


def installed(package: str) -> str:
    """A package's version, `none` if it isn't installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


class Codec:
    """Decoders of one batch in flight; not for two threads at once.

    threads: of the CPU, for what backends do there. look_at_memory: called where a decoder refuses, which it does without a
    reason; raises GpuMemoryFull if that may be for want of memory.
    """

    def __init__(self, device: Device, threads: int, look_at_memory: Callable[[], None] = lambda: None) -> None:
        self._look_at_memory = look_at_memory
        self._decoders = {route: _decoder(device, kinds, threads) for route, kinds in _backends(device).items()}
        self._params = nvimgcodec.DecodeParams(
            # The orientation is applied by us, as for every engine: damaged EXIF counts as none.
            apply_exif_orientation=False,
            color_spec=nvimgcodec.ColorSpec.SRGB,
            sample_format=nvimgcodec.SampleFormat.I_RGB,
        )

    def decode(
        self, route: Route, datas: Sequence[bytes], stream: int = 0, cuts: Sequence[Cut | None] = ()
    ) -> list[nvimgcodec.Image | None]:
        """Decode JPEGs to uint8[H, W, 3]; None where the decoder refused twice. Raises what look_at_memory does.

        stream: CUDA stream that the pixels are ready on. cuts: for each what to decode of it, or None for all; empty: all of
        all. One that is refused is tried again alone, so that what was refused for something that passes is not left to another
        decoder, which may round otherwise.
        """
        decoder = self._decoders[route]
        streams = [_open(data, cut) for data, cut in zip(datas, cuts or [None] * len(datas), strict=True)]
        opened = [code_stream for code_stream in streams if code_stream is not None]
        decoded = iter(decoder.decode(opened, params=self._params, cuda_stream=stream) if opened else [])
        images: list[nvimgcodec.Image | None] = []
        for code_stream in streams:
            image = next(decoded) if code_stream is not None else None
            if image is None and code_stream is not None:
                self._look_at_memory()
                image = decoder.decode(code_stream, params=self._params, cuda_stream=stream)
            images.append(image)
        return images

    def close(self) -> None:
        """Free what the decoders hold."""
        for decoder in set(self._decoders.values()):
            decoder.__exit__(None, None, None)
        self._decoders = {}


def _open(data: bytes, cut: Cut | None) -> nvimgcodec.CodeStream | None:
    """None where nvImageCodec makes nothing of the header: it raises an error of no class of its own."""
    try:
        whole = nvimgcodec.CodeStream(data)
        if cut is None:
            return whole
        y, x, height, width = cut
        return whole.get_sub_code_stream(region=nvimgcodec.Region(y, x, y + height, x + width))
    except (RuntimeError, ValueError) as error:
        log.warning("decoder_refused_header", error=str(error))
        return None


def _backends(device: Device) -> dict[Route, tuple[nvimgcodec.BackendKind, ...]]:
    """The kinds of backend of each route; on the CPU all routes are one decoder's, so that they can be tried there."""
    if device.gpu is None:
        return {Route.HARDWARE: (nvimgcodec.BackendKind.CPU_ONLY,), Route.CUDA: (nvimgcodec.BackendKind.CPU_ONLY,)}
    kinds: dict[Route, tuple[nvimgcodec.BackendKind, ...]]
    kinds = {Route.CUDA: (nvimgcodec.BackendKind.GPU_ONLY, nvimgcodec.BackendKind.HYBRID_CPU_GPU)}
    if device.hardware:
        kinds[Route.HARDWARE] = (nvimgcodec.BackendKind.HW_GPU_ONLY,)
    return kinds


def _decoder(device: Device, kinds: tuple[nvimgcodec.BackendKind, ...], threads: int) -> nvimgcodec.Decoder:
    return nvimgcodec.Decoder(
        device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY if device.gpu is None else device.gpu,
        max_num_cpu_threads=threads,
        backends=[nvimgcodec.Backend(kind, load_hint=1.0, load_hint_policy=nvimgcodec.LoadHintPolicy.IGNORE) for kind in kinds],
        options=_OPTIONS,
    )
