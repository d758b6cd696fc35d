"""Shards in stores that refuse the tags which they name: read where the manifest vouches by content, else told as changed."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ShardChanged
from headrace.datasets.build import IndexOptions, build_index
from headrace.datasets.edges import edge_ranges
from headrace.testing.tars import write_dataset
from headrace.worker.sources.sharded import open_source


class TagHandler(http.server.BaseHTTPRequestHandler):
    """Serves a directory by range with one tag, and refuses demands for that tag, at the edges of a file only if told so."""

    def __init__(self, root: Path, edges: bool, refused: list[int], *args: Any) -> None:
        self.root, self.edges, self.refused = root, edges, refused
        super().__init__(*args)

    def do_GET(self) -> None:
        path = self.root / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        span = self.headers["Range"]
        first, last = (int(number) for number in span.removeprefix("bytes=").split("-")) if span else (0, len(data) - 1)
        at_edge = first in [start for start, _ in edge_ranges(len(data))]
        if self.headers["If-Match"] and (self.edges or not at_edge):
            self.refused.append(first)
            self.send_error(412)
            return
        if span:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}")
            data = data[first : last + 1]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"of-this-server"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(root: Path, *, edges: bool) -> Iterator[tuple[str, list[int]]]:
    """The server's address, and the first bytes of the ranges that it refused by tag."""
    refused: list[int] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(TagHandler, root, edges, refused))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", refused
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("edges", [True, False], ids=["everywhere", "past the check"])
async def test_without_a_recorded_tag_a_tag_that_is_refused_is_done_without(tmp_path: Path, edges: bool) -> None:
    images = list(write_dataset(tmp_path, 1, 30).values())
    manifest = await build_index(str(tmp_path))
    with serving(tmp_path, edges=edges) as (address, refused):
        source = await open_source(address, manifest.hash)
        for sample in (3, 20, 29):
            (read,) = (await source.read([sample])).samples
            assert bytes(read.data or b"") == images[sample]
        await source.close()
        assert 1 <= len(refused) <= 2, "asked once and once again, then never more"


async def test_without_a_recorded_tag_the_content_is_checked_all_the_same(tmp_path: Path) -> None:
    write_dataset(tmp_path, 1, 30)
    manifest = await build_index(str(tmp_path))
    tar = tmp_path / "shard-0000.tar"
    tar.write_bytes(tar.read_bytes().replace(b"s000000", b"t000000"))
    with serving(tmp_path, edges=True) as (address, refused):
        source = await open_source(address, manifest.hash)
        with pytest.raises(ShardChanged, match="other content"):
            await source.read([12])
        await source.close()
        assert refused


async def test_with_a_recorded_tag_a_tag_that_is_refused_is_told_as_changed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_dataset(tmp_path / "data", 1, 30)
    with serving(tmp_path / "data", edges=True) as (address, refused):
        manifest = await build_index(f"{address}/shard-{{0000..0000}}.tar", IndexOptions(out=str(tmp_path / "index")))
        assert [shard.etag for shard in manifest.shards] == ['"of-this-server"']
        source = await open_source(str(tmp_path / "index"))
        with pytest.raises(ShardChanged, match="refuses the tag") as caught:
            await source.read([12])
        assert caught.value.ids["shard"] == "shard-0000.tar"
        await source.close()
        assert len(refused) == 2
