"""What an address names: a directory, tars by their names, or something that is no data set, of which it is said what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import ConfigInvalid, ManifestMissing, ShardInvalid, ShardMissing
from headrace.datasets.build import build_index, build_report
from headrace.datasets.manifest import load_manifest
from headrace.testing.tars import write_dataset, write_tar
from headrace.worker.sources.sharded import open_source


async def test_nothing_there(tmp_path: Path) -> None:
    for name in ("nowhere", "nowhere.tar", "nowhere.tar.gz"):
        with pytest.raises(ShardMissing, match="correct the address"):
            await build_index(str(tmp_path / name))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ShardMissing, match="no tar and no image"):
        await build_index(str(tmp_path))
    with pytest.raises(ShardMissing) as caught:
        await build_index(str(tmp_path / "a-{00..03}.tar"))
    # Shards are looked at side by side: whichever is found missing first is named.
    assert Path(str(caught.value.ids["shard"])).name in {f"a-{number:02}.tar" for number in range(4)}


@pytest.mark.parametrize("address", ["", " ", "\n"])
async def test_an_empty_address_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    (tmp_path / "x.jpg").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigInvalid, match="the address is empty"):
        await build_index(address)
    with pytest.raises(ManifestMissing):
        await load_manifest(str(tmp_path))


@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "TAR.GZ", "tar.bz2", "tbz2", "tar.xz", "txz", "tar.zst", "tar.lz4"])
async def test_compressed_tars_are_to_be_unpacked_wherever_they_are_named(tmp_path: Path, ending: str) -> None:
    name = f"a-00.{ending}"
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "notes.md").touch()
    for address in (tmp_path, tmp_path / name, tmp_path / f"a-{{00..00}}.{ending}", f"s3://bucket/{name}", f"http://h/{name}"):
        with pytest.raises(ShardInvalid, match="unpack it"):
            await build_index(str(address))
    write_tar(tmp_path / "b.tar", [("a.jpg", b"1"), ("a.cls", b"1")])
    report = await build_report(str(tmp_path))
    assert [said for said in report.tally.warnings if name in said and "unpack it" in said], "beside others, too"


async def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    write_dataset(tmp_path / "old.tar.gz", 1, 3)
    assert (await build_index(str(tmp_path / "old.tar.gz"))).samples == 3


@pytest.mark.parametrize("name", ["A.TAR", "a.Tar"])
async def test_the_ending_of_a_tar_may_be_in_upper_case(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / name, [("a.jpg", b"1"), ("a.cls", b"1")])
    for address in (tmp_path, tmp_path / name):
        assert [shard.name for shard in (await build_index(str(address))).shards] == [name]
    source = await open_source(str(tmp_path))
    assert [sample.data for sample in (await source.read([0])).samples] == [b"1"]
    await source.close()


@pytest.mark.parametrize("name", ["classes.txt", "x.jpg", "data"])
async def test_a_file_that_is_no_tar_is_said_to_be_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cat")
    for address in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
        with pytest.raises(ShardInvalid, match="is no tar"):
            await build_index(address)


async def test_braces_name_shards(tmp_path: Path) -> None:
    write_dataset(tmp_path, 4, 3)
    manifest = await build_index(str(tmp_path / "shard-{0001..0002}.tar"))
    assert [shard.name for shard in manifest.shards] == ["shard-0001.tar", "shard-0002.tar"]


async def test_an_http_server_is_not_listed() -> None:
    with pytest.raises(ConfigInvalid, match="braces"):
        await build_index("http://user:pw@127.0.0.1:1/d")
