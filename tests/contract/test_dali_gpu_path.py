"""The way of a batch through `dali-gpu`, run on the CPU: DALI does there what a GPU would do, and slots are host memory.

So everything is executed but DALI's own GPU operators, the copies between memories, and the driver's answers; these never ran
on a GPU yet (docs/engines.md). Where there is one, the contract's suites run over engine dali-gpu itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from headrace.core import pipeline_spec as ps
from headrace.core.batch import BAD_REASONS
from headrace.core.errors import EngineUnsupported, GpuLost, GpuMemoryFull, HeadraceError
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import bad_kinds, encode, good_kinds, photo
from headrace.worker.engines.protocol import DeviceSlot, Sample
from tests.contract import engine_entries

if reason := engine_entries.why_not("dali"):
    pytest.skip(f"engine dali does not run here: {reason}", allow_module_level=True)

from headrace.worker.engines import dali, dali_line, dali_stages, dali_versions
from headrace.worker.engines.dali import DaliEngine

JPEG = encode(photo(), "JPEG", quality=90)
PNG = encode(photo(), "PNG")
GEOMETRY = (ps.RandomResizedCrop((40, 32)), ps.HorizontalFlip())
REFUSED = JPEG.replace(b"\xff\xdb", b"\xff\xfe")


class OnTheCpu:
    """A library's function, with `device` changed from a GPU's and arguments left out that only that one has."""

    def __init__(self, function) -> None:
        self.function = function
        self.asked: list[str] = []

    def __call__(self, *args, device="cpu", **named):
        self.asked.append(device)
        for name in ("hw_decoder_load", "affine"):
            named.pop(name, None)
        return self.function(*args, device="cpu", **named)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Lets engines believe in a GPU 0; gives the devices that they ask for."""
    source, image = OnTheCpu(dali_stages.fn.external_source), OnTheCpu(dali_stages.fn.decoders.image)
    uploads: list[str] = []
    pipeline = dali_stages.Pipeline

    def upload(self):
        uploads.append("gpu")
        return self

    def copy(images, pointer: int, row_bytes: int, places) -> None:
        rows = np.ascontiguousarray(np.asarray(images.as_tensor()))
        assert rows.nbytes == row_bytes * len(places)
        for row, place in zip(rows, places, strict=True):
            ctypes.memmove(pointer + place * row_bytes, row.ctypes.data, row_bytes)

    monkeypatch.setattr(dali_stages.fn, "external_source", source)
    monkeypatch.setattr(dali_stages.fn.decoders, "image", image)
    monkeypatch.setattr(dali_stages.DataNode, "gpu", upload)
    monkeypatch.setattr(dali_stages, "Pipeline", lambda **named: pipeline(**{**named, "device_id": None}))
    monkeypatch.setattr(dali, "copy_to_gpu", copy)
    monkeypatch.setattr(dali_versions, "_model", lambda gpu: f"none-{gpu}")
    return {"source": source.asked, "image": image.asked, "uploads": uploads}


@pytest.fixture
def on_gpu(asked) -> Iterator[DaliEngine]:
    made = DaliEngine(2, None, 0)
    yield made
    made.close()


@pytest.fixture
def on_cpu() -> Iterator[DaliEngine]:
    made = DaliEngine(2, None)
    yield made
    made.close()


def run(engine: DaliEngine, spec: PipelineSpec, datas, device: bool):
    """(the slot's bytes a row, reasons)."""
    slot = np.full(spec.pixel_bytes(len(datas)), 0xA5, np.uint8)
    out = DeviceSlot(slot.ctypes.data, slot.nbytes, 0) if device else memoryview(slot).cast("B")
    samples = [Sample(i, f"key{i}", data) for i, data in enumerate(datas)]
    prepared = engine.prepare(spec, 5)
    result = prepared.run(samples, [(1, i) for i in range(len(datas))], out)
    prepared.close()
    return slot.reshape(len(datas), -1), [BAD_REASONS[code] for code in result.reasons]


OPS = {
    "all by DALI": GEOMETRY,
    "nothing scaled": (ps.CenterCrop((50, 60)),),
    "a window of what is scaled": (ps.Resize(80), ps.RandomCrop((64, 56)), ps.VerticalFlip()),
    "some by the shared code": (*GEOMETRY, ps.ColorJitter(0.4, 0.4, 0.4, 0.1), ps.RandomErasing()),
    "often over the edge": (ps.RandomCrop((203, 202)), ps.VerticalFlip()),
    "nothing by DALI": (ps.HorizontalFlip(), *GEOMETRY),
}


@pytest.mark.parametrize("device", [True, False], ids=["device", "host"])
@pytest.mark.parametrize("ops", OPS.values(), ids=OPS.keys())
def test_a_batch_is_the_same_wherever_it_is_made_and_put(ops, device, on_gpu: DaliEngine, on_cpu: DaliEngine) -> None:
    kinds = {kind.name: kind.data for kind in (*good_kinds(), *bad_kinds())}
    chosen = ("jpeg_rgb", "jpeg_exif_6", "jpeg_cmyk", "jpeg_gray", "jpeg_exif_3")
    datas = [*[*kinds.values()][::6], JPEG, *[kinds[name] for name in chosen], PNG, b"", JPEG]
    for output in (ps.Output(), ps.Output("bfloat16", "NCHW", ps.Normalize())):
        spec = PipelineSpec(ops=ops, output=output)
        expected, reasons = run(on_cpu, spec, datas, device=False)
        found, found_reasons = run(on_gpu, spec, datas, device)
        # An RGB JPEG is the libraries' for a GPU: another decoder, the same pixels.
        assert found_reasons == reasons and len(set(reasons)) > 3
        good = [row for row, reason in enumerate(reasons) if reason == "none"]
        assert np.array_equal(found[good], expected[good])


def test_the_decode_is_asked_of_the_gpu_and_pixels_of_libraries_are_taken_there(on_gpu: DaliEngine, asked) -> None:
    spec = PipelineSpec(ops=GEOMETRY)
    run(on_gpu, spec, [JPEG] * 3, device=True)
    assert asked["image"] == ["mixed"] and "gpu" in asked["source"] and not asked["uploads"]
    run(on_gpu, spec, [JPEG, PNG], device=True)
    assert asked["uploads"] == ["gpu"]


def test_the_engine_says_what_it_is(on_gpu: DaliEngine) -> None:
    assert (on_gpu.name, on_gpu.memory, on_gpu.batches_at_once) == ("dali-gpu", {"host", "cuda"}, 2)
    assert "backend=gpu,gpu=none-0," in on_gpu.fingerprint and "nvjpeg=" in on_gpu.fingerprint


@pytest.mark.parametrize("slot", [DeviceSlot(0, 1, 0), DeviceSlot(0, PipelineSpec().pixel_bytes(1), 1)], ids=["size", "gpu"])
def test_a_slot_that_does_not_fit_is_refused(on_gpu: DaliEngine, slot: DeviceSlot) -> None:
    with pytest.raises(HeadraceError, match="don't fit"):
        on_gpu.prepare(PipelineSpec(), 0).run([Sample(0, "", JPEG)], [(0, 0)], slot)


def test_an_image_that_the_cpu_refuses_too_is_bad_and_one_that_it_takes_is_not(
    on_gpu: DaliEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali, "scan_fault", lambda probe, core: "none")
    spec = PipelineSpec(ops=GEOMETRY)
    assert run(on_gpu, spec, [JPEG, REFUSED, JPEG], device=True)[1] == ["none", "corrupt", "none"]
    other = encode(photo(), "JPEG", quality=80)
    decoded = dali_line._decoded

    def decode(stage, jpegs, boxes):
        if stage._gpu is not None and other in jpegs:
            raise dali_stages.StageFailed("Failed to decode sample")
        return decoded(stage, jpegs, boxes)

    monkeypatch.setattr(dali_line, "_decoded", decode)
    with pytest.raises(GpuMemoryFull, match="GPU 0 fails on an image that is sound"):
        run(on_gpu, spec, [JPEG, other, JPEG], device=True)


def test_no_memory_on_the_gpu_is_told_as_that(on_gpu: DaliEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def feed_input(self, name, feed) -> None:
            raise RuntimeError("CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory")

    monkeypatch.setattr(dali_stages.Stage, "_build", lambda self: Full())
    with pytest.raises(GpuMemoryFull, match="no memory for a batch"):
        run(on_gpu, PipelineSpec(ops=GEOMETRY), [JPEG] * 3, device=True)


def test_a_lost_gpu_is_no_image_s_fault(on_gpu: DaliEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        def feed_input(self, name, feed) -> None:
            raise RuntimeError(
                "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered"
            )

    monkeypatch.setattr(dali_stages.Stage, "_build", lambda self: Lost())
    with pytest.raises(GpuLost, match="can use its GPU no more"):
        run(on_gpu, PipelineSpec(ops=GEOMETRY), [JPEG] * 3, device=True)


def test_a_gpu_that_decodes_nothing_any_more_counts_as_lost(on_gpu: DaliEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(stage, jpegs, boxes):
        raise dali_stages.StageFailed("nvJPEG error (6): NVJPEG_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(dali_line, "_decoded", decode)
    with pytest.raises(GpuLost, match="decodes nothing any more"):
        run(on_gpu, PipelineSpec(ops=GEOMETRY), [JPEG] * 3, device=True)


class Driver:
    """A CUDA driver with one GPU."""

    def __init__(self, started: int = 0) -> None:
        self.started = started

    def cuInit(self, flags: int) -> int:
        return self.started

    def cuDeviceGet(self, device, ordinal: int) -> int:
        device._obj.value = 7
        return 0 if ordinal == 0 else 101

    def cuDeviceGetName(self, name, size: int, device) -> int:
        assert device.value == 7 and size >= 64
        name.value = b"NVIDIA H200"
        return 0

    def cuDriverGetVersion(self, found) -> int:
        found._obj.value = 12080
        return 0


def test_the_gpu_is_named_with_its_driver_or_why_it_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, faults = Driver(), [""]
    monkeypatch.setattr(dali_versions.ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(dali_versions.Line, "fault", lambda self: faults[0])
    assert "backend=gpu,gpu=NVIDIA-H200,driver_cuda=12080" in dali_versions.dali_versions(0)
    with pytest.raises(EngineUnsupported, match="cannot use GPU 1: cuDeviceGet gives CUDA error 101"):
        dali_versions.dali_versions(1)
    faults[0] = "no kernel image is available"
    with pytest.raises(EngineUnsupported, match=r"decodes nothing on it \(no kernel image"):
        dali_versions.dali_versions(0)
    driver.started = 100
    with pytest.raises(EngineUnsupported, match="cuInit gives CUDA error 100; without a GPU take engine dali"):
        dali_versions.dali_versions(0)
