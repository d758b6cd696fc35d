"""The decode half of the GPU engines: who decodes what, damage that nvImageCodec passes over, and what it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg

from headrace.core.batch import BAD_REASONS
from headrace.core.image_header import read_header
from headrace.core.pipeline_spec import CenterCrop, Decode, PipelineSpec, RandomCrop, Resize
from headrace.testing.image_kinds import ImageKind, encode, good_jpegs, good_kinds, patch, photo
from headrace.testing.image_variants import image_variants
from headrace.worker.engines import decode_half, pixels, region_probe
from headrace.worker.engines.codec import Codec, Device
from headrace.worker.engines.codec_plan import Route, route_of, routes_of
from headrace.worker.engines.cpu import CpuEngine, find_native
from headrace.worker.engines.decode_half import DecodeHalf
from headrace.worker.engines.geometry import fused_count
from headrace.worker.engines.jpeg_scan import scan_fault
from headrace.worker.engines.protocol import Sample
from headrace.worker.engines.rows import look_at

DECODE = Decode()
PHOTO = encode(photo(), "JPEG", quality=90)


def jpeg(mode: str = "RGB", size: tuple[int, int] = (301, 203), **options) -> bytes:
    return encode(photo(*size).convert(mode), "JPEG", **options)


ROUTES = {
    "baseline 4:2:0": (jpeg(subsampling="4:2:0"), Route.HARDWARE, Route.CUDA),
    "baseline 4:2:2": (jpeg(subsampling="4:2:2"), Route.HARDWARE, Route.CUDA),
    "baseline 4:4:4": (jpeg(subsampling="4:4:4"), Route.HARDWARE, Route.CUDA),
    "baseline 4:1:1": (simplejpeg.encode_jpeg(np.asarray(photo()), 90, "RGB", "411"), Route.CUDA, Route.CUDA),
    "baseline 4:4:0": (simplejpeg.encode_jpeg(np.asarray(photo()), 90, "RGB", "440"), Route.CUDA, Route.CUDA),
    "gray": (jpeg("L"), Route.HARDWARE, Route.CUDA),
    "progressive": (jpeg(progressive=True), Route.CUDA, Route.CUDA),
    "stored as RGB": (jpeg(keep_rgb=True), Route.HOST, Route.HOST),
    "cmyk": (jpeg("CMYK"), Route.HOST, Route.HOST),
    "tiny": (jpeg(size=(40, 12)), Route.HOST, Route.HOST),
    "wide": (jpeg(size=(9000, 32)), Route.CUDA, Route.CUDA),
    "png": (encode(photo(), "PNG"), Route.HOST, Route.HOST),
}


@pytest.mark.parametrize("name", ROUTES)
def test_who_decodes_is_told_by_the_header_alone(name: str) -> None:
    data, with_engine, without = ROUTES[name]
    assert route_of(read_header(data), hardware=True) == with_engine
    assert route_of(read_header(data), hardware=False) == without
    changed = data[: len(data) - 200] + bytes(198) + data[-2:]  # other pixels under the same header
    assert route_of(read_header(changed), hardware=True) == with_engine


def test_a_turned_image_is_the_hosts_and_a_mirrored_one_is_not() -> None:
    for orientation in range(1, 9):
        kind = next(kind for kind in image_variants() if kind.name == f"jpeg_exif_{orientation}")
        wanted = Route.HOST if orientation >= 5 else Route.HARDWARE
        assert route_of(read_header(kind.data), hardware=True) == wanted, orientation


def rows_of(spec: PipelineSpec, datas: list[bytes]):
    return look_at(spec, 1, [Sample(i, f"k{i}", data) for i, data in enumerate(datas)], [(0, i) for i in range(len(datas))],
                   fused_count(spec))  # fmt: skip


def test_rows_that_the_gpu_should_not_make_are_the_hosts() -> None:
    bad = [PHOTO[:900], b"", b"nothing"]
    assert routes_of(rows_of(PipelineSpec(), [PHOTO, *bad]), hardware=True).tolist() == [Route.HARDWARE, *[Route.HOST] * 3]
    padded = PipelineSpec(ops=(CenterCrop((400, 300)),))
    assert routes_of(rows_of(padded, [PHOTO]), hardware=True).tolist() == [Route.HOST]
    strip = encode(photo(16, 4000), "JPEG")
    huge_on_its_way = PipelineSpec(ops=(Resize(224), RandomCrop((224, 224))))
    assert routes_of(rows_of(huge_on_its_way, [PHOTO, strip]), hardware=True).tolist() == [Route.HARDWARE, Route.HOST]
    assert routes_of(rows_of(PipelineSpec(ops=(Resize((64, 64)),)), [strip]), hardware=True).tolist() == [Route.HARDWARE]


def whole_verdict(data: bytes) -> str:
    probe = pixels.probe(data, DECODE)
    try:
        pixels.decode_rgb(probe, DECODE)
    except pixels.BadImage as bad:
        return bad.reason
    return "none"


def is_taken(kind: ImageKind) -> bool:
    probe = pixels.probe(kind.data, DECODE)
    return probe.reason == "none" and route_of(probe.header, hardware=True) != Route.HOST


@pytest.mark.parametrize("by", ["native core", "library"])
def test_the_scan_check_says_what_the_whole_decode_says(by: str) -> None:
    core = find_native() if by == "native core" else None
    if by == "native core" and core is None:
        pytest.skip("no native core here")
    taken = [kind for kind in image_variants() if is_taken(kind)]
    assert len(taken) > 30
    for kind in taken:
        assert scan_fault(pixels.probe(kind.data, DECODE), core) == whole_verdict(kind.data), kind.name
    rng = np.random.default_rng(5)
    for form in ({}, {"progressive": True}, {"subsampling": "4:4:4"}, {"quality": 40}):
        whole = encode(photo(500, 375), "JPEG", **{"quality": 90, **form})
        verdicts = []
        for _ in range(50):
            at = int(rng.integers(len(whole) // 4, len(whole) - 100))
            mask = rng.integers(1, 256, 40, dtype=np.uint8)
            data = patch(whole, at, (np.frombuffer(whole, np.uint8)[at : at + 40] ^ mask).tobytes())
            if pixels.probe(data, DECODE).reason == "none":
                verdicts.append(scan_fault(pixels.probe(data, DECODE), core))
                assert verdicts[-1] == whole_verdict(data)
        assert verdicts.count("corrupt") >= 25, form


@pytest.fixture(scope="module")
def codec():
    made = Codec(Device(gpu=None, hardware=True), 1)
    yield made
    made.close()


@pytest.mark.parametrize("kind", [kind for kind in good_jpegs() if is_taken(kind)], ids=lambda kind: kind.name)
def test_nvimgcodec_decodes_on_the_cpu_as_libjpeg_does(kind: ImageKind, codec: Codec) -> None:
    probe = pixels.probe(kind.data, DECODE)
    data = pixels.with_known_jfif(probe.data, probe.header)
    route = route_of(probe.header, hardware=True)
    first, second = codec.decode(route, [data, data])
    stored = np.asarray(first)
    assert stored.shape == (probe.header.height, probe.header.width, 3), "EXIF orientation is left to us"
    assert np.array_equal(pixels.orient(stored, probe.header.orientation), pixels.decode_rgb(probe, DECODE))
    assert np.array_equal(np.asarray(second), stored)


def test_a_decoder_tells_what_it_refuses_and_asks_whether_memory_was_short(codec: Codec) -> None:
    cut = PHOTO[: len(PHOTO) // 2]
    images = codec.decode(Route.CUDA, [PHOTO, cut, b"no image at all", PHOTO])
    assert [image is None for image in images] == [False, True, True, False]
    asked = []
    watched = Codec(Device(None, hardware=True), 1, look_at_memory=lambda: asked.append(1))
    assert watched.decode(Route.HARDWARE, [cut]) == [None]
    watched.close()
    assert asked == [1]


def test_what_nvimgcodec_refuses_against_its_word_is_made_or_judged_by_the_cpu_engine(
    monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    # A Huffman table that is none, of which our header says nothing. Were it not for the check, it would get to nvImageCodec.
    bogus = patch(PHOTO, PHOTO.index(b"\xff\xc4") + 5, b"\xff" * 16)
    monkeypatch.setattr(decode_half, "scan_fault", lambda probe, core: "none")
    cpu = CpuEngine(2)
    spec = PipelineSpec()
    half = DecodeHalf(spec, 1, cpu, Device(None, hardware=True), fused=fused_count(spec))
    samples = [Sample(i, f"k{i}", data) for i, data in enumerate([PHOTO, bogus, encode(photo(), "PNG")])]
    with ThreadPoolExecutor(2) as pool:
        decoded = half.run(samples, [(0, i) for i in range(3)], codec, pool)
    assert sorted(decoded.images) == [0]
    assert sorted(decoded.made) == [2]
    assert [BAD_REASONS[code] for code in decoded.rows.reasons] == ["none", "corrupt", "none"]
    half.close()
    cpu.close()


def test_all_kinds_of_images_are_routed() -> None:
    routes = {route_of(read_header(kind.data), hardware=True) for kind in good_kinds()}
    assert routes == set(Route)


def test_a_part_is_decoded_as_the_whole_is_and_the_probe_says_so(codec: Codec) -> None:
    assert region_probe.why_not(Device(gpu=None, hardware=True)) == ""
    whole, part = codec.decode(Route.CUDA, [PHOTO, PHOTO], cuts=[None, (20, 31, 77, 100)])
    assert np.array_equal(np.asarray(part), np.asarray(whole)[20:97, 31:131])


def test_a_probe_that_fails_or_hangs_says_why() -> None:
    # No GPU here; where there is one, the CPU's decode and the GPU's are not in question.
    nowhere = Device(gpu=99, hardware=False)
    assert region_probe.why_not(nowhere)
    assert "0.01 s" in region_probe.why_not(nowhere, deadline_s=0.01)
