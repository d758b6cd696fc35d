"""`headrace index` as a person meets it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import cli
from headrace.testing.tars import write_dataset, write_tar


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["index", *map(str, arguments)])


def test_says_what_was_found_and_where_the_manifest_is(tmp_path: Path) -> None:
    write_dataset(tmp_path, 3, 200)
    result = run(tmp_path, "--batch-size", 100)
    assert result.exit_code == 0, result.output
    pointer = json.loads((tmp_path / "manifest.json").read_text())["headrace_manifest"]
    for said in ("webdataset", "600", "int, 10 classes", "of 100:", "10 of 10 classes", pointer, "bad       none"):
        assert said in result.output
    assert "sorted" not in result.output


def test_warns_of_class_sorted_data_and_names_bad_samples(tmp_path: Path) -> None:
    parts = [(f"{i:04}.{e}", b) for i in range(9000) for e, b in (("jpg", b"x"), ("cls", b"%d" % (i // 90)))]
    write_tar(tmp_path / "a.tar", [*parts, ("odd.jpg", b"x"), ("odd.cls", b"dog")])
    result = run(tmp_path)
    assert result.exit_code == 0 and "sorted by class" in result.output
    assert "1 bad_label" in result.output and "bad: odd in a.tar" in result.output and "'dog'" in result.output


def test_sorted_data_that_the_shuffle_mixes_need_no_warning(tmp_path: Path) -> None:
    parts = [(f"{i:04}.{e}", b) for i in range(600) for e, b in (("jpg", b"x"), ("cls", b"%d" % (i // 60)))]
    write_tar(tmp_path / "a.tar", parts)
    result = run(tmp_path)
    assert "10 of 10 classes" in result.output and "sorted by class" not in result.output


def test_the_data_set_is_named_as_a_job_must_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "data", 1, 10)
    monkeypatch.chdir(tmp_path)
    result = run("data", "--out", "index")
    assert f"dataset   {tmp_path}/index (a job names this)" in result.output


def test_class_list_and_exclusions_from_files(tmp_path: Path) -> None:
    write_tar(tmp_path / "d" / "a.tar", [(f"{i}.{e}", b) for i in range(4) for e, b in (("jpg", b"x"), ("txt", b"dog"))])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "skip.txt").write_text("2\n")
    result = run(tmp_path / "d", "--labels", "txt", "--classes", tmp_path / "classes.txt", "--exclude", tmp_path / "skip.txt")
    assert result.exit_code == 0 and "2 classes" in result.output and "excluded  1" in result.output


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("zero.tar", b"", "zero.tar is empty"), ("text.tar", b"hello" * 200, "not a tar"), ("x.txt", b"", "no tar and no image")],
)
def test_errors_are_one_line_and_exit_status_1(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    result = run(tmp_path)
    assert result.exit_code == 1 and said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.output


def test_train_and_val_in_one_directory_do_not_take_each_others_manifest(tmp_path: Path) -> None:
    for name in ("train-000.tar", "val-000.tar"):
        write_tar(tmp_path / name, [("a.jpg", b"x"), ("a.cls", b"1")])
    assert run(tmp_path / "train-{000..000}.tar").exit_code == 0
    pointer = (tmp_path / "manifest.json").read_text()
    refused = run(tmp_path / "val-{000..000}.tar")
    assert refused.exit_code == 1 and "train-000.tar" in refused.stderr and "--out" in refused.stderr
    assert (tmp_path / "manifest.json").read_text() == pointer
    assert run(tmp_path / "val-{000..000}.tar", "--out", tmp_path / "val").exit_code == 0
    assert (tmp_path / "manifest.json").read_text() == pointer
    assert run(tmp_path / "val-{000..000}.tar", "--replace").exit_code == 0
    assert (tmp_path / "manifest.json").read_text() != pointer


def test_no_labels_and_files_left_out_are_told(tmp_path: Path) -> None:
    for name in ("x.jpg", "y", "z.md"):
        (tmp_path / name).write_bytes(b"x")
    result = run(tmp_path)
    assert result.exit_code == 0 and "labels    none" in result.output
    assert "note: there are no labels" in result.output and "note: 2 files are left out" in result.output


def test_a_data_set_without_a_usable_sample_exits_with_1_and_keeps_the_manifest(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 20)
    assert run(tmp_path).exit_code == 0
    pointer = (tmp_path / "manifest.json").read_text()
    result = run(tmp_path, "--labels", "txt")
    assert result.exit_code == 1 and "20 missing_part" in result.stderr and "--labels" in result.stderr
    assert (tmp_path / "manifest.json").read_text() == pointer


@pytest.mark.parametrize("flags", [("",), ("data", "--out", ""), ("data", "--classes", ""), ("data", "--exclude", "")])
def test_an_empty_argument_is_an_unset_variable_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    write_dataset(tmp_path / "data", 1, 3)
    (tmp_path / "x.jpg").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    result = run(*flags)
    assert result.exit_code == 1 and len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("manifest*"))


def test_a_class_list_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"cat": "one"}')
    for path in (tmp_path / "nowhere", tmp_path / "bad.json"):
        result = run(tmp_path, "--classes", path)
        assert result.exit_code == 1 and "Traceback" not in result.output and result.stderr.startswith("headrace:")


def test_where_all_files_are_left_out_it_is_said_why(tmp_path: Path) -> None:
    for number in range(3):
        directory = tmp_path / str(number)
        directory.mkdir()
        with open(os.fsencode(directory) + b"/\xe9.jpg", "wb") as file:  # noqa: PTH123 - its name is no text
            file.write(b"x")
    result = run(tmp_path)
    assert result.exit_code == 1 and "is not named in UTF-8; left out; and 2 more" in result.output, result.output
