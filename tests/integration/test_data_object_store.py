"""Indexing and reading from S3 (moto's server) and over HTTP: by range, checked against the manifest, faults retried."""

from __future__ import annotations

import asyncio
import http.server
import os
import threading
import traceback
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import from_url

from headrace.core.errors import AccessDenied, ConfigInvalid, ManifestMissing, ShardChanged, ShardMissing, SourceUnavailable
from headrace.datasets.build import IndexOptions, build_index
from headrace.datasets.scan import scan_tar
from headrace.datasets.storage import open_storage
from headrace.datasets.storage_object import ObjectStorage, Retry
from headrace.testing.tars import tar_bytes, write_dataset
from headrace.worker.sources.sharded import open_source

BUCKET = "s3://photos"


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(server: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket; its address."""
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=10).close()
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/photos", method="PUT"), timeout=10).close()
    return BUCKET


async def upload(directory: Path, address: str) -> None:
    storage = open_storage(address)
    for path in [Path(parent) / name for parent, _, names in os.walk(directory) for name in names]:
        await storage.put(str(path.relative_to(directory)), path.read_bytes())


async def test_index_and_read_by_range(s3: str, tmp_path: Path) -> None:
    images = list(write_dataset(tmp_path, 4, 25).items())
    await upload(tmp_path, f"{s3}/train")
    manifest = await build_index(f"{s3}/train", IndexOptions(checksums=True))
    assert manifest.samples == 100 and all(shard.etag for shard in manifest.shards)
    source = await open_source(f"{s3}/train", manifest.hash)
    ids = [99, 3, 4, 5, 60, 3]
    batch = await source.read(ids)
    assert [(sample.key, bytes(sample.data or b"")) for sample in batch.samples] == [images[i] for i in ids]
    assert batch.requests == 3 + 3, "three indexes, and three extents in three shards"
    again = await source.read([3, 4, 5])
    assert again.requests == 1 and again.read_bytes < 10_000
    await source.close()
    with pytest.raises(ConfigInvalid, match="of other data"):
        await build_index(f"{s3}/train/shard-0001.tar")
    assert await build_index(f"{s3}/train/", IndexOptions(checksums=True)) == manifest, "a slash makes no other data"


async def test_an_image_folder(s3: str, tmp_path: Path) -> None:
    for i in range(6):
        path = tmp_path / ("cat" if i % 2 else "dog") / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"%d" % i)
    await upload(tmp_path, f"{s3}/folder")
    manifest = await build_index(f"{s3}/folder")
    assert (manifest.classes, manifest.kind) == (("cat", "dog"), "folder")
    source = await open_source(f"{s3}/folder")
    batch = await source.read(range(6))
    assert [bytes(sample.data or b"") for sample in batch.samples] == [b"1", b"3", b"5", b"0", b"2", b"4"]
    storage = open_storage(f"{s3}/folder")
    await storage.put("cat/3.jpg", b"longer")
    with pytest.raises(ShardChanged) as caught:
        await source.read([1])
    assert caught.value.ids["path"] == "cat/3.jpg"
    await source.close()


async def test_vanished_and_changed_shards(s3: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, 3, 20)
    await upload(tmp_path, f"{s3}/v")
    await build_index(f"{s3}/v")
    storage = open_storage(f"{s3}/v")
    data = (tmp_path / "shard-0001.tar").read_bytes()
    for content, error in (
        (data[:-512], ShardChanged),
        (data.replace(b"s000020", b"t000020"), ShardChanged),
        (None, ShardMissing),
    ):
        if content is None:
            await obstore.delete_async(from_url(f"{s3}/v", client_options={"allow_http": True}), "shard-0001.tar")
        else:
            await storage.put("shard-0001.tar", content)
        source = await open_source(f"{s3}/v")
        with pytest.raises(error) as caught:
            await source.read([1, 21])
        assert caught.value.ids["shard"] == "shard-0001.tar"
        assert len((await source.read([1])).samples) == 1, "other shards go on"
        await source.close()


async def test_a_shard_cut_after_it_was_checked_is_told_as_changed(s3: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 30)
    await upload(tmp_path, f"{s3}/c")
    await build_index(f"{s3}/c")
    source = await open_source(f"{s3}/c")
    await source.read([0])
    await open_storage(f"{s3}/c").put("shard-0000.tar", (tmp_path / "shard-0000.tar").read_bytes()[:2000])
    with pytest.raises(ShardChanged):
        await source.read([29])
    await source.close()


async def test_a_manifest_made_on_disk_serves_a_copy_in_a_store(s3: str, tmp_path: Path) -> None:
    images = write_dataset(tmp_path, 2, 10)
    manifest = await build_index(str(tmp_path))
    await upload(tmp_path, f"{s3}/copy")
    source = await open_source(f"{s3}/copy", manifest.hash)
    batch = await source.read(range(20))
    assert [bytes(sample.data or b"") for sample in batch.samples] == list(images.values())
    await source.close()
    data = (tmp_path / "shard-0001.tar").read_bytes().replace(b"s000010", b"t000010")
    await open_storage(f"{s3}/copy").put("shard-0001.tar", data)
    source = await open_source(f"{s3}/copy", manifest.hash)
    with pytest.raises(ShardChanged, match="other content"):
        await source.read([12])
    await source.close()


async def test_nothing_there(s3: str) -> None:
    with pytest.raises(ManifestMissing):
        await open_source(f"{s3}/nowhere")
    with pytest.raises(ShardMissing):
        await build_index(f"{s3}/nowhere")


async def test_only_headers_are_read_of_big_members(s3: str, tmp_path: Path) -> None:
    members = [(f"{i}.{ext}", data) for i in range(4) for ext, data in (("jpg", bytes(6 << 20)), ("cls", b"1"))]
    data = tar_bytes(members)
    storage = ObjectStorage(f"{s3}/big")
    await storage.put("a.tar", data)
    read = 0
    get_range = storage.get_range

    async def counted(path: str, start: int, length: int) -> memoryview:
        nonlocal read
        read += length
        return await get_range(path, start, length)

    storage.get_range = counted  # type: ignore[method-assign]
    found = await scan_tar(storage, "a.tar", len(data), False)
    assert [(member.name, member.size) for member in found.members] == [(name, len(content)) for name, content in members]
    assert read < len(data) / 4


class FlakyHandler(http.server.BaseHTTPRequestHandler):
    """Fails the first `failures` requests in the way of `how`, then serves b"x" * 1000 by range."""

    def __init__(self, state: dict[str, int], how: str, *args: object) -> None:
        self.state, self.how = state, how
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.state["requests"] += 1
        if self.state["requests"] <= self.state["failures"]:
            if self.how == "status":
                self.send_error(503)
            else:  # a body that ends early
                self.send_response(206)
                self.send_header("Content-Length", "100")
                self.send_header("Content-Range", "bytes 0-99/1000")
                self.end_headers()
                self.wfile.write(b"x" * 10)
                self.connection.close()
            return
        self.send_response(206)
        self.send_header("Content-Length", "100")
        self.send_header("Content-Range", "bytes 0-99/1000")
        self.end_headers()
        self.wfile.write(b"x" * 100)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("how", "failures"), [("status", 5), ("cut", 2)])
async def test_faults_that_pass_are_retried(how: str, failures: int) -> None:
    state = {"requests": 0, "failures": failures}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(FlakyHandler, state, how))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        storage = ObjectStorage(f"http://127.0.0.1:{server.server_port}/d", Retry(first_delay_s=0.01))
        assert await storage.get_range("a.tar", 0, 100) == b"x" * 100
        assert state["requests"] == failures + 1
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


async def test_a_store_that_is_down_is_told_after_the_retries() -> None:
    address = "http://user:secret@127.0.0.1:1/d"
    with pytest.raises(SourceUnavailable) as caught:
        await ObjectStorage(address, Retry(attempts=2, first_delay_s=0.01)).get("a.tar")
    assert caught.value.retriable and caught.value.ids["path"] == "a.tar"
    text = "".join(traceback.format_exception(caught.value))
    assert "secret" not in text.replace(__file__, "").partition("SourceUnavailable")[2] and "127.0.0.1:1" in str(caught.value)


class RefusingHandler(http.server.BaseHTTPRequestHandler):
    """Answers everything with one status and counts."""

    def __init__(self, status: int, asked: list[str], *args: Any) -> None:
        self.status, self.asked = status, asked
        super().__init__(*args)

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_access_is_told_at_once(status: int) -> None:
    asked: list[str] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(RefusingHandler, status, asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        storage = ObjectStorage(f"http://user:secret@127.0.0.1:{server.server_port}/d")
        for call in (storage.get("a.tar"), storage.get_range("a.tar", 0, 100), storage.head("a.tar")):
            with pytest.raises(AccessDenied, match="credentials") as caught:
                await call
            assert not caught.value.retriable and caught.value.ids["path"] == "a.tar"
            assert "secret" not in str(caught.value)
        assert len(asked) == 3, "no try more: it would be refused again"
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


async def test_a_store_that_never_answers_is_told_at_the_deadline() -> None:
    silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(3600), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent:
        with pytest.raises(SourceUnavailable) as caught:
            await ObjectStorage(f"http://127.0.0.1:{port}/d", Retry(deadline_s=0.5)).get("a.tar")
        assert caught.value.ids["path"] == "a.tar"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_no_descriptor_or_thread_is_left(tmp_path: Path) -> None:
    write_dataset(tmp_path, 3, 20)
    await build_index(str(tmp_path))

    async def use() -> None:
        source = await open_source(str(tmp_path))
        await source.read(range(60))
        await source.close()

    await use()
    descriptors = open_descriptors()
    for _ in range(5):
        await use()
    assert open_descriptors() <= descriptors
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-read"):
            thread.join(10)
            assert not thread.is_alive()
