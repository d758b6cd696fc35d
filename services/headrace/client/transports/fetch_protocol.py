"""What the trainer's process and its fetcher say to each other over their SOCK_SEQPACKET pair.

One datagram is one message: a type byte, the link's number (u32, little-endian; 0 where it concerns none), then the rest.

The trainer sends
  CONFIG      first of all, JSON: the slab's slots and slot_bytes, next index, indexes that are had, paths of TLS files
  CONNECT     JSON: target (host:port), worker, and the HELLO to send; opens link
  DISCONNECT  ends link
  FORWARD     NEXT, for all links at once (link 0)
  DROP        u64 index: the batch last said READY by link is refused, its slot may be written again; link 0: one that
              CONFIG said is had is lost
  PING        sent back at once
The fetcher sends
  FORWARD     STARTED, READY, FAILED, WELCOME, REFUSE or DRAIN that came by link; READY once the bytes are there and checked
  DOWN        JSON code, message: link is over
  PING        the answer

A link's number is never used again, so a message about a link that was replaced meanwhile is known as such.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.errors import ProtocolMismatch
from headrace.wire import messages
from headrace.wire.messages import Hello, Message
from headrace.wire.tls import ClientTls, TlsFiles

MAX_BYTES = messages.MAX_CONTROL_BYTES + 1024
_CONFIG, _CONNECT, _DISCONNECT, _FORWARD, _DROP, _DOWN, _PING = range(1, 8)
_HEAD = struct.Struct("<BI")
_INDEX = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of the files that workers are called with; no `ca`: without TLS. The fetcher reads them for each stream."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    @staticmethod
    def of(tls: ClientTls | None) -> Tls:
        """As it travels."""
        return Tls(tls.files.ca, tls.files.cert, tls.files.key, tls.server_name) if tls else Tls()

    @property
    def client(self) -> ClientTls | None:
        """As it is used. Raises ConfigInvalid."""
        return ClientTls(TlsFiles(self.cert, self.key, self.ca), self.server_name) if self.ca else None


@dataclass(frozen=True, slots=True)
class Config:
    """The slab to fill and what is in it."""

    slots: int
    slot_bytes: int
    next: int
    have: tuple[int, ...]
    tls: Tls = Tls()


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a stream to a worker."""

    link: int
    target: str
    worker: str
    hello: Hello


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End a stream; nothing more is said about it."""

    link: int


@dataclass(frozen=True, slots=True)
class Forward:
    """A data plane message that goes to or came from a link."""

    link: int
    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """A READY was refused."""

    link: int
    index: int


@dataclass(frozen=True, slots=True)
class Down:
    """A stream is over; the code is one of core.errors."""

    link: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Yes."""


FetchMessage = Config | Connect | Disconnect | Forward | Drop | Down | Ping


def encode(message: FetchMessage) -> bytes:
    """The datagram of a message."""
    match message:
        case Config():
            kind, link, rest = _CONFIG, 0, _json(asdict(message))
        case Connect(link, target, worker, hello):
            kind, rest = _CONNECT, _json({"target": target, "worker": worker, "hello": asdict(hello)})
        case Disconnect(link):
            kind, rest = _DISCONNECT, b""
        case Forward(link, inner):
            kind, rest = _FORWARD, messages.encode(inner)
        case Drop(link, index):
            kind, rest = _DROP, _INDEX.pack(index)
        case Down(link, code, text):
            kind, rest = _DOWN, _json({"code": code, "message": text})
        case Ping():
            kind, link, rest = _PING, 0, b""
    return _HEAD.pack(kind, link) + rest


def decode(data: bytes | memoryview) -> FetchMessage:
    """Parse one datagram. Raises ProtocolMismatch on anything that is not one."""
    view = memoryview(data)
    try:
        kind, link = _HEAD.unpack_from(view)
        rest = view[_HEAD.size :]
        match kind:
            case 4:
                return Forward(link, messages.decode(rest))
            case 3 | 7 if not rest:
                return Disconnect(link) if kind == _DISCONNECT else Ping()
            case 5:
                return Drop(link, _INDEX.unpack(rest)[0])
            case 1:
                fields = json.loads(bytes(rest))
                return Config(**{**fields, "have": tuple(fields["have"]), "tls": Tls(**fields["tls"])})
            case 2:
                fields = json.loads(bytes(rest))
                hello = {**fields["hello"], "have": tuple(fields["hello"]["have"])}
                return Connect(link, fields["target"], fields["worker"], Hello(**hello))
            case 6:
                return Down(link, **json.loads(bytes(rest)))
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolMismatch(f"malformed message between trainer and fetcher: {error}") from error
    raise ProtocolMismatch(f"unknown message type {kind} between trainer and fetcher")


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
