"""Drives the tar parser over a storage, and turns what is found into index entries."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from headrace.core.errors import LabelInvalid
from headrace.datasets.exclude import Excluded
from headrace.datasets.labels import LABEL_EXTENSIONS, MAX_LABEL_BYTES, Label, LabelRule
from headrace.datasets.shard_index import MAX_IMAGE_BYTES, MAX_KEY_BYTES, Entry
from headrace.datasets.storage import Storage
from headrace.datasets.storage_local import LocalStorage, pread_all
from headrace.datasets.tar import Interest, Member, Parts, TarScan, Walk, group, split_name, walk

IMAGE_EXTENSIONS = frozenset(
    (
        "jpg",
        "jpeg",
        "jpe",
        "jfif",
        "png",
        "webp",
        "bmp",
        "gif",
        "tif",
        "tiff",
        "ppm",
        "pgm",
        "pbm",
        "pnm",
        "avif",
        "heic",
        "heif",
        "jp2",
        "j2k",
        "img",
        "image",
    )
)
SUSPICIOUS_PARTS = 16  # more parts than any real sample has: the key rule does not fit these names
# Object stores: what is skipped by less than this is read through; a request costs as long as a MiB or so.
READ_THROUGH_BYTES = 1 << 20
CHUNK_BYTES = 4 << 20
PROBE_BYTES = 64 << 10


@dataclass(slots=True)
class Found:
    """Samples of one shard. names[i]: class name of entry i, still to be numbered, or empty. details: of bad ones, for
    people. excluded: samples left out by name; matched: the entries of the exclusions that they fit."""

    entries: list[Entry] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    details: list[tuple[str, str, str]] = field(default_factory=list)  # key, reason, what was wrong
    warnings: list[str] = field(default_factory=list)
    excluded: int = 0
    matched: set[Excluded] = field(default_factory=set)

    def leave_out(self, exclude: Collection[Excluded], key: str, shard: str) -> bool:
        """True, noted, for a sample that is excluded."""
        entries = {entry for entry in (key, (shard, key)) if entry in exclude}
        self.excluded += bool(entries)
        self.matched |= entries
        return bool(entries)

    def number(self, rule: LabelRule) -> None:
        """Give samples the numbers of their class names; one that has none is bad."""
        for i, (entry, name) in enumerate(zip(self.entries, self.names, strict=True)):
            if not name:
                continue
            try:
                self.entries[i] = replace(entry, label=rule.number_of(name))
            except LabelInvalid as error:
                if entry.reason == "none":
                    self.entries[i] = Entry(entry.key, 0, 0, -1, b"", "bad_label", None)
                    self.details.append((entry.key, "bad_label", error.message))


def is_image(extension: str) -> bool:
    """True for an image's extension, also behind others (`seg.png`)."""
    return extension.rpartition(".")[2] in IMAGE_EXTENSIONS


def _interest(checksums: bool) -> Callable[[str, int], Interest]:
    def interest(name: str, size: int) -> Interest:
        extension = split_name(name)[1]
        if extension in LABEL_EXTENSIONS and size <= MAX_LABEL_BYTES:
            return "payload"
        return "crc" if checksums and is_image(extension) and size <= MAX_IMAGE_BYTES else "skip"

    return interest


async def scan_tar(storage: Storage, name: str, size: int, checksums: bool) -> TarScan:
    """Find a tar's members. Raises ShardInvalid, ObjectMissing or SourceUnavailable."""
    steps = walk(size, _interest(checksums), name)
    if isinstance(storage, LocalStorage):
        local = storage
        return await local.run(lambda: _drive_local(local, name, steps))
    return await _drive_remote(storage, name, size, steps)


def _drive_local(storage: LocalStorage, name: str, steps: Walk) -> TarScan:
    fd = storage.open_fd(name)
    try:
        start, length = next(steps)
        while True:
            start, length = steps.send(pread_all(fd, length, start))
    except StopIteration as stop:
        scan: TarScan = stop.value
        return scan
    finally:
        os.close(fd)


async def _drive_remote(storage: Storage, name: str, size: int, steps: Walk) -> TarScan:
    """Reads on through small members and jumps over big ones."""
    chunk, chunk_start = memoryview(b""), 0
    try:
        start, length = next(steps)
        while True:
            chunk_end = chunk_start + len(chunk)
            if not chunk_start <= start <= start + length <= chunk_end:
                ahead = CHUNK_BYTES if start - chunk_end <= READ_THROUGH_BYTES else PROBE_BYTES
                chunk_start = start
                chunk = await storage.get_range(name, start, min(max(length, ahead), size - start))
            start, length = steps.send(chunk[start - chunk_start : start - chunk_start + length])
    except StopIteration as stop:
        scan: TarScan = stop.value
        return scan


def tar_entries(name: str, scan: TarScan, rule: LabelRule, exclude: Collection[Excluded]) -> Found:
    """The samples of a scanned tar, in the order in which their keys appear."""
    found = Found()
    cut_key = split_name(scan.cut.name)[0] if scan.cut else None
    if scan.damage:
        found.warnings.append(f"{name}: {scan.damage}; the samples before are kept")
    if scan.skipped:
        found.warnings.append(
            f"{name}: {scan.skipped} members are links, sparse files or devices and are left out, first {scan.skipped_first!r}"
        )
    members = scan.members + ([scan.cut] if scan.cut else [])
    for sample in group(members):
        if exclude and found.leave_out(exclude, sample.key, name):
            continue
        if len(sample.key.encode()) > MAX_KEY_BYTES:
            found.warnings.append(f"{name}: key {sample.key[:60]}... is over {MAX_KEY_BYTES} bytes; left out")
            continue
        if sample.repeated or len(sample.parts) > SUSPICIOUS_PARTS:
            found.warnings.append(
                f"{name}: key {sample.key!r} has {len(sample.parts)} parts, and {sample.repeated} members repeat one and are"
                " left out: a key ends at the first dot of the file's name"
            )
        _add(found, sample, rule, cut=sample.key == cut_key)
    return found


def _add(found: Found, sample: Parts, rule: LabelRule, cut: bool) -> None:
    image = _image_of(sample.parts)
    reason, detail, label = "none", "", Label()
    try:
        payloads = {ext: member.payload for ext, member in sample.parts.items() if member.payload is not None}
        read = rule.read(sample.key, payloads)
        if read is None:
            reason, detail = "missing_part", f"no .{rule.rule} part"
        else:
            label = read
    except LabelInvalid as error:
        reason, detail = "bad_label", error.message
    if image is None:
        reason, detail = "missing_part", "no image"
    elif cut:
        reason, detail = "truncated", "the tar ends inside it"
    elif image.size == 0:
        reason, detail = "empty", "image of 0 bytes"
    elif image.size > MAX_IMAGE_BYTES:
        reason, detail = "too_large", f"image of {image.size} bytes"
    _append(found, sample.key, image if reason == "none" else None, label, (reason, detail))


def _append(found: Found, key: str, image: Member | None, label: Label, bad: tuple[str, str]) -> None:
    reason, detail = bad
    offset, length, crc32 = (image.offset, image.size, image.crc32) if image else (0, 0, None)
    found.entries.append(Entry(key, offset, length, label.value, label.payload, reason, crc32))
    found.names.append(label.name)
    if reason != "none":
        found.details.append((key, reason, detail))


def _image_of(parts: dict[str, Member]) -> Member | None:
    plain = next((member for extension, member in parts.items() if extension in IMAGE_EXTENSIONS), None)
    return plain or next((member for extension, member in parts.items() if is_image(extension)), None)


def folder_entries(files: list[tuple[str, int, int | None]], rule: LabelRule, exclude: Collection[Excluded]) -> Found:
    """The samples of a slice of an image folder: (path, size, CRC-32) of each; the key is the whole path."""
    found = Found()
    for path, size, crc32 in files:
        if exclude and found.leave_out(exclude, path, ""):
            continue
        if not _is_text(path):
            found.warnings.append(f"{path!a} is not named in UTF-8; left out")
        elif len(path.encode()) > MAX_KEY_BYTES:
            found.warnings.append(f"{path[:60]}... is longer than {MAX_KEY_BYTES} bytes; left out")
        else:
            _add_file(found, path, size, crc32, rule)
    return found


def _is_text(path: str) -> bool:
    """False for a name whose bytes are no UTF-8: it could not travel as a key."""
    return not any("\ud800" <= char <= "\udfff" for char in path)


def _add_file(found: Found, path: str, size: int, crc32: int | None, rule: LabelRule) -> None:
    reason, detail, label = "none", "", Label()
    try:
        label = rule.read(path, {}) or Label()
    except LabelInvalid as error:
        reason, detail = "bad_label", error.message
    if not 0 < size <= MAX_IMAGE_BYTES:
        reason, detail = ("empty", "file of 0 bytes") if size == 0 else ("too_large", f"file of {size} bytes")
    _append(found, path, Member(path, 0, size, crc32=crc32) if reason == "none" else None, label, (reason, detail))


def is_image_path(path: str) -> bool:
    """True for a file that an image folder takes as a sample, by its name; what it really is, the decoder finds out."""
    return PurePosixPath(path).suffix[1:].lower() in IMAGE_EXTENSIONS
