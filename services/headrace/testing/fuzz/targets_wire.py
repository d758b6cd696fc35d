"""What crosses between trainer, fetcher and worker: messages, slots, chunks, batch metas, errors."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import zlib
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
from xxhash import xxh3_64

from headrace.client.batch import Batch, pixel_view
from headrace.client.fetch_slots import FetchSlots
from headrace.client.transports import fetch_protocol
from headrace.client.transports.connections import Connections
from headrace.client.transports.local import LocalLink
from headrace.core.arrivals import Arrival, Arrivals
from headrace.core.batch import MILESTONES, BatchMeta
from headrace.core.errors import HeadraceError, from_code
from headrace.core.lease import TOKEN_AHEAD_US
from headrace.testing.fuzz.mutate import json_after
from headrace.testing.fuzz.runner import Target
from headrace.wire import messages, slot_format, status
from headrace.wire.batch_meta import decode_meta, encode_meta
from headrace.wire.messages import Chunk, Drain, Failed, Hello, Next, Ready, Refuse, Started, Welcome
from headrace.wire.meta_head import read_head, read_milestones

_F_ADD_SEALS, _SEALS = 1033, 2 | 16  # shrinking, writing by others
_HELLO = Hello(messages.PROTOCOL, "job", 1, 0, "nonce", 3, 8, (4, 6), "token")
_MESSAGES = (
    _HELLO,
    Next(7),
    Welcome(messages.PROTOCOL, "worker", 1, 8, 1 << 20),
    Started(7, 99),
    Chunk(7, 99, 4096, memoryview(b"data" * 20)),
    Ready(7, 99, 1, 4200, 12345),
    Failed(7, "batch_failed", "why", {"key": "k", "sample": 4}),
    Refuse("session_unknown", "why", {"job": "job"}),
    Drain(),
)


def _meta(count: int = 3) -> BatchMeta:
    ids = np.arange(count, dtype=np.int64)
    zeros = np.zeros(count, np.uint8)
    keys = [f"key-{i}" for i in range(count)]
    moments = dict.fromkeys(MILESTONES, 1.5)
    return BatchMeta("job", 1, 0, 7, 0, 7, 7, 1, 99, "w", "aa", "fp", ids, ids, zeros, zeros, keys, ids, [], moments)


def _metas() -> list[bytes]:
    plain = _meta()
    bad = replace(plain, status=np.array([0, 2, 1], np.uint8), reasons=np.array([0, 5, 0], np.uint8), bad_keys=["b"])
    multi = replace(plain, labels=np.eye(3, 5, dtype=np.uint8))
    texts = replace(plain, labels=None, label_json=[b"1", b'{"a": 2}', b"null"])
    return [encode_meta(meta) for meta in (plain, bad, multi, texts)]


def _slots() -> list[bytes]:
    made = []
    for meta in _metas():
        slot = bytearray(slot_format.slot_bytes(3 * 4 * 4 * 3, 4096))
        values = {"index": 7, "token": 99, "dtype": "uint8", "layout": "NHWC", "shape": (3, 4, 4, 3), "pixel_bytes": 144}
        used = slot_format.seal(memoryview(slot), meta, **values)  # type: ignore[arg-type]
        made.append(bytes(slot[:used]))
    return made


def _with_crc(_rng: Random, data: bytes) -> bytes:
    """The meta's checksum made to fit again."""
    if len(data) < slot_format.HEADER_BYTES:
        return data
    start, length = struct.unpack_from("<QI", data, 36)
    crc = zlib.crc32(data[start : start + length])
    return data[:48] + struct.pack("<I", crc) + data[52:]


def _read_slot(data: bytes) -> None:
    """As the client does: what each hand-over needs first, then what the trainer asks for."""
    slot = memoryview(data)
    header = slot_format.read_header(slot)
    meta = bytearray(slot[header.meta_offset : header.meta_offset + header.meta_bytes])
    head = read_head(meta)
    read_milestones(meta)
    if header.shape == (3, 4, 4, 3) and header.dtype == "uint8" and header.pixel_bytes == 144:  # as client.handover demands
        batch = Batch(head, meta, header, pixel_view(slot, header), "shm")
        assert batch.pixels.nbytes == 144
        assert batch.labels is None or len(batch.labels) == head.samples
        assert len(batch.status) == head.samples
        assert len(batch.keys) == len(batch.sample_ids) == head.samples
        list(batch.substituted)


_MARKED_BYTES = slot_format.slot_bytes(144, 4096)


def _marked() -> list[bytes]:
    made = []
    for used in _slots():
        slot = bytearray(used.ljust(_MARKED_BYTES, b"\0"))
        slot_format.mark(memoryview(slot), 7, 99, len(used))
        made.append(bytes(slot))
    return made


def _with_mark(rng: Random, data: bytes) -> bytes:
    """One of the mark's numbers another one, and a checksum that fits."""
    slot = bytearray(data[:_MARKED_BYTES].ljust(_MARKED_BYTES, b"\0"))
    numbers = [7, 99, 4096 + 192]
    numbers[rng.randrange(3)] = rng.choice((0, 1, 6, 8, 98, 4095, 4096, _MARKED_BYTES, _MARKED_BYTES + 1, 2**63, 2**64 - 1))
    slot_format.mark(memoryview(slot), *numbers)
    return bytes(slot)


def _take_marked(data: bytes) -> None:
    """As the thread that takes: what a worker marks in its slab, at any time, whatever it wrote there."""
    slot = memoryview(data[:_MARKED_BYTES].ljust(_MARKED_BYTES, b"\0"))
    slab = SimpleNamespace(number=1, slot_bytes=_MARKED_BYTES, view=lambda _: slot)
    link = SimpleNamespace(number=1, worker="w", slab=slab, marks=0)
    links: Any = SimpleNamespace(local={"w": link}, by_number=lambda _: None)
    arrivals = Arrivals(lambda _: 0, 1, 8, 4)
    arrivals.table(["w"], [99], 8, 0.0, 99)
    taken = Connections(links, arrivals, lambda: None, lambda _: None, lambda: None).look(7, 1.0)
    found = arrivals.get(7)
    assert taken == isinstance(found, Arrival)
    assert arrivals.have() == ((7,) if taken else ())
    if isinstance(found, Arrival):
        assert 99 <= found.token <= 99 + TOKEN_AHEAD_US
        assert slot_format.PIXEL_OFFSET <= found.total_bytes <= _MARKED_BYTES
        _read_slot(bytes(slot))


def _read_message(data: bytes) -> None:
    message = messages.decode(data)
    if isinstance(message, Failed | Refuse):
        str(from_code(message.code, message.message, message.ids))
    assert len(messages.encode(message)) <= 6 * len(data) + 64  # JSON may write a character as six


def _stream(*sent: messages.Message) -> bytes:
    raw = [messages.encode(message) for message in sent]
    return b"".join(struct.pack("<H", len(data)) + data for data in raw)


def _streams() -> list[bytes]:
    body = bytes(range(256)) * 20
    ready = Ready(5, 9, 1, len(body), xxh3_64(body).intdigest())
    halves = [Chunk(5, 9, 0, memoryview(body)[:4000]), Chunk(5, 9, 4000, memoryview(body)[4000:])]
    other = Chunk(6, 9, 0, memoryview(body)[:1000])
    return [
        _stream(*halves, ready),
        _stream(halves[0], other, halves[1], ready),
        _stream(other, other, Ready(6, 9, 1, 1000, 1)),
    ]


def _fill_slots(data: bytes) -> None:
    """A worker's stream into a slab whose last slot belongs to nobody, so that what is written outside would show."""
    memory = bytearray(5 * 8192)
    slots = FetchSlots(memoryview(memory)[:-8192], 4, 8192, 4, (4,))
    at = 0
    try:
        while at + 2 <= len(data):
            (length,) = struct.unpack_from("<H", data, at)
            message = messages.decode(data[at + 2 : at + 2 + length])
            at += 2 + length
            if isinstance(message, Chunk):
                slots.chunk(1, message)
            elif isinstance(message, Ready):
                slots.ready(1, message)
    finally:
        assert not any(memory[-8192:]), "written outside of the slab"
        assert not any(memory[:8192]), "written to the slot of an index that is had"


class _Link(LocalLink):
    """A rank's link over a socket that is connected already."""

    def __init__(self, connected: socket.socket) -> None:
        self.number, self.worker, self.slab, self._unsent = 1, "w", None, None
        self.more, self.marks = False, 0
        self._buffer = bytearray(messages.MAX_CONTROL_BYTES)
        connected.setblocking(False)
        self.socket = connected


class _Worker:
    """The other end of a rank's Unix socket, which says what it is given, with memory or with none."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._memory, 8 << 12)
        os.posix_fallocate(self._memory, 0, 8 << 12)
        fcntl.fcntl(self._memory, _F_ADD_SEALS, _SEALS)

    def speak(self, data: bytes) -> None:
        """Messages with two bytes of length each; the upper four bits say how many descriptors ride along."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
        link = _Link(ours)
        try:
            at = 0
            while at + 2 <= len(data):
                (head,) = struct.unpack_from("<H", data, at)
                length, count = head & 0xFFF, head >> 12
                socket.send_fds(theirs, [data[at + 2 : at + 2 + length]], [self._memory] * count)
                at += 2 + length
                list(link.receive())
        finally:
            if link.slab is not None:
                assert link.slab.close(0)
            assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was kept"  # noqa: PTH208
            link.close()
            theirs.close()


def _sayings() -> list[bytes]:
    def said(message: messages.Message, descriptors: int = 0) -> bytes:
        raw = messages.encode(message)
        return struct.pack("<H", len(raw) | descriptors << 12) + raw

    welcome = Welcome(messages.PROTOCOL, "w", 1, 2, 4 << 12)
    rest = said(Started(0, 5)) + said(Ready(0, 5, 1, 5000)) + said(Failed(1, "batch_failed", "why", {"key": "k"}))
    return [
        said(welcome, 1) + rest + said(Drain()),
        said(welcome, 3),
        said(Refuse("internal", "why", {})),
        said(welcome, 1) * 2,
    ]


class _Failed(grpc.RpcError):
    """A call that ended with an error detail."""

    def __init__(self, detail: bytes) -> None:
        super().__init__()
        self.detail = detail

    def trailing_metadata(self) -> Any:
        return ((status.METADATA_KEY, self.detail),)

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return "details"


def _read_error(data: bytes) -> None:
    error = status.error_from_rpc(cast("grpc.RpcError", _Failed(data)))
    str(error)
    status.detail_of(error)


def targets() -> list[Target]:
    """All targets of this file."""
    plain = [messages.encode(message) for message in _MESSAGES]
    connect = fetch_protocol.Connect(3, "host:1", "w", _HELLO)
    piped: list[fetch_protocol.FetchMessage] = [
        fetch_protocol.Config(8, 1 << 20, 3, (4,)), connect, fetch_protocol.Disconnect(3), fetch_protocol.Forward(0, Next(4)),
        fetch_protocol.Drop(3, 7), fetch_protocol.Down(3, "peer_gone", "why"), fetch_protocol.Ping(),
    ]  # fmt: skip
    error = HeadraceError("why", job="j", rank=4)
    return [
        Target("messages", plain, _read_message, special=json_after(1)),
        Target("fetch_protocol", [fetch_protocol.encode(one) for one in piped], fetch_protocol.decode, special=json_after(5)),
        Target("batch_meta", _metas(), decode_meta),
        Target("slot", _slots(), _read_slot, repair=_with_crc),
        Target("marks", _marked(), _take_marked, repair=_with_mark),
        Target("client_link", _sayings(), _Worker().speak),
        Target("chunks", _streams(), _fill_slots),
        Target("error_detail", [status.detail_of(error), status.detail_of(from_code("no_steps", "x", {}))], _read_error),
    ]
