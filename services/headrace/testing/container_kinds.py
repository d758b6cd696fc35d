"""Every kind of container of the contract's table: tars and folders as people have them, with images cut from a real photo."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import HeadraceError, ShardInvalid, ShardMissing
from headrace.testing.image_kinds import encode, photo
from headrace.testing.tars import tar_bytes

SIDE = 24
Members = list[tuple[str, bytes]]

# Kind of container -> its right answer: the lines of the table in docs/decode_contract.md.
ROWS: dict[str, str] = {
    "long names": "PAX and GNU extensions, and the ustar prefix, are read",
    "dots in names": "the key is the path up to the base name's first dot; a key of suspiciously many parts is reported",
    "truncated tar": "the good samples are kept, the sample that is cut is bad (`truncated`), the shard is reported",
    "unsorted members": "grouped by key, wherever they lie",
    "missing part": "`missing_part`, by policy kept (and substituted), skipped or an error; an image of no bytes is `empty`",
    "few samples, few shards": "lanes are cut inside shards",
    "labels": "by the declared rule; what breaks it is a bad sample, `bad_label`",
    "equal names": "keys are whole paths, caches go by whole addresses; of a repeated member the first counts, as is reported",
    "empty shard, no tar": "an empty tar counts; what is no tar is an error that names it and says what it is",
    "links, devices, sparse files": "never followed; reported; a sample that lacks its image for that is `missing_part`",
    "names that lead out": "a key is a text, never a path: nothing is opened or written by it",
    "sizes that are none": "a member that claims more than the file holds is the shard's cut",
    "image folders": "a file named like an image is a sample, its path the key, its directory the class",
}


@dataclass(frozen=True)
class ContainerKind:
    """One data set. build: writes it into a directory. samples: key -> number of its image, or its reason. labels: by key
    where they matter. says: what the warnings must name. error: what indexing must raise instead, and its words."""

    row: str
    name: str
    build: Callable[[Path], None]
    samples: Mapping[str, int | str] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    error: type[HeadraceError] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=512)
def picture(number: int) -> bytes:
    """A PNG of a piece of the photo; another one for each number."""
    return encode(photo().crop(_box(number)), "PNG")


def pixels(number: int) -> NDArray[np.uint8]:
    """The same, as it must be decoded."""
    return np.asarray(photo().crop(_box(number)))


def _box(number: int) -> tuple[int, int, int, int]:
    x, y = number * 7 % (photo().width - SIDE), number * 11 % (photo().height - SIDE)
    return x, y, x + SIDE, y + SIDE


def sample(key: str, number: int, label: bytes | None = None) -> Members:
    """Image and label of one sample."""
    return [(f"{key}.png", picture(number)), (f"{key}.cls", b"%d" % number if label is None else label)]


def many(count: int, prefix: str = "k") -> Members:
    """So many samples."""
    return [part for number in range(count) for part in sample(f"{prefix}{number}", number)]


def tar(members: Members, form: int = tarfile.PAX_FORMAT, name: str = "a.tar") -> Callable[[Path], None]:
    """Builds one tar."""
    return files({name: tar_bytes(members, form)})


def files(contents: Mapping[str, bytes]) -> Callable[[Path], None]:
    """Builds files."""

    def build(directory: Path) -> None:
        for name, data in contents.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return build


def special(*infos: tarfile.TarInfo, members: Members) -> Callable[[Path], None]:
    """Builds a tar that begins with members of other types."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as made:
        for info in infos:
            made.addfile(info)
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return files({"a.tar": out.getvalue()})


def info(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A member that is no regular file."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def header(name: str, size: bytes, kind: bytes = b"0", more: Mapping[int, bytes] | None = None) -> bytes:
    """A GNU tar header with any size field, and other bytes at places of their own."""
    raw = bytearray(512)
    raw[: len(name)] = name.encode()
    raw[100:108], raw[124 : 124 + len(size)], raw[156:157], raw[257:265] = b"0000644\0", size, kind, b"ustar  \0"
    for at, data in (more or {}).items():
        raw[at : at + len(data)] = data
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def _up_to(data: bytes, member: str, extra: int) -> bytes:
    """A tar cut so many bytes after where a member's data begin."""
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return data[: opened.getmember(member).offset_data + extra]


def _good(count: int, prefix: str = "k") -> dict[str, int | str]:
    return {f"{prefix}{number}": number for number in range(count)}


def _long() -> list[ContainerKind]:
    long = "/".join(["directory" * 9] * 3) + "/" + "name" * 30
    middle = "d" * 90 + "/" + "e" * 90
    wide = "käfer/" * 20 + "übung"
    return [
        ContainerKind("long names", f"{name}_{words}", tar(sample(key, 3), form), {key: 3})
        for name, form in (("pax", tarfile.PAX_FORMAT), ("gnu", tarfile.GNU_FORMAT))
        for words, key in {
            "3_folders": long,
            "2_folders": middle,
            "not_ASCII": wide,
            "98_bytes": "x" * 94,
            "100_bytes": "x" * 96,
            "101_bytes": "x" * 97,
        }.items()
    ] + [ContainerKind("long names", "ustar_prefix", tar(sample(middle, 4), tarfile.USTAR_FORMAT), {middle: 4})]


def _dots() -> list[ContainerKind]:
    row = "dots in names"
    odd = [(f"img.{number:02d}.x", b"-") for number in range(20)] + sample("img", 1)
    return [
        ContainerKind(row, "in_folder", tar(sample("v1.2/cat", 1) + sample("v1.3/cat", 2)), {"v1.2/cat": 1, "v1.3/cat": 2}),
        ContainerKind(row, "in_base", tar([("a.left.png", picture(1)), ("a.cls", b"1")]), {"a": 1}),
        ContainerKind(row, "leading_dot", tar(sample(".hidden", 2) + sample("./plain", 3)), {".hidden": 2, "plain": 3}),
        ContainerKind(row, "many_parts", tar(odd), {"img": 1}, says=("'img' has 22 parts",)),
        ContainerKind(row, "upper_case_ending", tar([("a.PNG", picture(5)), ("a.CLS", b"5")]), {"a": 5}, {"a": 5}),
    ]


def _truncated() -> list[ContainerKind]:
    row, data = "truncated tar", tar_bytes(many(5))
    cut = {**_good(4), "k4": "truncated"}
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        begin = opened.getmember("k4.png").offset
    return [
        ContainerKind(row, "in_an_image", files({"a.tar": _up_to(data, "k4.png", 100)}), cut, says=("cut inside 'k4.png'",)),
        ContainerKind(row, "in_a_label", files({"a.tar": _up_to(data, "k4.cls", 0)}), cut, says=("cut inside 'k4.cls'",)),
        ContainerKind(row, "after_an_image", files({"a.tar": data[: begin + 512 + -(-len(picture(4)) // 512) * 512]}),
                      {**_good(4), "k4": "missing_part"}, says=("may be cut",)),
        ContainerKind(row, "in_a_header", files({"a.tar": data[: begin + 200]}), _good(4), says=("may be cut",)),
        ContainerKind(row, "between_samples", files({"a.tar": data[:begin]}), _good(4), says=("may be cut",)),
        ContainerKind(row, "rubbish_after", files({"a.tar": data[:begin] + b"U" * 2048}), _good(4), says=("no member header",)),
        ContainerKind(row, "one_of_two", files({"a.tar": data[:begin], "b.tar": tar_bytes(sample("z", 9))}),
                      {**_good(4), "z": 9}, says=("a.tar",)),
    ]  # fmt: skip


def _parts() -> list[ContainerKind]:
    row, full = "missing part", many(2)
    return [
        ContainerKind(row, "no_label", tar([*full, ("x.png", picture(7))]), {**_good(2), "x": "missing_part"}),
        ContainerKind(row, "no_image", tar([*full, ("x.cls", b"7")]), {**_good(2), "x": "missing_part"}),
        ContainerKind(row, "no_bytes", tar([*full, ("x.png", b""), ("x.cls", b"7")]), {**_good(2), "x": "empty"}),
        ContainerKind(row, "skipped", tar([*full, ("x.png", picture(7))]), _good(2), options={"bad": "skip"}),
        ContainerKind(row, "fails", tar([*full, ("x.png", picture(7))]), says=("'x'", "--bad"), error=ShardInvalid,
                      options={"bad": "fail"}),
        ContainerKind(row, "no_label_at_all", tar([("x.png", picture(7)), ("y.png", picture(8))]), error=ShardInvalid,
                      says=("none of 2 samples", "no .cls part", "--labels"), options={"labels": "cls"}),
        ContainerKind(row, "several_images", tar([*full, ("x.seg.png", picture(7)), ("x.png", picture(8)), ("x.cls", b"1")]),
                      {**_good(2), "x": 8}),
    ]  # fmt: skip


def _labels() -> list[ContainerKind]:
    row = "labels"
    texts = {
        "newline": b"7\n",
        "spaces": b"  7 ",
        "mark": b"\xef\xbb\xbf7",
        "minus": b"-1",
        "huge": b"9" * 5000,
        "word": b"cat",
        "none": b"",
        "odd": b"\xff",
    }
    good = {"newline": 7, "spaces": 7, "mark": 7}
    members = [part for number, (key, text) in enumerate(texts.items()) for part in sample(key, number, text)]
    samples = {key: number if key in good else "bad_label" for number, key in enumerate(texts)}

    def parts(ending: str, values: list[bytes]) -> Members:
        return [m for n, v in enumerate(values) for m in ((f"k{n}.png", picture(n)), (f"k{n}.{ending}", v))]

    return [
        ContainerKind(row, "cls", tar(members), samples, good, says=("'cat'",)),
        ContainerKind(row, "cls_with_classes", tar(parts("cls", [b"0", b"1", b"2", b"-1"])),
                      {"k0": 0, "k1": 1, "k2": "bad_label", "k3": "bad_label"}, {"k0": 0, "k1": 1},
                      options={"classes": {"ant": 0, "bee": 1}}),
        ContainerKind(row, "txt", tar(parts("txt", [b"dog\n", b"ant", b""])),
                      {"k0": 0, "k1": 1, "k2": "bad_label"}, {"k0": 1, "k1": 0}),
        ContainerKind(row, "txt_of_integers", tar(parts("txt", [b"10", b"2\n", b"0", b"", b"-1", b"%d" % 2**63])),
                      {"k0": 0, "k1": 1, "k2": 2, "k3": "bad_label", "k4": "bad_label", "k5": "bad_label"},
                      {"k0": 10, "k1": 2, "k2": 0}),
        ContainerKind(row, "txt_of_both", tar(parts("txt", [b"10", b"2", b"dog"])), {"k0": 0, "k1": 1, "k2": 2},
                      {"k0": 0, "k1": 1, "k2": 2}, says=("2 of 3 .txt labels are integers", "'dog'")),
        ContainerKind(row, "json", tar(parts("json", [b'{"a": 1}', b"3", b"{", b"[" * 5000])),
                      {"k0": 0, "k1": 1, "k2": "bad_label", "k3": "bad_label"}),
        ContainerKind(row, "json_with_classes", tar(parts("json", [b'{"label": "ant"}', b'"bee"', b"1", b'"x"'])),
                      {"k0": 0, "k1": 1, "k2": 2, "k3": "bad_label"}, {"k0": 0, "k1": 1, "k2": 1},
                      options={"labels": "json", "classes": {"ant": 0, "bee": 1}}),
        ContainerKind(row, "multi", tar(parts("json", [b"[0, 2]", b"[]", b'"x"', b"[-1]"])),
                      {"k0": 0, "k1": 1, "k2": "bad_label", "k3": "bad_label"}, options={"labels": "multi"}),
        ContainerKind(row, "none", tar(parts("npy", [b"x", b"y"])), {"k0": 0, "k1": 1}),
    ]  # fmt: skip


def _equal() -> list[ContainerKind]:
    row = "equal names"
    twice = many(2) + sample("k1", 9)
    return [
        ContainerKind(row, "in_two_folders", tar(sample("l/k", 1) + sample("r/k", 2)), {"l/k": 1, "r/k": 2}),
        ContainerKind(row, "repeated_members", tar(twice), _good(2), says=("'k1' has 2 parts, and 2 members repeat",)),
        ContainerKind(row, "case_differs", tar(sample("K", 1) + sample("k", 2)), {"K": 1, "k": 2}),
    ]


def _no_tar() -> list[ContainerKind]:
    row, one = "empty shard, no tar", tar_bytes(many(2))
    kinds = {
        "zero_bytes": (b"", "is empty"), "gzip": (gzip.compress(one).ljust(600, b"\0"), "gzip"),
        "zip": (b"PK\3\4".ljust(600, b"\0"), "zip"),
        "web_page": (b"<html>no such key</html>".ljust(600), "web page"), "rubbish": (b"\x55" * 5000, "not a tar"),
    }  # fmt: skip
    return [
        ContainerKind(row, name, files({"a.tar": one, "b.tar": data}), says=("b.tar", said), error=ShardInvalid)
        for name, (data, said) in kinds.items()
    ] + [
        ContainerKind(row, "empty_tar", files({"a.tar": one, "b.tar": tar_bytes([])}), _good(2)),
        ContainerKind(row, "end_mark_alone", files({"a.tar": one, "b.tar": bytes(1024)}), _good(2)),
        ContainerKind(row, "nothing_but_empty_tars", files({"a.tar": tar_bytes([])}), says=("empty",), error=ShardInvalid),
        ContainerKind(row, "nothing", files({"readme.md": b"see the wiki"}), says=("no tar and no image",), error=ShardMissing),
    ]


def _special() -> list[ContainerKind]:
    row = "links, devices, sparse files"
    full, lost = many(2), {**_good(2), "x": "missing_part"}
    image = picture(7)
    block = image.ljust(-(-len(image) // 512) * 512, b"\0")
    size = b"%011o\0" % len(image)
    kinds = {
        "hard_link": tarfile.LNKTYPE,
        "symbolic_link": tarfile.SYMTYPE,
        "fifo": tarfile.FIFOTYPE,
        "device": tarfile.CHRTYPE,
    }
    after = tar_bytes([("x.cls", b"7"), *full], tarfile.GNU_FORMAT)
    old_sparse = header("x.png", size, b"S") + block
    # Its map goes on in a block more, which the size does not count.
    mapped = header("x.png", size, b"S", {482: b"\1"}) + bytes(504) + bytes(8) + block
    pax_map = b"%d GNU.sparse.major=1\n" % 22 + b"%d GNU.sparse.name=x.png\n" % 25
    pax_sparse = (
        header("p", b"%011o\0" % len(pax_map), b"x") + pax_map.ljust(512, b"\0") + header("GNUSparseFile.0/x.png", size) + block
    )
    return [
        ContainerKind(
            row, name, special(info("x.png", kind, "k0.png"), members=[("x.cls", b"7"), *full]), lost, says=("'x.png'",)
        )
        for name, kind in kinds.items()
    ] + [
        ContainerKind(row, "directories", special(info("d", tarfile.DIRTYPE), members=full), _good(2)),
        ContainerKind(row, "sparse", files({"a.tar": old_sparse + after}), lost, says=("'x.png'",)),
        ContainerKind(row, "sparse_with_a_long_map", files({"a.tar": mapped + after}), lost, says=("'x.png'",)),
        ContainerKind(row, "sparse_by_pax", files({"a.tar": pax_sparse + after}), lost, says=("'x.png'",)),
    ]


def _escapes() -> list[ContainerKind]:
    keys = {
        "absolute": "/etc/passwd", "above_the_root": "../../../tmp/headrace", "out_and_in": "a/../../b",
        "drive": "C:\\windows\\k", "home": "~root/k", "line_break": "a\nb", "escape_code": "\x1b[31mred", "flag": "-rf",
    }  # fmt: skip
    return [
        ContainerKind("names that lead out", name, tar(sample(key, number)), {key: number})
        for number, (name, key) in enumerate(keys.items())
    ]


def _sizes() -> list[ContainerKind]:
    row, full = "sizes that are none", tar_bytes(many(3))[: -1024 * 10]
    with tarfile.open(fileobj=io.BytesIO(tar_bytes(many(3)))) as opened:
        last = opened.getmembers()[-1]
        full = tar_bytes(many(3))[: last.offset_data + 512]
    cut = {**_good(3), "x": "truncated"}
    sizes = {"8_gib": b"77777777777\0", "base_256": b"\x80" + (2**70).to_bytes(11, "big"), "minus": b"\xff" * 12}
    kinds = [
        ContainerKind(
            row, name, files({"a.tar": full + header("x.png", size) + bytes(4096)}), cut, says=("cut inside 'x.png'",)
        )
        for name, size in sizes.items()
    ]
    odd = header("x.png", b"+0000000012\0") + bytes(4096)
    return [*kinds, ContainerKind(row, "no_number", files({"a.tar": full + odd}), _good(3), says=("no member header",))]


def _folders() -> list[ContainerKind]:
    row = "image folders"
    named = {"cat/1.png": picture(1), "dog/1.png": picture(2), "dog/2.JPEG": picture(3), "dog/note.txt": b"no image"}
    samples: dict[str, int | str] = {"cat/1.png": 1, "dog/1.png": 2, "dog/2.JPEG": 3}

    def linked(directory: Path) -> None:
        files(named)(directory)
        (directory / "dog" / "link.png").symlink_to(directory / "cat" / "1.png")
        (directory / "other").symlink_to(directory / "cat")

    return [
        ContainerKind(row, "classes", files(named), samples, {"cat/1.png": 0, "dog/1.png": 1, "dog/2.JPEG": 1}),
        ContainerKind(row, "empty_file", files({**named, "cat/0.png": b""}), {**samples, "cat/0.png": "empty"}),
        ContainerKind(row, "links", linked, samples),
        ContainerKind(row, "other_names", files({**named, "dog/4": picture(4), "cat/.5.png": picture(5)}), samples),
        ContainerKind(row, "no_folders", files({"a.b.png": picture(4), "a.png": picture(5)}), {"a.b.png": 4, "a.png": 5}),
    ]


@lru_cache(maxsize=1)
def container_kinds() -> tuple[ContainerKind, ...]:
    """Every kind; row and name together are unique."""
    unsorted = many(6)
    return (
        *_long(), *_dots(), *_truncated(), *_parts(), *_labels(), *_equal(), *_no_tar(), *_special(), *_escapes(),
        *_sizes(), *_folders(),
        ContainerKind("unsorted members", "odd_before_even", tar(unsorted[::2] + unsorted[1::2]), _good(6), {"k5": 5}),
        ContainerKind("unsorted members", "labels_backwards", tar(unsorted[::2] + unsorted[1::2][::-1]), _good(6), {"k5": 5}),
        ContainerKind("few samples, few shards", "one_sample", tar(many(1)), _good(1)),
        ContainerKind("few samples, few shards", "a_shard_a_sample", files(
            {f"{number}.tar": tar_bytes(sample(f"k{number}", number)) for number in range(5)}), _good(5)),
    )  # fmt: skip
