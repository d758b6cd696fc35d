"""What is measured against what: decoders, engines, and DALI as its users write it; each made once and run batch by batch.

A contestant that cannot be made raises Absent with the reason, which goes into the report.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.core.pipeline_spec import PipelineSpec
from headrace.worker.engines.protocol import DeviceSlot, Out, Sample
from tests.gpu import devices
from tests.gpu.made import SEED, Order, make_engine

SIDE = 224


class Absent(Exception):
    """It cannot run here; says why."""


@dataclass
class Contestant:
    """batch: makes one batch of `images`, to its end. close: frees what it holds. ahead: batches that it may have made before
    it is asked: so many are taken before a time is measured. settle: waits until it makes nothing more, before another's turn.
    """

    name: str
    images: int
    batch: Callable[[], Any]
    close: Callable[[], Any] = field(default=lambda: None)
    ahead: int = 0
    settle: Callable[[], Any] = field(default=lambda: None)


@contextmanager
def absence(what: str):
    """Whatever fails while a contestant is made says why it is absent."""
    try:
        yield
    except HeadraceError as error:
        raise Absent(f"{what}: {error.message}") from error
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        raise Absent(f"{what}: {str(error).strip().splitlines()[-1] if str(error).strip() else error!r}") from error


def why_no_gpu() -> str:
    """Why there is no GPU, by the driver's own word; empty if there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1 is not found)"
    count = ctypes.c_int()
    if (code := driver.cuInit(0)) or (code := driver.cuDeviceGetCount(ctypes.byref(count))):
        return f"the NVIDIA driver gives CUDA error {code}"
    return "" if count.value else "the NVIDIA driver shows no GPU"


def need_gpu() -> None:
    """Raise Absent without a GPU."""
    if reason := why_no_gpu():
        raise Absent(reason)


# --- decode alone -----------------------------------------------------------------------------------------------------------


def decode_libraries(jpegs: list[bytes], threads: int) -> Contestant:
    """libjpeg-turbo by simplejpeg, whole images, on all threads."""
    from concurrent.futures import ThreadPoolExecutor

    import simplejpeg

    pool = ThreadPoolExecutor(threads)
    return Contestant("simplejpeg", len(jpegs), lambda: list(pool.map(simplejpeg.decode_jpeg, jpegs)), pool.shutdown)


def decode_nvimgcodec(jpegs: list[bytes], threads: int, route: str) -> Contestant:
    """The decoder that `cvcuda` uses: route `cpu`, or on a GPU `hardware` or `cuda`."""
    name = {"cpu": "nvimgcodec on the CPU", "hardware": "nvimgcodec, JPEG engine", "cuda": "nvimgcodec, CUDA"}[route]
    if route != "cpu":
        need_gpu()
    with absence(name):
        from headrace.worker.engines.codec import Codec, Device
        from headrace.worker.engines.codec_plan import Route

        codec = Codec(Device(None if route == "cpu" else 0, route != "cuda"), threads)
        which = Route.CUDA if route == "cuda" else Route.HARDWARE
        taken = sum(image is not None for image in codec.decode(which, jpegs))
    if taken < len(jpegs):
        codec.close()
        raise Absent(f"{name}: it took {taken} of {len(jpegs)} images")

    def batch() -> None:
        images = codec.decode(which, jpegs)
        if route != "cpu":
            _synchronize()
        del images

    return Contestant(name, len(jpegs), batch, codec.close)


def _synchronize() -> None:
    """All of the GPU, where images were decoded on the default stream."""
    ctypes.CDLL("libcuda.so.1").cuCtxSynchronize()


def decode_dali(jpegs: list[bytes], threads: int, device: str) -> Contestant:
    """DALI's decoder, whole images."""
    return _dali(f"DALI decode, {device}", jpegs, threads, device, augment=False)


# --- decode and augment -----------------------------------------------------------------------------------------------------


def augment_engine(name: str, jpegs: list[bytes], threads: int, memory: str = "") -> Contestant:
    """An engine's `run` into a slot of the host, or of device memory of a kind."""
    title = f"engine {name}" + (f", slot on the GPU ({memory})" if memory else "")
    with absence(title):
        engine = make_engine(name, threads)
        spec = Order("", memory, name, len(jpegs), SIDE).spec
        prepared = engine.prepare(spec, SEED)
        out, free = _slot(spec, len(jpegs), memory)
    samples = [Sample(i, "", jpeg) for i, jpeg in enumerate(jpegs)]
    state = {"epoch": 0}

    def batch() -> None:
        state["epoch"] += 1
        result = prepared.run(samples, [(state["epoch"], i) for i in range(len(jpegs))], out)
        assert not result.reasons.any(), "an image was refused"

    def close() -> None:
        prepared.close()
        engine.close()
        free()

    return Contestant(title, len(jpegs), batch, close)


def _slot(spec: PipelineSpec, count: int, memory: str) -> tuple[Out, Callable[[], None]]:
    nbytes = spec.pixel_bytes(count)
    if not memory:
        return memoryview(bytearray(nbytes)), lambda: None
    device = devices.open_kind(memory)
    block = device.memories[0].allocate(nbytes)

    def free() -> None:
        device.memories[0].free(block)
        device.close()

    return DeviceSlot(block.pointer, nbytes, device.memories[0].gpu), free


def augment_dali(jpegs: list[bytes], threads: int, device: str, *, region: bool = False) -> Contestant:
    """DALI as its users write it: its own random crops, its default queue, pixels where its pipeline leaves them.

    device: `cpu` or `mixed`. region: the crop is drawn by the decoder, which decodes it alone.
    """
    title = f"plain DALI pipeline, {device}" + (", image_random_crop" if region else "")
    return _dali(title, jpegs, threads, device, augment=True, region=region)


def _dali(title: str, jpegs: list[bytes], threads: int, device: str, *, augment: bool, region: bool = False) -> Contestant:
    if device == "mixed":
        need_gpu()
    with absence(title):
        from nvidia.dali import fn, types
        from nvidia.dali.pipeline import Pipeline

        gpu = 0 if device == "mixed" else None
        data = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
        pipeline = Pipeline(batch_size=len(jpegs), num_threads=threads, device_id=gpu, seed=1)
        with pipeline:
            source = fn.external_source(source=lambda: data, device="cpu", batch=True)
            images = _dali_images(fn, types, source, device, augment=augment, region=region)
            if augment:
                images = fn.flip(images, horizontal=fn.random.coin_flip())
            pipeline.set_outputs(images)
        pipeline.build()
        pipeline.run()
    return Contestant(title, len(jpegs), pipeline.run, ahead=3)


def _dali_images(fn: Any, types: Any, source: Any, device: str, *, augment: bool, region: bool) -> Any:
    if not augment:
        return fn.decoders.image(source, device=device, output_type=types.RGB)
    if region:
        cut = fn.decoders.image_random_crop(source, device=device, output_type=types.RGB)
        return fn.resize(cut, size=[SIDE, SIDE], antialias=True, interp_type=types.INTERP_LINEAR)
    whole = fn.decoders.image(source, device=device, output_type=types.RGB)
    return fn.random_resized_crop(whole, size=[SIDE, SIDE], antialias=True, interp_type=types.INTERP_LINEAR)
