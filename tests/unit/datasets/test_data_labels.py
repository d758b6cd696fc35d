"""Label rules: which labels a rule takes, and which make a bad sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import LabelInvalid
from headrace.datasets.build import IndexOptions, build_report
from headrace.datasets.labels import LabelRule, Rule
from headrace.testing.tars import write_tar
from headrace.worker.sources.sharded import open_source

TWO = {"cat": 0, "dog": 1}
GAPS = {"cat": 0, "dog": 7}


def numbers(rule: Rule, classes: dict[str, int], text: str) -> list[int]:
    """What a rule makes of a label that is a number."""
    label = LabelRule(rule, classes).read("k", {"json" if rule in ("json", "multi") else rule: text.encode()})
    assert label is not None and not label.name
    return np.frombuffer(label.payload, "<u4").tolist() if rule == "multi" else [label.value]


@pytest.mark.parametrize("rule", ["cls", "txt", "json", "multi"])
@pytest.mark.parametrize(("classes", "highest"), [(TWO, 1), (GAPS, 7)])
def test_every_rule_takes_the_numbers_of_the_class_list_and_no_other(rule: Rule, classes: dict[str, int], highest: int) -> None:
    for number in range(highest + 1):
        assert numbers(rule, classes, f"{number}") == [number]
    for number in (highest + 1, 10**6, 2**63 - 1):
        with pytest.raises(LabelInvalid, match=f"class {number} is not in the class list, which ends at {highest}"):
            numbers(rule, classes, f"{number}")
    for number in (-1, -(2**63)):
        with pytest.raises(LabelInvalid, match="negative"):
            numbers(rule, classes, f"{number}")


@pytest.mark.parametrize("rule", ["cls", "multi"])
def test_without_a_class_list_any_class_number_goes_and_none_below_0(rule: Rule) -> None:
    assert numbers(rule, {}, "65535") == [65535]
    with pytest.raises(LabelInvalid, match="negative"):
        numbers(rule, {}, "-1")


@pytest.mark.parametrize("text", ["1_000", "1.0", "0x1", "--1", "\u0663", "", "9" * 5000, f"{2**63}"])
def test_what_is_no_number_is_no_class_number(text: str) -> None:
    with pytest.raises(LabelInvalid, match=r"is not an integer|does not fit"):
        LabelRule("cls", {}).read("k", {"cls": text.encode()})


def write_texts(directory: Path, shards: list[list[str]]) -> None:
    """Shards of samples with these .txt labels; keys count over all shards."""
    for number, texts in enumerate(shards):
        parts = [
            (f"{number}-{i}.{ext}", data)
            for i, text in enumerate(texts)
            for ext, data in (("jpg", b"x"), ("txt", text.encode()))
        ]
        write_tar(directory / f"{number}.tar", parts)


async def read_labels(directory: Path) -> list[int]:
    """All labels, as a trainer gets them."""
    source = await open_source(str(directory))
    try:
        labels = await source.read_labels(range(source.samples))
    finally:
        await source.close()
    assert labels is not None
    return [int(label) for label in labels]


@pytest.mark.parametrize("odd_shard", [0, 1, 2, None])
async def test_text_labels_are_numbers_only_where_all_are_whatever_shard_has_the_odd_one(
    tmp_path: Path, odd_shard: int | None
) -> None:
    shards = [["0", "2"], ["10", "2"], ["10", "0"]]
    if odd_shard is not None:
        shards[odd_shard].append("dog")
    write_texts(tmp_path, shards)
    report = await build_report(str(tmp_path))
    texts = [text for shard in shards for text in shard]
    if odd_shard is None:
        assert await read_labels(tmp_path) == [int(text) for text in texts]
        assert not report.tally.warnings and not report.manifest.classes and report.manifest.num_classes == 3
        return
    assert await read_labels(tmp_path) == [["0", "10", "2", "dog"].index(text) for text in texts]
    assert report.manifest.classes == ("0", "10", "2", "dog")
    assert [said for said in report.tally.warnings if "6 of 7 .txt labels are integers" in said and "'dog'" in said]
    exclude = IndexOptions(exclude=frozenset({f"{odd_shard}-2"}))
    assert not (await build_report(str(tmp_path), exclude)).manifest.classes, "an excluded sample has no say"


@pytest.mark.parametrize("bad", ["keep", "skip", "fail"])
async def test_a_text_label_that_is_no_class_number_is_judged_by_the_policy(tmp_path: Path, bad: str) -> None:
    write_texts(tmp_path, [["3", "1"], ["-1", "5"]])
    options = IndexOptions(bad=bad)  # type: ignore[arg-type]
    if bad == "fail":
        with pytest.raises(LabelInvalid, match=r"'1-0' in 1\.tar: class -1 is negative"):
            await build_report(str(tmp_path), options)
        return
    report = await build_report(str(tmp_path), options)
    assert report.tally.bad == {"bad_label": 1} and report.manifest.bad == (bad == "keep")
    assert await read_labels(tmp_path) == ([3, 1, -1, 5] if bad == "keep" else [3, 1, 5])


async def test_folders_are_names_even_where_they_are_integers(tmp_path: Path) -> None:
    for name in ("0", "2", "10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(b"x")
    assert (await build_report(str(tmp_path))).manifest.classes == ("0", "10", "2")
