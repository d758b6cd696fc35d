"""The data plane's messages between a rank and a producer, the same on a Unix socket, a fetcher's pipe and a gRPC stream.

One message is one datagram of a SOCK_SEQPACKET socket or one gRPC message. Little-endian: a type byte, then a fixed
struct, then for HELLO, WELCOME, FAILED and REFUSE a JSON object and for CHUNK raw bytes. Every length is bounded;
whatever does not parse is a ProtocolMismatch, never another exception.

A rank sends
  HELLO    protocol, job, attempt, rank, nonce, next index, window, and the indexes above it that it has already
           gpu and memories where it takes batches on a GPU (wire.device_memory)
  NEXT     its lowest index not yet released: all below are free again; this one number is the whole of the credit
  PROBED   it sees the worker's pattern in the device slab and has answered it there; before that nothing is made for it
A producer sends
  WELCOME  slots, slot_bytes, generation of its slab (on a Unix socket the slab's descriptor rides along); to a rank that takes
           batches on a GPU also the device slab for the pixels (its descriptor, too, or a handle), or why there is none
  STARTED  it began to make an index, under a token
  CHUNK    bytes at an offset of an index's slot (gRPC only)
  READY    index is complete in its slot (`index % slots`), under a token, with its total bytes (and on gRPC a checksum)
  FAILED   index cannot be made; carries the error
  REFUSE   the connection cannot be served; carries the error, then the socket closes
  DRAIN    nothing new will be started here
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field, replace

from headrace.core import limits
from headrace.core.errors import Ids, ProtocolMismatch

# major * 1000 + minor. A peer with the same major and a minor at most one lower is served.
PROTOCOL = 2001
MAX_CONTROL_BYTES = limits.MESSAGE_BYTES
CHUNK_BYTES = limits.CHUNK_BYTES

_HELLO, _NEXT, _WELCOME, _STARTED, _CHUNK, _READY, _FAILED, _REFUSE, _DRAIN, _PROBED = range(1, 11)
_NEXT_S = struct.Struct("<BQ")
_STARTED_S = struct.Struct("<BQQ")
_CHUNK_S = struct.Struct("<BQQQI")
_READY_S = struct.Struct("<BQQQQQ")


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank introduces itself. have: indexes in [next, next + window) that it needs no more.

    gpu: UUID of the GPU on which it takes batches, or empty; memories: kinds of device memory (wire.device_memory) that it can
    import, the best first, with commas between.
    """

    protocol: int
    job: str
    attempt: int
    rank: int
    nonce: str
    next: int
    window: int
    have: tuple[int, ...] = ()
    token: str = field(default="", repr=False)
    gpu: str = ""
    memories: str = ""


@dataclass(frozen=True, slots=True)
class Next:
    """Lowest index not yet released."""

    index: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The producer's slab: `slots` slots of `slot_bytes` each; generation differs for each slab of one producer.

    memory: kind of the device slab that holds the pixels, `slots` slots of `device_slot_bytes` on the GPU of UUID `gpu`; empty:
    pixels lie in the slab itself, and `why_not` says so to a rank that asked for a GPU. handle: what to import the device slab
    by, in hexadecimal; empty where its descriptor rides along. nonce: of the probe's patterns.
    """

    protocol: int
    worker: str
    generation: int
    slots: int
    slot_bytes: int
    memory: str = ""
    gpu: str = ""
    device_slot_bytes: int = 0
    handle: str = ""
    nonce: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """The producer began an index under a token."""

    index: int
    token: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of an index's slot."""

    index: int
    token: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Ready:
    """An index is complete. checksum: of the chunks on gRPC (see docs/dataplane.md), 0 in shared memory."""

    index: int
    token: int
    generation: int
    total_bytes: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """An index cannot be made; the error is rebuilt with core.errors.from_code."""

    index: int
    code: str
    message: str
    ids: Ids


@dataclass(frozen=True, slots=True)
class Refuse:
    """The connection cannot be served."""

    code: str
    message: str
    ids: Ids


@dataclass(frozen=True, slots=True)
class Drain:
    """Nothing new will be started here."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The device slab is mapped, and the pattern in it is answered."""


Message = Hello | Next | Welcome | Started | Chunk | Ready | Failed | Refuse | Drain | Probed

_EMPTY_TYPES: dict[int, type[Drain] | type[Probed]] = {_DRAIN: Drain, _PROBED: Probed}
_EMPTY_CODES: dict[type, int] = {cls: code for code, cls in _EMPTY_TYPES.items()}
_JSON_TYPES: dict[int, type] = {_HELLO: Hello, _WELCOME: Welcome, _FAILED: Failed, _REFUSE: Refuse}
_JSON_CODES: dict[type, int] = {cls: code for code, cls in _JSON_TYPES.items()}
# What is longer than a name or a short text; an error of another side may quote an address.
_TEXTS = {"message": limits.ERROR_CHARS, "token": limits.TOKENS_CHARS, "why_not": limits.ERROR_CHARS}
_FIELD_TYPES: dict[type, dict[str, type | tuple[type, ...]]] = {
    Hello: {
        "protocol": int,
        "job": str,
        "attempt": int,
        "rank": int,
        "nonce": str,
        "next": int,
        "window": int,
        "have": list,
        "token": str,
        "gpu": str,
        "memories": str,
    },
    Welcome: {
        "protocol": int,
        "worker": str,
        "generation": int,
        "slots": int,
        "slot_bytes": int,
        "memory": str,
        "gpu": str,
        "device_slot_bytes": int,
        "handle": str,
        "nonce": str,
        "why_not": str,
    },
    Failed: {"index": int, "code": str, "message": str, "ids": dict},
    Refuse: {"code": str, "message": str, "ids": dict},
}
# Added in 2001, and left out where empty: a peer of 2000 refuses fields that it does not know.
_LATER: dict[type, frozenset[str]] = {
    Hello: frozenset({"gpu", "memories"}),
    Welcome: frozenset({"memory", "gpu", "device_slot_bytes", "handle", "nonce", "why_not"}),
}
_NO_FIELDS: frozenset[str] = frozenset()


def encode(message: Message) -> bytes:
    """The bytes of a message. For CHUNK on the hot path use `chunk_header` and join once."""
    match message:
        case Next(index):
            return _NEXT_S.pack(_NEXT, index)
        case Started(index, token):
            return _STARTED_S.pack(_STARTED, index, token)
        case Ready(index, token, generation, total_bytes, checksum):
            return _READY_S.pack(_READY, index, token, generation, total_bytes, checksum)
        case Chunk(index, token, offset, data):
            return b"".join((chunk_header(index, token, offset, len(data)), data))
        case Drain() | Probed():
            return bytes([_EMPTY_CODES[type(message)]])
        case _:
            if isinstance(message, Failed | Refuse):
                message = _within_limits(message)
            later = _LATER.get(type(message), _NO_FIELDS)
            fields = {name: value for name, value in asdict(message).items() if value or name not in later}
            return bytes([_JSON_CODES[type(message)]]) + json.dumps(fields, separators=(",", ":")).encode()


def next_message(index: int) -> bytes:
    """The bytes of NEXT: each batch sends one."""
    return _NEXT_S.pack(_NEXT, index)


def _within_limits(message: Failed | Refuse) -> Failed | Refuse:
    """An error as the other side takes it: what went wrong here must get through, whatever its text."""
    ids: Ids = {}
    for name, value in list(message.ids.items())[: limits.STATUS_IDS]:
        small = isinstance(value, int) and -(2**63) <= value < 2**64
        ids[_cut(name, limits.NAME_CHARS)] = value if small else _cut(str(value), limits.TEXT_CHARS)
    return replace(message, message=_cut(message.message, limits.ERROR_CHARS), ids=ids)


def _cut(value: str, most: int) -> str:
    return value[:most].encode("utf-8", "replace").decode()


def chunk_header(index: int, token: int, offset: int, length: int) -> bytes:
    """What goes before a chunk's bytes."""
    return _CHUNK_S.pack(_CHUNK, index, token, offset, length)


def decode(data: bytes | memoryview) -> Message:
    """Parse one message. Raises ProtocolMismatch on anything that is not one. A CHUNK's data is a view into `data`."""
    view = memoryview(data)
    if len(view) == 0:
        raise ProtocolMismatch("empty data plane message")
    kind = view[0]
    try:
        if kind == _CHUNK:
            _, index, token, offset, length = _CHUNK_S.unpack_from(view)
            if length != len(view) - _CHUNK_S.size or length > CHUNK_BYTES:
                raise ProtocolMismatch("chunk has another length than it says", index=index)
            return Chunk(index, token, offset, view[_CHUNK_S.size :])
        if kind == _NEXT:
            return Next(_NEXT_S.unpack(view)[1])
        if kind == _STARTED:
            return Started(*_STARTED_S.unpack(view)[1:])
        if kind == _READY:
            return Ready(*_READY_S.unpack(view)[1:])
        if kind in _EMPTY_TYPES and len(view) == 1:
            return _EMPTY_TYPES[kind]()
    except struct.error as error:
        raise ProtocolMismatch(f"data plane message of type {kind} has a wrong length {len(view)}") from error
    if kind in _JSON_TYPES and len(view) <= MAX_CONTROL_BYTES:
        return _decode_json(_JSON_TYPES[kind], bytes(view[1:]))
    raise ProtocolMismatch(f"unknown data plane message type {kind} of {len(view)} bytes")


def _decode_json(cls: type[Message], text: bytes) -> Message:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolMismatch(f"{cls.__name__} message is not JSON") from error
    expected = _FIELD_TYPES[cls]
    if not isinstance(fields, dict) or set(expected) - _LATER.get(cls, _NO_FIELDS) - set(fields) or set(fields) - set(expected):
        raise ProtocolMismatch(f"{cls.__name__} message has wrong fields")
    for name, value in fields.items():
        kind = expected[name]
        out_of_range = isinstance(value, int) and not 0 <= value < 2**64
        if not isinstance(value, kind) or isinstance(value, bool) or out_of_range:
            raise ProtocolMismatch(f"{cls.__name__}.{name} has a wrong type or range")
        if isinstance(value, str):
            limits.text(value, f"{cls.__name__}.{name}", _TEXTS.get(name, limits.TEXT_CHARS))
    if cls is Hello:
        have = fields["have"]
        if len(have) > limits.HAVE_INDEXES or not all(type(item) is int and 0 <= item < 2**64 for item in have):
            raise ProtocolMismatch("Hello.have must be indexes")
        fields["have"] = tuple(have)
    if "ids" in fields:
        _check_ids(cls.__name__, fields["ids"])
    return cls(**fields)


def _check_ids(of: str, ids: dict[str, object]) -> None:
    limits.at_most(len(ids), limits.STATUS_IDS, f"ids in {of}")
    for name, value in ids.items():
        limits.text(name, f"a name in {of}.ids", limits.NAME_CHARS)
        if isinstance(value, str):
            limits.text(value, f"{of}.ids", limits.ADDRESS_CHARS)
        elif type(value) is not int or not -(2**63) <= value < 2**64:
            raise ProtocolMismatch(f"{of}.ids must be texts or numbers")


def check_protocol(peer: int, who: str) -> None:
    """Raise ProtocolMismatch unless `peer` has our major version and a minor at most one lower (higher minors serve us)."""
    if peer // 1000 != PROTOCOL // 1000 or peer < PROTOCOL - 1:
        raise ProtocolMismatch(
            f"{who} speaks protocol {peer // 1000}.{peer % 1000}, this side {PROTOCOL // 1000}.{PROTOCOL % 1000}: "
            "upgrade the older one",
            peer_protocol=peer,
        )
