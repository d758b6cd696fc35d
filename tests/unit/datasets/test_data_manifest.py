"""Manifests: named by their hash, never changed; and what reading does when the data are not what was indexed."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.errors import (
    AccessDenied,
    ConfigInvalid,
    DiskFull,
    ManifestInvalid,
    ManifestMissing,
    ShardChanged,
    ShardMissing,
)
from headrace.core.masking import mask_address
from headrace.datasets.build import IndexOptions, build_index
from headrace.datasets.manifest import Manifest, load_manifest
from headrace.datasets.storage import open_storage
from headrace.datasets.storage_local import translate
from headrace.testing.tars import write_dataset, write_tar
from headrace.worker.sources.index_cache import IndexCache
from headrace.worker.sources.sharded import open_source


async def test_pointer_file_and_directory_name_one_manifest(tmp_path: Path) -> None:
    write_dataset(tmp_path, 2, 5)
    built = await build_index(str(tmp_path))
    file = tmp_path / f"manifest-{built.hash}.json"
    assert hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() == built.hash
    for address in (tmp_path, file, tmp_path / "manifest.json", f"file://{tmp_path}"):
        loaded = await load_manifest(str(address))
        assert loaded == built and loaded.hash == built.hash
    assert await build_index(str(tmp_path)) == built, "the same data have the same manifest"


async def test_an_old_manifest_stays_readable_when_the_pointer_moves(tmp_path: Path) -> None:
    write_dataset(tmp_path, 2, 5)
    old = await build_index(str(tmp_path))
    write_tar(tmp_path / "shard-0002.tar", [("z.jpg", b"z"), ("z.cls", b"1")])
    new = await build_index(str(tmp_path))
    assert (await load_manifest(str(tmp_path))).hash == new.hash != old.hash
    source = await open_source(str(tmp_path), old.hash)
    assert source.manifest_hash == old.hash and len((await source.read([9])).samples) == 1
    await source.close()


async def test_a_manifest_that_is_not_the_expected_one_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 5)
    built = await build_index(str(tmp_path))
    with pytest.raises(ManifestInvalid) as caught:
        await open_source(str(tmp_path), "0" * 32)
    assert caught.value.ids == {"manifest": built.hash, "expected": "0" * 32}


async def test_no_manifest(tmp_path: Path) -> None:
    for address in (tmp_path, tmp_path / "manifest.json", tmp_path / "no" / "where", tmp_path / f"manifest-{'0' * 32}.json"):
        with pytest.raises(ManifestMissing, match="headrace index"):
            await load_manifest(str(address))


async def test_changed_and_malformed_manifests_are_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 5)
    built = await build_index(str(tmp_path))
    file = tmp_path / built.file_name
    good = json.loads(file.read_bytes())
    file.write_bytes(file.read_bytes().replace(b'"samples":5', b'"samples":4'))
    with pytest.raises(ManifestInvalid, match="was changed or cut"):
        await load_manifest(str(file))
    shard = good["shards"][0]
    for change in (
        {"version": 99},
        {"extra": 1},
        {"samples": 4},
        {"shards": [{**shard, "name": "../x.tar"}]},
        {"shards": [{**shard, "index": "/etc/passwd"}]},
        {"shards": [{"name": "x"}]},
        {"kind": "zip"},
        {"label_width": "x"},
        {"shards": None},
    ):
        other = tmp_path / "other.json"
        other.write_text(json.dumps({**good, **change}))
        with pytest.raises(ManifestInvalid):
            await load_manifest(str(other))
    for text in ("", "[]", "{", "null", '{"headrace_manifest": "../x.json"}', '{"headrace_manifest": 3}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ManifestInvalid):
            await load_manifest(str(tmp_path))


def test_manifest_content_round_trips() -> None:
    manifest = Manifest("folder", "int", 1, 2, 0, 0, 3, 8, ("ä", "b"), ())
    assert Manifest.from_content(manifest.content, "here") == manifest


@pytest.mark.parametrize("checksums", [False, True])
async def test_vanished_grown_and_rewritten_shards_are_named(tmp_path: Path, checksums: bool) -> None:
    write_dataset(tmp_path, 3, 8)
    await build_index(str(tmp_path), IndexOptions(checksums=checksums))
    shard = tmp_path / "shard-0001.tar"
    data = shard.read_bytes()
    source = await open_source(str(tmp_path))
    await source.read(range(24))

    shard.unlink()
    with pytest.raises(ShardMissing) as gone:
        await source.read([3, 12])
    assert gone.value.ids["shard"] == "shard-0001.tar"
    for changed in (data + b"\0" * 512, data[:-512], data[:600]):
        shard.write_bytes(changed)
        with pytest.raises(ShardChanged) as caught:
            await source.read([12])
        assert caught.value.ids["shard"] == "shard-0001.tar" and not caught.value.retriable
    shard.write_bytes(data)
    assert (await source.read([12])).samples[0].data
    await source.close()

    shard.write_bytes(data.replace(b"s000008", b"t000008"))  # the same size
    fresh = await open_source(str(tmp_path))
    with pytest.raises(ShardChanged, match="other content"):
        await fresh.read([12])
    await fresh.close()


async def test_a_folders_files_are_checked_too(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.jpg").write_bytes(b"x" * 10)
    await build_index(str(tmp_path))
    source = await open_source(str(tmp_path))
    (tmp_path / "1.jpg").unlink()
    (tmp_path / "2.jpg").write_bytes(b"x" * 11)
    with pytest.raises(ShardMissing) as gone:
        await source.read([0, 1])
    assert gone.value.ids == {"shard": "slice-00000", "path": "1.jpg"}
    with pytest.raises(ShardChanged) as caught:
        await source.read([2])
    assert caught.value.ids == {"shard": "slice-00000", "path": "2.jpg"}
    await source.close()


async def test_a_flipped_byte_is_a_bad_sample_where_checksums_are_kept(tmp_path: Path) -> None:
    images = write_dataset(tmp_path, 1, 60)
    await build_index(str(tmp_path), IndexOptions(checksums=True))
    data = bytearray((tmp_path / "shard-0000.tar").read_bytes())
    data[data.index(images["s000030"]) + 50] ^= 1  # outside of the edges that are hashed
    (tmp_path / "shard-0000.tar").write_bytes(data)
    source = await open_source(str(tmp_path))
    batch = await source.read(range(60))
    assert [sample.sample_id for sample in batch.samples if sample.reason == "checksum"] == [30]
    assert batch.samples[30].data is None and batch.samples[29].data is not None
    await source.close()


async def test_an_index_that_is_gone_or_another_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, 2, 5)
    manifest = await build_index(str(tmp_path))
    first, second = (tmp_path / shard.index for shard in manifest.shards)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1] + b"X")
    source = await open_source(str(tmp_path))
    for sample_id, shard in ((0, "shard-0000.tar"), (5, "shard-0001.tar")):
        with pytest.raises(ManifestInvalid) as caught:
            await source.read([sample_id])
        assert caught.value.ids["shard"] == shard
    with pytest.raises(ManifestInvalid) as outside:
        await source.read([10])
    assert outside.value.ids["sample"] == 10
    await source.close()


async def test_blocks_of_a_large_index_give_the_same_and_stay_bounded(tmp_path: Path, seed: int) -> None:
    images = list(write_dataset(tmp_path, 2, 200).items())
    manifest = await build_index(str(tmp_path))
    source = await open_source(str(tmp_path))
    storage = open_storage(str(tmp_path))
    bound = 3000
    source._index = IndexCache(manifest, storage, cache_bytes=bound, whole_bytes=0, block_rows=16)
    random.seed(seed)
    reads = [random.choices(range(400), k=random.randrange(1, 40)) for _ in range(20)]
    batches = await asyncio.gather(*(source.read(ids) for ids in reads))
    for ids, batch in zip(reads, batches, strict=True):
        assert [(sample.key, bytes(sample.data or b"")) for sample in batch.samples] == [images[i] for i in ids]
    assert source._index.nbytes <= bound
    await source.close()
    await storage.close()


async def test_indexes_that_do_not_fit_the_cache_are_read_by_blocks(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 3000)
    manifest = await build_index(str(tmp_path))
    size = manifest.shards[0].index_bytes
    storage = open_storage(str(tmp_path))
    for cache_bytes, most in ((size, size), (size - 1, size // 5)):
        cache = IndexCache(manifest, storage, cache_bytes=cache_bytes)
        block = await cache.get(cache.key_of(0, 2999))
        assert block.key(2999 - block.first) == "s002999"
        assert cache.read_bytes <= most
        await cache.close()
    await storage.close()


async def test_one_read_of_an_index_serves_all_that_wait_for_it(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 50)
    manifest = await build_index(str(tmp_path))
    storage = open_storage(str(tmp_path))
    cache = IndexCache(manifest, storage)
    first, *others = [asyncio.ensure_future(cache.get(cache.key_of(0, row))) for row in range(20)]
    while not cache._loading:  # noqa: ASYNC110 - a state of the cache, not an event
        await asyncio.sleep(0)
    first.cancel()  # who asked first goes away; the others must not fail
    blocks = await asyncio.gather(*others)
    assert cache.requests == 1 and all(block is blocks[0] for block in blocks)
    assert first.cancelled()
    await cache.close()
    await storage.close()


async def test_neighbours_are_one_request(tmp_path: Path) -> None:
    write_dataset(tmp_path, 2, 40)
    await build_index(str(tmp_path))
    source = await open_source(str(tmp_path))
    await source.read([0, 79])
    assert (await source.read(range(30))).requests == 1
    assert (await source.read([*range(30, 50)])).requests == 2, "one for each shard"
    await source.close()


async def test_a_full_disk_is_told_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_dataset(tmp_path / "data", 1, 5)
    out = tmp_path / "out"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull) as caught:
        await build_index(str(tmp_path / "data"), IndexOptions(out=str(out)))
    assert str(out) in str(caught.value.ids["path"])
    assert [path for path in out.rglob("*") if path.is_file()] == []


def test_a_really_full_disk(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", 1, 2000)  # its index has 94 kB
    out = tmp_path / "out"
    out.mkdir()
    mount = f"mount -t tmpfs -o size=32k tmpfs {out}"

    def apart(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)

    if apart(mount).returncode:
        pytest.skip("no user namespaces here: a small disk cannot be made")
    program = f"{sys.executable} -c 'from headrace.cli.main import main; main()'"
    done = apart(f"{mount} && {program} index {tmp_path / 'data'} --out {out}; echo $?; ls -A {out}/.index")
    assert "no space left" in done.stderr and "disk_full" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.split()[-1:] == ["1"], "exit status 1, and no partial file"


@pytest.mark.parametrize("place", ["file", "file/below"])
async def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    write_dataset(tmp_path / "data", 1, 5)
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ConfigInvalid, match="choose another place"):
        await build_index(str(tmp_path / "data"), IndexOptions(out=str(tmp_path / place)))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_refused_access_is_no_fault_that_may_pass(code: int) -> None:
    error = translate(OSError(code, os.strerror(code)), Path("/data/a.tar"))
    assert isinstance(error, AccessDenied) and not error.retriable and error.ids["path"] == "/data/a.tar"


def test_credentials_are_masked() -> None:
    assert mask_address("https://user:secret@host/a/b?sig=secret") == "https://***@host/a/b?***"
    assert mask_address("/local/a@b?c") == "/local/a@b?c"
