"""Every kind of container in the list of what people feed a loader, through indexing and reading."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import ConfigInvalid, LabelInvalid, ShardInvalid
from headrace.datasets.build import IndexOptions, build_index, build_report
from headrace.datasets.manifest import load_manifest
from headrace.testing.tars import tar_bytes, write_dataset, write_tar
from headrace.worker.sources.protocol import ReadBatch
from headrace.worker.sources.sharded import open_source


async def read_all(address: Path | str) -> ReadBatch:
    source = await open_source(str(address))
    try:
        return await source.read(range(source.samples))
    finally:
        await source.close()


def by_key(batch: ReadBatch) -> dict[str, bytes | None]:
    return {sample.key: None if sample.data is None else bytes(sample.data) for sample in batch.samples}


async def test_shards_are_read_back_in_manifest_order(tmp_path: Path) -> None:
    images = write_dataset(tmp_path, shards=3, samples_each=20)
    manifest = await build_index(str(tmp_path))
    assert (manifest.kind, manifest.samples, manifest.num_classes, manifest.bad) == ("webdataset", 60, 10, 0)
    batch = await read_all(tmp_path)
    assert [(sample.key, bytes(sample.data or b"")) for sample in batch.samples] == list(images.items())
    assert batch.labels is not None and batch.labels.tolist() == [i % 10 for i in range(60)]
    assert [sample.sample_id for sample in batch.samples] == list(range(60))


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_long_names(tmp_path: Path, tar_format: int) -> None:
    key = "/".join(["directory" * 9] * 3) + "/" + "name" * 30
    write_tar(tmp_path / "a.tar", [(f"{key}.jpg", b"image"), (f"{key}.cls", b"3")], tar_format)
    manifest = await build_index(str(tmp_path))
    assert manifest.max_key_bytes == len(key)
    assert by_key(await read_all(tmp_path)) == {key: b"image"}


async def test_dots_in_folder_and_base_names(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        [("v1.2/cat.left.jpg", b"1"), ("v1.2/cat.cls", b"5"), ("v1.2/dog.cls", b"6"), ("v1.2/dog.jpg", b"2")],
    )
    await build_index(str(tmp_path))
    batch = await read_all(tmp_path)
    assert by_key(batch) == {"v1.2/cat": b"1", "v1.2/dog": b"2"}
    assert batch.labels is not None and batch.labels.tolist() == [5, 6]


async def test_a_key_with_repeated_parts_is_reported(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("img.001.jpg", b"1"), ("img.002.jpg", b"2"), ("img.001.jpg", b"3"), ("img.cls", b"1")])
    report = await build_report(str(tmp_path))
    assert report.manifest.samples == 1
    assert any("'img'" in warning and "first dot" in warning for warning in report.tally.warnings)


async def test_unsorted_members_are_grouped_by_key(tmp_path: Path) -> None:
    names = [f"k{i}.jpg" for i in range(9)] + [f"k{8 - i}.cls" for i in range(9)]
    write_tar(tmp_path / "a.tar", [(name, name[1:2].encode()) for name in names])
    await build_index(str(tmp_path))
    batch = await read_all(tmp_path)
    assert by_key(batch) == {f"k{i}": b"%d" % i for i in range(9)}
    assert batch.labels is not None and batch.labels.tolist() == list(range(9))


async def test_a_truncated_tar_keeps_its_good_samples_and_is_reported(tmp_path: Path) -> None:
    data = tar_bytes([(f"k{i}.{ext}", b"9" * size) for i in range(4) for ext, size in (("cls", 1), ("jpg", 3000))])
    (tmp_path / "cut.tar").write_bytes(data[: 3 * (512 * 2 + 512 + 3072) + 512 * 2 + 512 + 100])
    report = await build_report(str(tmp_path))
    assert any("cut.tar" in warning and "k3.jpg" in warning for warning in report.tally.warnings)
    batch = await read_all(tmp_path)
    assert [sample.reason for sample in batch.samples] == ["none", "none", "none", "truncated"]
    assert batch.samples[3].data is None and batch.samples[2].data == b"9" * 3000
    assert report.tally.details == [("cut.tar", "k3", "truncated", "the tar ends inside it")]


async def test_a_missing_part_is_counted_skipped_or_fails_by_policy(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        [("a.jpg", b"1"), ("a.cls", b"1"), ("b.jpg", b"2"), ("c.cls", b"3"), ("d.jpg", b""), ("d.cls", b"1")],
    )
    kept = await build_report(str(tmp_path))
    assert kept.tally.bad == {"missing_part": 2, "empty": 1} and kept.manifest.bad == 3
    batch = await read_all(tmp_path)
    assert [(sample.key, sample.reason) for sample in batch.samples] == [
        ("a", "none"), ("b", "missing_part"), ("c", "missing_part"), ("d", "empty"),
    ]  # fmt: skip
    assert [sample.data for sample in batch.samples][1:] == [None, None, None]
    skipped = await build_report(str(tmp_path), IndexOptions(bad="skip"))
    assert (skipped.manifest.samples, skipped.manifest.bad, skipped.tally.bad.total()) == (1, 0, 3)
    with pytest.raises(ShardInvalid) as caught:
        await build_index(str(tmp_path), IndexOptions(bad="fail"))
    assert caught.value.ids == {"shard": "a.tar", "key": "b"}


async def test_excluded_keys_are_left_out(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 5)
    report = await build_report(str(tmp_path), IndexOptions(exclude=frozenset({"s000002"})))
    assert report.tally.excluded == 1
    assert "s000002" not in by_key(await read_all(tmp_path)) and report.manifest.samples == 4


async def test_a_sample_is_excluded_in_one_shard_or_in_all_and_strays_are_told(tmp_path: Path) -> None:
    for shard in ("a.tar", "b.tar"):
        write_tar(tmp_path / shard, [(f"{key}.{ext}", b"1") for key in ("k", "l", "m") for ext in ("jpg", "cls")])
    exclude = frozenset({"l", ("b.tar", "k"), ("c.tar", "k"), "gone"})
    report = await build_report(str(tmp_path), IndexOptions(exclude=exclude))
    assert [sample.key for sample in (await read_all(tmp_path)).samples] == ["k", "m", "m"]
    assert report.tally.excluded == 3
    assert report.tally.warnings == ["2 of 4 samples to exclude are not in the data set: 'gone', 'k' in c.tar"]


async def test_a_file_of_a_folder_is_excluded_by_its_path_whatever_its_slice(tmp_path: Path) -> None:
    write_folder(tmp_path)
    exclude = frozenset({("slice-00009", "dogs/img.1.JPEG"), "cats/img.0.JPEG"})
    report = await build_report(str(tmp_path), IndexOptions(exclude=exclude, slice_files=4))
    assert (report.manifest.samples, report.tally.excluded, report.tally.warnings) == (7, 2, [])
    assert not {"dogs/img.1.JPEG", "cats/img.0.JPEG"} & by_key(await read_all(tmp_path)).keys()


async def test_a_bad_label_is_a_bad_sample(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        [(f"{i}.{e}", b) for i, label in enumerate([b"7\n", b"cat", b"\xff", b""]) for e, b in (("jpg", b"x"), ("cls", label))],
    )
    await build_index(str(tmp_path))
    batch = await read_all(tmp_path)
    assert [sample.reason for sample in batch.samples] == ["none", "bad_label", "bad_label", "bad_label"]
    assert batch.labels is not None and batch.labels.tolist() == [7, -1, -1, -1]
    with pytest.raises(LabelInvalid):
        await build_index(str(tmp_path), IndexOptions(bad="fail"))


async def test_same_base_name_in_two_folders_stays_apart(tmp_path: Path) -> None:
    for place in ("one", "two"):
        write_tar(tmp_path / place / "a.tar", [("k.jpg", place.encode()), ("k.cls", b"0")])
        await build_index(str(tmp_path / place))
    assert by_key(await read_all(tmp_path / "one")) == {"k": b"one"}
    assert by_key(await read_all(tmp_path / "two")) == {"k": b"two"}
    manifest = await build_index(str(tmp_path), IndexOptions(out=str(tmp_path / "out")))
    assert manifest.samples == 2
    assert [bytes(s.data or b"") for s in (await read_all(tmp_path / "out")).samples] == [b"one", b"two"]


async def test_an_empty_shard_counts_and_a_file_of_no_bytes_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 5)
    write_tar(tmp_path / "aaa-empty.tar", [])
    manifest = await build_index(str(tmp_path))
    assert [shard.samples for shard in manifest.shards] == [0, 5]
    assert len((await read_all(tmp_path)).samples) == 5
    (tmp_path / "zero.tar").touch()
    with pytest.raises(ShardInvalid, match="is empty") as caught:
        await build_index(str(tmp_path))
    assert caught.value.ids == {"shard": "zero.tar"}
    assert (await load_manifest(str(tmp_path))).hash == manifest.hash, "a failed run leaves the old manifest"


async def test_what_is_no_tar_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(gzip.compress(tar_bytes([("a.jpg", b"1")])).ljust(600, b"\0"))
    with pytest.raises(ShardInvalid, match="gzip") as caught:
        await build_index(str(tmp_path))
    assert caught.value.ids == {"shard": "a.tar"}


def write_folder(root: Path) -> None:
    for name, files in {"cats": 4, "dogs": 3, "ants": 2}.items():
        (root / name).mkdir(parents=True)
        for i in range(files):
            (root / name / f"img.{i}.JPEG").write_bytes(f"{name}{i}".encode())


async def test_an_image_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "cats" / "empty.png").touch()
    (tmp_path / "cats" / "readme.md").write_text("not an image")
    manifest = await build_index(str(tmp_path), IndexOptions(slice_files=4))
    assert (manifest.kind, manifest.classes, manifest.samples) == ("folder", ("ants", "cats", "dogs"), 10)
    assert [shard.samples for shard in manifest.shards] == [4, 4, 2]
    batch = await read_all(tmp_path)
    assert by_key(batch)["dogs/img.2.JPEG"] == b"dogs2" and by_key(batch)["cats/empty.png"] is None
    assert batch.labels is not None and batch.labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2]


async def test_a_file_name_that_is_no_utf8_is_left_out_with_a_word(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with open(bytes(tmp_path / "cats") + b"/\xff.jpg", "wb") as file:  # noqa: ASYNC230, PTH123 - a name that no Path shows
        file.write(b"x")
    report = await build_report(str(tmp_path))
    assert report.manifest.samples == 9 and any("UTF-8" in warning for warning in report.tally.warnings)


async def test_links_are_not_followed_and_no_path_leaves_its_root(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x.jpg").write_bytes(b"secret")
    root = tmp_path / "root"
    write_folder(root)
    (root / "cats" / "link.jpg").symlink_to(secret / "x.jpg")
    (root / "linked").symlink_to(secret)
    manifest = await build_index(str(root))
    assert manifest.samples == 9
    (root / "cats" / "img.0.JPEG").unlink()
    (root / "cats" / "img.0.JPEG").symlink_to(secret / "x.jpg")
    with pytest.raises(ConfigInvalid, match="symbolic link"):
        await read_all(root)
    (root / "cats").rename(tmp_path / "moved")
    (root / "cats").symlink_to(tmp_path / "moved")
    with pytest.raises(ConfigInvalid, match="leads out"):
        await read_all(root)


async def test_multi_label_json_and_text_rules(tmp_path: Path) -> None:
    sets = [[0, 3], [], [2], "x"]
    write_tar(
        tmp_path / "m" / "a.tar",
        [(f"{i}.{e}", str(b).encode()) for i, s in enumerate(sets) for e, b in (("jpg", "x"), ("json", s))],
    )
    manifest = await build_index(str(tmp_path / "m"), IndexOptions(labels="multi"))
    assert (manifest.label_kind, manifest.label_width) == ("multi", 4)
    batch = await read_all(tmp_path / "m")
    assert isinstance(batch.labels, np.ndarray) and batch.labels.dtype == np.uint8
    assert batch.labels.tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert batch.samples[3].reason == "bad_label"

    texts = ['{"caption": "ein Käfer"}', "3", "{"]
    write_tar(
        tmp_path / "j" / "a.tar",
        [(f"{i}.{e}", b.encode()) for i, t in enumerate(texts) for e, b in (("jpg", "x"), ("json", t))],
    )
    manifest = await build_index(str(tmp_path / "j"))
    assert (manifest.label_kind, manifest.max_label_bytes) == ("json", len(texts[0].encode()))
    batch = await read_all(tmp_path / "j")
    assert batch.labels is None and batch.label_json == [texts[0].encode(), b"3", b"null"]

    write_tar(
        tmp_path / "t" / "a.tar",
        [(f"{i}.{e}", b) for i, t in enumerate([b"dog\n", b"ant", b"dog"]) for e, b in (("jpg", b"x"), ("txt", t))],
    )
    manifest = await build_index(str(tmp_path / "t"))
    assert manifest.classes == ("ant", "dog")
    assert (await read_all(tmp_path / "t")).labels.tolist() == [1, 0, 1]  # type: ignore[union-attr]
    manifest = await build_index(str(tmp_path / "t"), IndexOptions(labels="txt", classes={"dog": 7}))
    batch = await read_all(tmp_path / "t")
    assert batch.labels is not None and batch.labels.tolist() == [7, -1, 7] and batch.samples[1].reason == "bad_label"


async def test_class_sorted_data_are_noticed(tmp_path: Path) -> None:
    for name, label in (("sorted", lambda i: i // 20), ("mixed", lambda i: i * 7 % 5)):
        write_tar(
            tmp_path / name / "a.tar",
            [(f"{i:03}.{e}", b) for i in range(100) for e, b in (("jpg", b"x"), ("cls", b"%d" % label(i)))],
        )
    assert (await build_report(str(tmp_path / "sorted"))).class_sorted
    assert not (await build_report(str(tmp_path / "mixed"))).class_sorted
