"""Finds the members of a tar and groups them into samples.

`walk` is a generator without I/O: it yields the (offset, length) that it wants to see and is sent the bytes. So one parser
serves local files, where only headers and labels are read, and object stores, where a driver decides what to fetch at once.

Read: ustar, PAX (path and size) and GNU (long names, base-256 sizes). Members that are not regular files are only counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Literal

from headrace.core import limits
from headrace.core.errors import ShardInvalid

BLOCK = 512
CRC_PIECE_BYTES = 4 << 20

Interest = Literal["skip", "payload", "crc"]
Walk = Generator[tuple[int, int], "bytes | memoryview", "TarScan"]


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file of a tar. offset, size: of its data in bytes. payload: its data where asked for. crc32: where asked
    for."""

    name: str
    offset: int
    size: int
    payload: bytes | None = None
    crc32: int | None = None


@dataclass(slots=True)
class TarScan:
    """What a tar holds. damage: empty, or what is wrong with it and where. cut: name of a member whose data end early.
    skipped: how many members hold no data of their own (links, devices, sparse files); skipped_first: the first one's name."""

    members: list[Member] = field(default_factory=list)
    skipped: int = 0
    skipped_first: str = ""
    damage: str = ""
    cut: Member | None = None


@dataclass(slots=True)
class Parts:
    """One sample: its key and its members by extension (what follows the base name's first dot, in lower case)."""

    key: str
    parts: dict[str, Member]
    repeated: int = 0


def walk(size: int, interest: Callable[[str, int], Interest], where: str) -> Walk:
    """Find all members of a tar of `size` bytes. interest(name, size) says what to do with a member's data.

    Raises ShardInvalid for an empty file and for what is not a tar; damage further on is reported with the members before it.
    """
    if size == 0:
        raise ShardInvalid(f"{where} is empty: remove it, or copy it again", shard=where)
    scan = TarScan()
    offset = 0
    extension = _Extension()
    while True:
        if offset + BLOCK > size:
            scan.damage = f"ends without its end mark at {size} bytes: it may be cut"
            return scan
        raw = bytes((yield offset, BLOCK))
        if raw == bytes(BLOCK):
            return scan
        header = _parse(raw)
        if header is None and offset == 0:
            raise ShardInvalid(f"{where} is {_what(raw)}, not a tar", shard=where)
        if header is None or (header.extends and header.size > limits.TAR_EXTENSION_BYTES):
            scan.damage = f"no member header at byte {offset}"
            return scan
        name, length = (header.name, header.size) if header.extends else extension.apply(header)
        start = offset + BLOCK
        if start + length > size:
            scan.damage = f"cut inside {name!r}: it ends at {size} of at least {start + length} bytes"
            scan.cut = Member(name, start, length) if header.is_file else None
            return scan
        if header.kind == b"S":
            start = yield from _after_map(raw, start, size)
        offset = start + -(-length // BLOCK) * BLOCK
        if header.extends:
            extension.read(header.kind, bytes((yield start, length)))
            continue
        if header.is_file and not extension.sparse:
            scan.members.append((yield from _member(name, start, length, interest(name, length))))
        elif header.kind != b"5" and not name.endswith("/"):
            scan.skipped += 1
            scan.skipped_first = scan.skipped_first or name
        extension = _Extension()


def _after_map(raw: bytes, start: int, size: int) -> Generator[tuple[int, int], bytes | memoryview, int]:
    """Where the data of an old GNU sparse file begin: its map goes on in blocks that its size does not count."""
    more = raw[482]
    while more and start + BLOCK <= size:
        more = bytes((yield start, BLOCK))[504]
        start += BLOCK
    return start


@dataclass(frozen=True, slots=True)
class _Header:
    kind: bytes
    name: str
    size: int

    @property
    def extends(self) -> bool:
        """True for a header whose data say something about the next member (long name, long link, PAX)."""
        return self.kind in (b"L", b"K", b"x", b"g")

    @property
    def is_file(self) -> bool:
        # Only V7 tars mark folders by a slash; elsewhere a name of more than 100 bytes may have one where it is cut.
        return self.kind in (b"0", b"7") or (self.kind == b"\0" and not self.name.endswith("/"))


@dataclass(slots=True)
class _Extension:
    """Name and size for the next member, where its own header has no room for them. sparse: its data are a map and pieces."""

    name: str | None = None
    size: int | None = None
    sparse: bool = False

    def read(self, kind: bytes, data: bytes) -> None:
        if kind == b"L":
            self.name = _text(data.rstrip(b"\0"))
        elif kind == b"x":
            fields = _pax(data)
            self.sparse = any(keyword.startswith("GNU.sparse.") for keyword in fields)
            self.name = fields.get("GNU.sparse.name", fields.get("path", self.name))
            size = fields.get("size", "")
            self.size = int(size) if size.isascii() and size.isdigit() and len(size) <= 20 else self.size

    def apply(self, header: _Header) -> tuple[str, int]:
        return self.name or header.name, header.size if self.size is None else self.size


def _parse(raw: bytes) -> _Header | None:
    """A header, or None for what is not one."""
    try:
        return _Header(raw[156:157], _name(raw), _number(raw[124:136])) if _checksum_fits(raw) else None
    except ValueError:
        return None


def _member(name: str, start: int, length: int, interest: Interest) -> Generator[tuple[int, int], bytes | memoryview, Member]:
    if interest == "skip":
        return Member(name, start, length)
    if interest == "payload":
        return Member(name, start, length, payload=bytes((yield start, length)))
    crc32 = 0
    for at in range(start, start + length, CRC_PIECE_BYTES):
        crc32 = zlib.crc32((yield at, min(CRC_PIECE_BYTES, start + length - at)), crc32)
    return Member(name, start, length, crc32=crc32)


def split_name(name: str) -> tuple[str, str]:
    """(key, extension): the key is the path with the base name up to its first dot; a leading dot belongs to the base name."""
    directory, slash, base = name.removeprefix("./").rpartition("/")
    dot = base.find(".", 1)
    if dot < 0:
        return directory + slash + base, ""
    return directory + slash + base[:dot], base[dot + 1 :].lower()


def group(members: list[Member]) -> list[Parts]:
    """Members by key, in the order of first appearance, wherever in the tar they lie; of repeated parts the first counts."""
    samples: dict[str, Parts] = {}
    for member in members:
        key, extension = split_name(member.name)
        sample = samples.setdefault(key, Parts(key, {}))
        if extension in sample.parts:
            sample.repeated += 1
        else:
            sample.parts[extension] = member
    return list(samples.values())


def _checksum_fits(header: bytes) -> bool:
    stored = _number(header[148:156])
    unsigned = sum(header) - sum(header[148:156]) + 8 * 32
    signed = unsigned - 256 * sum(byte > 127 for byte in header[:148] + header[156:])
    return stored in (unsigned, signed)


def _number(raw: bytes) -> int:
    if raw[0] & 0x80:  # GNU base 256
        return int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:], "big")
    text = raw.split(b"\0", 1)[0].strip()
    if text.strip(b"01234567"):
        raise ValueError("no octal number")  # int() would take signs and underscores: a member could lie before its header
    return int(text, 8) if text else 0


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:262] == b"ustar" and header[263:265] == b"00":
        prefix = header[345:500].split(b"\0", 1)[0]
        if prefix:
            name = prefix + b"/" + name
    return _text(name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _pax(raw: bytes) -> dict[str, str]:
    """The records `<length> <keyword>=<value>\\n` of a PAX header; a malformed rest is ignored, as tar does."""
    fields: dict[str, str] = {}
    at = 0
    while at < len(raw):
        digits, space, _ = raw[at : at + 20].partition(b" ")
        if not space or not digits.isdigit() or not 0 < int(digits) <= len(raw) - at:
            break
        record = raw[at + len(digits) + 1 : at + int(digits) - 1]
        keyword, _, value = record.partition(b"=")
        fields[_text(keyword)] = _text(value)
        at += int(digits)
    return fields


def _what(header: bytes) -> str:
    for magic, name in (
        (b"\x1f\x8b", "compressed by gzip (unpack it: a compressed tar cannot be read by range)"),
        (b"BZh", "compressed by bzip2 (unpack it)"),
        (b"\xfd7zXZ", "compressed by xz (unpack it)"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd (unpack it)"),
        (b"PK", "a zip file"),
        (b"<", "a text that looks like a web page"),
    ):
        if header.startswith(magic):
            return name
    return "something else"
