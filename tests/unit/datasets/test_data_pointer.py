"""What a job gets by a directory's name is not replaced by other data unasked; the same data need no flag."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import ConfigInvalid
from headrace.datasets.build import IndexOptions, build_report
from headrace.datasets.manifest import Manifest, load_manifest
from headrace.testing.tars import write_tar


def shard(root: Path, name: str, samples: int = 3) -> None:
    """A tar of so many samples."""
    write_tar(root / name, [(f"{i}.{ext}", data) for i in range(samples) for ext, data in (("jpg", b"x"), ("cls", b"1"))])


def image(root: Path, name: str) -> None:
    """A file of an image folder."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(b"x")


def split(root: Path) -> None:
    """Tars of two splits in one directory, and two directories of tars of the same names, and two of images."""
    for name in ("train-0.tar", "train-1.tar", "val-0.tar"):
        shard(root / "tv", name)
    for place in ("a", "b"):
        shard(root / place, "x-0.tar")
        image(root / f"{place}-images", "cat/1.jpg")


def indexed(root: Path, address: str, out: str = "", replace: bool = False) -> tuple[Manifest, list[str]]:
    """The manifest of an address below the root, and the notes."""
    place = str(root / out) if out else ""
    report = asyncio.run(build_report(str(root / address), IndexOptions(out=place, replace=replace)))
    return report.manifest, report.tally.notes


OTHER_DATA = {
    "the other split": ("tv/train-{0..1}.tar", "tv/val-0.tar", ""),
    "one split of all": ("tv", "tv/train-{0..1}.tar", ""),
    "the next shards": ("tv/train-0.tar", "tv/train-1.tar", ""),
    "fewer shards": ("tv/train-{0..1}.tar", "tv/train-0.tar", ""),
    "equal names elsewhere": ("a", "b", "out"),
    "images elsewhere": ("a-images", "b-images", "out"),
    "images after tars": ("a", "a-images", "out"),
    "tars after images": ("a-images", "a", "out"),
}


@pytest.mark.parametrize("case", OTHER_DATA)
def test_a_manifest_of_other_data_is_not_replaced_unless_told(tmp_path: Path, case: str) -> None:
    first, second, out = OTHER_DATA[case]
    split(tmp_path)
    before, _ = indexed(tmp_path, first, out)
    place = tmp_path / (out or "tv")
    with pytest.raises(ConfigInvalid, match=r"is of other data.*--out.*--replace") as caught:
        indexed(tmp_path, second, out)
    assert caught.value.ids == {"manifest": before.hash}
    assert asyncio.run(load_manifest(str(place))) == before
    elsewhere, _ = indexed(tmp_path, second, "elsewhere")
    assert asyncio.run(load_manifest(str(tmp_path / "elsewhere"))) == elsewhere, "both can be had by --out"
    after, _ = indexed(tmp_path, second, out, replace=True)
    assert asyncio.run(load_manifest(str(place))) == after != before


SAME_DATA: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "nothing changed": ("tv", lambda _: None, "tv"),
    "a changed shard": ("tv", lambda root: shard(root / "tv", "val-0.tar", 5), "tv"),
    "one shard more": ("tv", lambda root: shard(root / "tv", "val-1.tar"), "tv"),
    "a shard less": ("tv", lambda root: (root / "tv/val-0.tar").unlink(), "tv"),
    "other names": ("tv/val-0.tar", lambda root: (root / "tv/val-0.tar").rename(root / "tv/v.tar"), "tv/v.tar"),
    "more by braces": ("tv/train-0.tar", lambda _: None, "tv/train-{0..1}.tar"),
    "one more image": ("a-images", lambda root: image(root, "a-images/dog/2.jpg"), "a-images"),
    "moved": ("a", lambda root: shutil.move(root / "a", root / "c"), "c"),
    "a link's target": ("a", lambda root: (root / "link").symlink_to(root / "a"), "link"),
    "a damaged manifest": ("a", lambda root: [path.write_text("{") for path in root.rglob("manifest-*.json")], "b"),
    "a damaged pointer": ("a", lambda root: [path.write_text("{") for path in root.rglob("manifest.json")], "b"),
    "a pointer to nothing": ("a", lambda root: [path.rename(root / "x") for path in root.rglob("manifest-*.json")], "b"),
}


@pytest.mark.parametrize("out", ["", "out"])
@pytest.mark.parametrize("case", SAME_DATA)
def test_a_data_set_that_changed_is_indexed_again_without_a_flag(tmp_path: Path, case: str, out: str) -> None:
    first, change, second = SAME_DATA[case]
    split(tmp_path)
    indexed(tmp_path, first, out)
    change(tmp_path)
    after, notes = indexed(tmp_path, second, out)
    place = tmp_path / (out or second.partition("/")[0])
    assert asyncio.run(load_manifest(str(place))) == after
    grown = {"one shard more": "1 of 4 shards", "more by braces": "1 of 2 shards", "other names": "1 of 1 shards"}
    assert [note.partition(" are not")[0] for note in notes if "manifest before" in note] == (
        [grown[case]] if case in grown else []
    )
