"""What indexing says of data that are not what they were taken for: mostly bad, of one class, without labels, left out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import ShardInvalid
from headrace.datasets.build import IndexOptions, build_index, build_report
from headrace.datasets.scan import IMAGE_EXTENSIONS
from headrace.testing.tars import write_tar


def write_parts(directory: Path, samples: int, label: bytes = b"1", image: bytes = b"x", ending: str = "cls") -> None:
    """One tar of samples."""
    parts = [(f"{i:03}.{ext}", data) for i in range(samples) for ext, data in (("jpg", image), (ending, label))]
    write_tar(directory / "a.tar", parts)


def write_files(directory: Path, *names: str, data: bytes = b"x") -> None:
    """Files of an image folder."""
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


ALL_BAD: dict[str, tuple[Callable[[Path], None], IndexOptions, str]] = {
    "another label part": (
        lambda root: write_parts(root, 200),
        IndexOptions(labels="txt"),
        "200 missing_part.*no .txt part.*--labels",
    ),
    "labels of another kind": (lambda root: write_parts(root, 9, b"dog"), IndexOptions(), "9 bad_label.*'dog'.*--classes"),
    "another class list": (
        lambda root: write_parts(root, 9, b"5"),
        IndexOptions(classes={"cat": 0}),
        "9 bad_label.*class list",
    ),
    "negative texts": (lambda root: write_parts(root, 9, b"-1", ending="txt"), IndexOptions(), "9 bad_label.*negative"),
    "no images": (lambda root: write_parts(root, 9, image=b""), IndexOptions(), "9 empty.*copy the data again"),
    "empty files": (lambda root: write_files(root, "a/1.jpg", "b/2.jpg", data=b""), IndexOptions(), "2 empty.*'a/1.jpg'"),
    "skipped": (lambda root: write_parts(root, 9), IndexOptions(labels="txt", bad="skip"), "9 missing_part"),
}


@pytest.mark.parametrize("case", ALL_BAD)
def test_a_data_set_without_a_usable_sample_is_an_error_and_replaces_nothing(tmp_path: Path, case: str) -> None:
    write, options, says = ALL_BAD[case]
    write(tmp_path)
    (tmp_path / "manifest.json").write_text("the pointer before")
    with pytest.raises(ShardInvalid, match=f"none of .* can be used.*{says}"):
        asyncio.run(build_index(str(tmp_path), options))
    assert [path.read_text() for path in tmp_path.glob("manifest*")] == ["the pointer before"]


@pytest.mark.parametrize("bad", ["keep", "skip"])
@pytest.mark.parametrize(("good_samples", "warned"), [(1, True), (2, False), (3, False)])
async def test_a_data_set_that_is_mostly_bad_is_warned_of(tmp_path: Path, bad: str, good_samples: int, warned: bool) -> None:
    labels = [b"1"] * good_samples + [b"dog"] * 2
    write_tar(
        tmp_path / "a.tar", [(f"{i}.{e}", d) for i, label in enumerate(labels) for e, d in (("jpg", b"x"), ("cls", label))]
    )
    report = await build_report(str(tmp_path), IndexOptions(bad=bad))  # type: ignore[arg-type]
    assert any("most samples are bad, 2 of 3 (2 bad_label)" in said for said in report.tally.warnings) == warned


async def test_files_that_are_left_out_are_counted_and_some_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"k{i % 2}/img{i:02}" for i in range(20)), "k0/a.jpg", "k1/b.JPG", "k0/.DS_Store")
    for _ in range(2):  # a manifest of our own is none of them
        notes = (await build_report(str(tmp_path))).tally.notes
        assert len(notes) == 1 and notes[0].startswith("20 files are left out")
        assert "'k0/img00'" in notes[0] and ".DS_Store" not in notes[0]


def test_the_page_names_the_endings_of_images() -> None:
    page = (Path(__file__).parents[3] / "docs/decode_contract.md").read_text()
    sentence = page.partition("that end in ")[2].partition(", in\n")[0]
    assert set(re.findall(r"\.(\w+)", sentence)) == IMAGE_EXTENSIONS


async def test_an_image_folder_as_it_should_be_needs_no_word(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "b/1.jpg")
    tally = (await build_report(str(tmp_path))).tally
    assert not tally.notes and not tally.warnings


@pytest.mark.parametrize("names", [("a/images/1.JPEG", "b/images/1.JPEG"), ("images/1.jpg", "images/2.jpg")])
async def test_one_folder_for_all_is_warned_of(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_files(tmp_path, *names)
    assert any("of one class, 'images'" in said for said in (await build_report(str(tmp_path))).tally.warnings)
    report = await build_report(str(tmp_path), IndexOptions(labels="none"))
    assert not report.tally.warnings, "no classes are wanted"


async def test_a_folder_that_is_a_number_of_the_class_list_is_named_so(tmp_path: Path) -> None:
    write_files(tmp_path, "3/1.jpg", "3/2.jpg")
    report = await build_report(str(tmp_path), IndexOptions(classes={"dog": 7}))
    assert any("of one class, '3'" in said for said in report.tally.warnings)


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (("1.jpg", "2.jpg"), IndexOptions()),
        (("a/1.jpg", "b/2.jpg"), IndexOptions(labels="none")),
        (("a/1.jpg", "b/2.jpg"), IndexOptions(labels="none", classes={"a": 0})),
        ((), IndexOptions()),
    ],
    ids=["flat folder", "folders", "class list", "tars"],
)
async def test_no_labels_are_no_classes_and_told(tmp_path: Path, names: tuple[str, ...], options: IndexOptions) -> None:
    write_files(tmp_path, *names)
    if not names:
        write_tar(tmp_path / "a.tar", [("1.jpg", b"x"), ("2.jpg", b"x")])
    report = await build_report(str(tmp_path), options)
    assert (report.manifest.num_classes, report.manifest.classes) == (0, ())
    assert [note for note in report.tally.notes if "there are no labels: each sample's is -1" in note]


@pytest.mark.parametrize(
    ("samples", "share", "warned"), [(120, 1, True), (120, 3, False), (60, 1, False)], ids=["captions", "names", "a first try"]
)
async def test_texts_that_hardly_two_samples_share_are_warned_of(
    tmp_path: Path, samples: int, share: int, warned: bool
) -> None:
    parts = [
        (f"{i:03}.{ext}", data) for i in range(samples) for ext, data in (("jpg", b"x"), ("txt", b"dog %d" % (i // share)))
    ]
    write_tar(tmp_path / "a.tar", parts)
    said = (await build_report(str(tmp_path))).tally.warnings
    assert any("captions" in one and "--labels none" in one for one in said) == warned
    numbers = [(name, data.removeprefix(b"dog ")) for name, data in parts]
    write_tar(tmp_path / "a.tar", numbers)
    assert not any("captions" in one for one in (await build_report(str(tmp_path))).tally.warnings), "numbers are meant as such"
