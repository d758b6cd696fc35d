"""What data sets hold, made by anybody: tars, labels, image files, class lists, manifests, shard indexes, addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from headrace.coordinator import store_address
from headrace.core.batch import BAD_REASONS
from headrace.core.errors import HeadraceError
from headrace.core.image_header import check, read_header
from headrace.core.masking import mask_address
from headrace.core.pipeline_spec import Decode, PipelineSpec, RandomResizedCrop
from headrace.datasets import storage as places
from headrace.datasets.labels import LabelRule, Rule, parse_classes
from headrace.datasets.layout import expand_braces
from headrace.datasets.manifest import Manifest, Shard, hash_bytes
from headrace.datasets.scan import tar_entries
from headrace.datasets.shard_index import Entry, decode_block, decode_index, encode_index
from headrace.datasets.storage import ObjectInfo, ObjectMissing, Storage
from headrace.datasets.tar import walk
from headrace.telemetry.addresses import split_address
from headrace.testing.fuzz.mutate import mutate_json
from headrace.testing.fuzz.runner import Target
from headrace.testing.image_kinds import bad_kinds, good_kinds
from headrace.testing.tars import tar_bytes
from headrace.worker.engines.cpu import CpuEngine
from headrace.worker.engines.dali_input import plain_jpeg
from headrace.worker.engines.protocol import Sample
from headrace.worker.sources.sharded import ShardedSource

_RULES: tuple[Rule, ...] = ("cls", "txt", "json", "multi", "folder", "none")
_CLASSES = {"cat": 0, "dog": 1, "über": 2}


# --- tars and labels --------------------------------------------------------------------------------------------------


def _tars() -> list[bytes]:
    members = [
        ("a/1.jpg", b"x" * 700),
        ("a/1.cls", b"3"),
        ("a/1.json", b'{"label": 1}'),
        ("a/2.jpg", b"y"),
        ("a/2.txt", b"cat"),
    ]
    long = [("d" * 130 + "/ü.jpg", b"z" * 600), ("d" * 130 + "/ü.cls", b"4")]
    made = [tar_bytes(members, form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    return made + [tar_bytes(long, form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]


def _with_checksums(_rng: Random, data: bytes) -> bytes:
    """Every block that could be a header gets the checksum that fits it."""
    out = bytearray(data)
    for at in range(0, len(out) - 511, 512):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return bytes(out)


def _read_tar(data: bytes) -> None:
    """The parser asks for nothing outside, at most twice for each block, and what it finds lies inside."""
    steps = walk(len(data), lambda name, _: "payload" if name.endswith(("cls", "txt", "json")) else "crc", "x.tar")
    asked = 0
    try:
        start, length = next(steps)
        while True:
            assert 0 <= start <= start + length <= len(data), f"asks for {length} bytes at {start}"
            asked += 1
            assert asked <= 2 * (len(data) // 512 + 1), "goes round in circles"
            start, length = steps.send(data[start : start + length])
    except StopIteration as stop:
        scan = stop.value
    assert all(0 <= member.offset <= member.offset + member.size <= len(data) for member in scan.members)
    for rule in _RULES[:4]:
        for entry in tar_entries("x.tar", scan, LabelRule(rule, _CLASSES if rule == "txt" else {}), ()).entries:
            assert entry.reason in BAD_REASONS
            entry.key.encode()


def _read_label(data: bytes) -> None:
    rule, classes = _RULES[data[0] % 6 if data else 0], _CLASSES if data[:1] > b"\x7f" else {}
    parts = dict.fromkeys(("cls", "txt", "json"), data[1:])
    label = LabelRule(rule, classes).read(data[1:200].decode("utf-8", "replace"), parts)
    assert label is None or -(2**63) <= label.value < 2**63


def _read_classes(data: bytes) -> None:
    numbers = parse_classes(data.decode("utf-8", "replace"))
    assert all(type(value) is int for value in numbers.values())


# --- images -----------------------------------------------------------------------------------------------------------


def _read_header(data: bytes) -> None:
    header = read_header(data)
    assert header.reason in BAD_REASONS
    assert 1 <= header.orientation <= 8
    assert header.width >= 0 <= header.height
    assert header.reason != "none" or (header.width * header.height > 0 and header.format)
    assert check(header, Decode()) in BAD_REASONS
    if header.reason == "none" and header.format == "jpeg":
        again = read_header(plain_jpeg(data, header))
        assert (again.width, again.height, again.orientation) == (header.width, header.height, header.orientation)


class _Decoder:
    """The cpu engine on one image; images of more than a megapixel are refused by their header, so that memory is bounded."""

    def __init__(self) -> None:
        spec = PipelineSpec((RandomResizedCrop((16, 16)),), decode=Decode(max_pixels=1_000_000))
        self._prepared = CpuEngine(1).prepare(spec, 0)
        self._out = memoryview(bytearray(spec.pixel_bytes(1)))

    def decode(self, data: bytes) -> None:
        result = self._prepared.run([Sample(0, "k", data)], [(0, 0)], self._out)
        assert 0 <= int(result.reasons[0]) < len(BAD_REASONS)


# --- manifests and indexes --------------------------------------------------------------------------------------------


class _Memory(Storage):
    """A storage of a few objects."""

    is_local = False

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.address = "memory"
        self._objects = objects

    async def get(self, path: str, most_bytes: int = 1 << 40) -> bytes:
        places.check_path(path)
        if path not in self._objects:
            raise ObjectMissing(f"{path} is not there", path=path)
        return self._objects[path]

    async def get_range(self, path: str, start: int, length: int, tag: str = "") -> memoryview:
        assert start >= 0 <= length
        assert length <= 1 << 26, "more is asked for than there can be"
        return memoryview(await self.get(path))[start : start + length]

    async def head(self, path: str) -> ObjectInfo:
        return ObjectInfo(path, len(await self.get(path)), "t")

    async def put(self, path: str, data: bytes) -> None:
        raise AssertionError("nothing is written")

    async def list(self) -> list[ObjectInfo]:
        raise AssertionError("nothing is listed")

    async def close(self) -> None:
        pass


def _index(kind: str, count: int = 5) -> bytes:
    payload = {"multi": np.array([1, 3], "<u4").tobytes(), "json": b'{"a": 1}'}.get(kind, b"")
    entries = [Entry(f"key-{i}", 10 * i, 10, i % 3, payload, crc32=7 if i % 2 else None) for i in range(count)]
    return encode_index(entries, 100)


def _manifests() -> list[bytes]:
    made = []
    for kind in ("int", "multi", "json"):
        index = _index(kind)
        shard = Shard("a.tar", 100, 5, "", "t", ".index/a.idx", len(index), hash_bytes(index))
        manifest = Manifest("webdataset", kind, 4, 3, 5, 0, 16, 16, ("a", "b", "c"), (shard,), checksums=True)
        made.append(manifest.content)
    folder = replace(Manifest.from_content(made[0], "x"), kind="folder", root="/data", classes=())
    return [*made, folder.content]


def _read_manifest(data: bytes) -> None:
    manifest = Manifest.from_content(data, "x")
    assert int(manifest.ends[-1] if len(manifest.ends) else 0) == manifest.samples
    assert Manifest.from_content(manifest.content, "x") == manifest
    for shard in manifest.shards:
        assert not places.join_address("s3://bucket/set", shard.name).endswith("/..")


def _read_index(data: bytes) -> None:
    for block in (decode_index(data, "x"), decode_block(data[64 : 64 + 80], data[264:], 0, 100, "x")):
        for row in range(len(block.records)):
            block.key(row)
            block.payload(row)
            assert int(block.records[row]["offset"]) + int(block.records[row]["length"]) <= 2**63


class _Reader:
    """The worker's source over a hostile index: the manifest has its hash, so whoever wrote both is believed so far."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def read(self, data: bytes) -> None:
        self._loop.run_until_complete(self._read(data))

    async def _read(self, data: bytes) -> None:
        kind = ("int", "multi", "json")[len(data) % 3]
        count = max(0, len(data) - 64) // 48
        shard = Shard("a.tar", 100, min(5, count), "", "t", "i.idx", len(data), hash_bytes(data))
        manifest = Manifest("webdataset", kind, 4, 0, shard.samples, 0, 16, 16, (), (shard,), checksums=True)  # type: ignore[arg-type]
        stored = _Memory({"a.tar": bytes(100), "i.idx": data})
        for whole_bytes in (None, 0):
            source = ShardedSource(manifest, stored, stored)
            if whole_bytes is not None:
                source._index._whole_bytes = whole_bytes
            try:
                batch = await source.read(range(shard.samples))
                assert all(sample.reason in BAD_REASONS for sample in batch.samples)
            finally:
                await source.close()


# --- addresses --------------------------------------------------------------------------------------------------------


def _read_address(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for call in (split_address, places.local_path, places.split_address, places.check_path, _braces, _store):
        with contextlib.suppress(HeadraceError):
            call(text)
    mask_address(text)


def _braces(text: str) -> None:
    assert len(expand_braces(text, 500)) <= 500


def _store(text: str) -> None:
    store_address.connect(text)


_ADDRESSES = (
    "redis://user:pass@host:6379/0", "sentinel://:pass@a:1,b:2/name/0", "unix:///tmp/x.sock", "s3://bucket/a/b?versionId=1",
    "https://user:pass@host/x-{000..003}.tar?X-Amz-Signature=abc", "file:///data/x", "/data/a-{0..9}.tar",
    "~nobody-of-that-name/x", "~/x", "[::1]:7300",
)  # fmt: skip


def targets() -> list[Target]:
    """All targets of this file."""
    images = [kind.data for kind in (*good_kinds(), *bad_kinds())]
    labels = [b"\0" + b"3", b"\1cat", b'\x82{"label": "dog"}', b"\3[1, 2]", b"\x83cat, dog", b"\4a/cat/b"]
    classes = [b"cat\ndog\n", json.dumps(["a", "b"]).encode(), json.dumps({"a": 0, "b": 1}).encode()]
    indexes: Sequence[bytes] = [_index(kind) for kind in ("int", "multi", "json")]
    return [
        Target("tar", _tars(), _read_tar, repair=_with_checksums),
        Target("labels", labels, _read_label, special=lambda rng, data: data[:1] + mutate_json(rng, data[1:])),
        Target("classes", classes, _read_classes, special=mutate_json),
        Target("image_header", images, _read_header),
        Target("decode", images, _Decoder().decode, memory=64 << 20, lines=20_000),
        Target("manifest", _manifests(), _read_manifest, special=mutate_json),
        Target("shard_index", indexes, _read_index),
        Target("source", indexes, _Reader().read, lines=30_000),
        Target("addresses", [text.encode() for text in _ADDRESSES], _read_address, lines=20_000),
    ]
