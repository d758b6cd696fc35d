"""`headrace quarantine` as a person meets it, over a real admin API."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from headrace.cli.main import cli
from headrace.coordinator import admin_api
from headrace.coordinator.board import Board
from headrace.coordinator.instruments import Instruments
from headrace.coordinator.ledger import Ledger
from headrace.coordinator.manifests import Manifests
from headrace.coordinator.serve import AdminServer
from headrace.coordinator.store import Loaded, Store, Table
from headrace.coordinator.store_memory import MemoryStore
from headrace.core.errors import ConfigInvalid, StoreUnavailable
from headrace.core.events import BadSample, Open, Rules
from headrace.core.job import JobSpec
from headrace.datasets.build import build_index
from headrace.datasets.exclude import format_exclusions, parse_exclusions
from headrace.datasets.manifest import load_manifest
from headrace.testing.tars import write_tar
from headrace.wire.secret import Secret

ESCAPE = "\x1b[31mred"


class Away(MemoryStore):
    """A store that has never answered."""

    async def load(self, wanted: Mapping[Table, Sequence[str] | None]) -> Loaded:
        raise StoreUnavailable("the store at 127.0.0.1:1 cannot be used: refused.")


class Coordinator:
    """A ledger, a board and the admin API on an event loop in a thread."""

    token: Secret | None = None

    def __init__(self, store: Store | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        instruments = Instruments(CollectorRegistry())
        self.ledger = Ledger(store or MemoryStore(), Rules(), instruments)
        self.board = Board(self.ledger, 60)
        manifests = Manifests(load_manifest, 0)
        app = admin_api.build(self.board, self.ledger, instruments, manifests, self.token)
        self.server = AdminServer(app, "127.0.0.1:0", tls)
        self.run(self.server.start())
        self.admin = f"127.0.0.1:{self.server.port}"
        self.run(self.board._pass_or_tell())

    def run(self, call):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(20)

    async def open(self, dataset: Path) -> None:
        manifest = await load_manifest(str(dataset))
        spec = JobSpec("job", str(dataset), 2, manifest_hash=manifest.hash, samples=manifest.samples)
        await self.ledger.update("job", Open(spec, 1))
        await self.board.refresh("job")

    def close(self) -> None:
        self.run(self.server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator()
    yield running
    running.close()


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli, [*map(str, arguments)])


def data_set(directory: Path) -> Path:
    for shard in ("a", "b"):
        write_tar(directory / f"{shard}.tar", [(f"{key}.{e}", b"1") for key in ("k0", "k1", ESCAPE) for e in ("jpg", "cls")])
    asyncio.run(build_index(str(directory)))
    return directory


def test_bad_samples_are_shown_written_and_left_out(coordinator: Coordinator, tmp_path: Path) -> None:
    dataset = data_set(tmp_path / "data")
    coordinator.run(coordinator.open(dataset))
    assert run("quarantine", "job", "--admin", coordinator.admin).output == "job job: no bad sample was met\n"
    met = [BadSample(0, 4, "k1", "truncated"), BadSample(1, 4, "k1", "truncated"), BadSample(0, 2, ESCAPE, "corrupt")]
    coordinator.run(coordinator.ledger.quarantine.record("job", met))
    # The data set is indexed again meanwhile: shards are still those of the job's own manifest.
    write_tar(dataset / "0.tar", [("z.jpg", b"1"), ("z.cls", b"1")])
    asyncio.run(build_index(str(dataset)))
    file = tmp_path / "bad.jsonl"
    result = run("quarantine", "job", "--admin", coordinator.admin, "--write", file)
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert lines[0] == "job job: 2 bad samples (1 corrupt, 1 truncated), met 3 times"
    assert lines[1].split() == ["shard", "key", "reason", "epochs", "last"]
    assert lines[2].split() == ["a.tar", r"\x1b[31mred", "corrupt", "1", "0"], "no escape code reaches the terminal"
    assert lines[3].split() == ["b.tar", "k1", "truncated", "2", "1"]
    assert lines[4] == f"2 samples written; to leave them out: headrace index ADDRESS --exclude {file}"
    assert parse_exclusions(file.read_text()) == {("b.tar", "k1"), ("a.tar", ESCAPE)}
    again = run("index", dataset, "--exclude", file)
    assert again.exit_code == 0, again.output
    assert "samples   5" in again.output and "excluded  2" in again.output and "warning" not in again.output
    file.write_text(file.read_text() + "nowhere\n")
    again = run("index", dataset, "--exclude", file)
    assert "1 of 3 samples to exclude are not in the data set: 'nowhere'" in again.output


def test_json_is_what_the_api_says(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.run(coordinator.open(data_set(tmp_path)))
    coordinator.run(
        coordinator.ledger.quarantine.record("job", [BadSample(7, sample, f"k{sample}", "empty") for sample in range(4)])
    )
    found = json.loads(run("quarantine", "job", "--admin", coordinator.admin, "--json").output)
    assert (found["total"], found["unlisted"], found["note"]) == (4, 0, "")
    assert found["samples"][3] == {
        "sample": 3, "shard": "b.tar", "key": "k3", "reason": "empty", "count": 1, "last_epoch": 7,
    }  # fmt: skip
    assert "and 3 more" in run("quarantine", "job", "--admin", coordinator.admin, "--show", 1).output


def test_a_data_set_that_is_gone_costs_the_shards_alone(coordinator: Coordinator, tmp_path: Path) -> None:
    dataset = data_set(tmp_path / "data")
    coordinator.run(coordinator.open(dataset))
    coordinator.run(coordinator.ledger.quarantine.record("job", [BadSample(0, 1, "k1", "empty")]))
    dataset.rename(tmp_path / "moved")
    result = run("quarantine", "job", "--admin", coordinator.admin, "--write", tmp_path / "bad")
    assert result.exit_code == 0 and "shards cannot be named" in result.output
    assert parse_exclusions((tmp_path / "bad").read_text()) == {"k1"}


def test_what_cannot_be_asked_is_told_in_a_line(coordinator: Coordinator, tmp_path: Path) -> None:
    for arguments, said in (
        (("other", "--admin", coordinator.admin), "no job other is open"),
        (("job", "--admin", "127.0.0.1:1"), "no admin API answers at 127.0.0.1:1"),
        (("job", "--admin", "ftp://x"), "must be HOST:PORT"),
    ):
        result = run("quarantine", *arguments)
        assert result.exit_code == 1 and said in result.output and len(result.output.splitlines()) == 1
    coordinator.run(coordinator.open(data_set(tmp_path / "data")))
    result = run("quarantine", "job", "--admin", coordinator.admin, "--write", tmp_path / "no" / "where")
    assert result.exit_code == 1 and "cannot be written" in result.output


def test_exclusion_files_of_every_form() -> None:
    keys = ["plain", "with space ", "tab\there", '{"odd', "line\nbreak", "käfer", "#no comment"]
    text = format_exclusions({"key": key, "shard": "s.tar", "count": 3} for key in keys)
    assert parse_exclusions(text) == {("s.tar", key) for key in keys}
    assert parse_exclusions("a\r\nb \n\n#c\n") == {"a", "b ", "#c"}
    for wrong in ('{"key": 3}', '{"shard": "a"}', '{"key"', '{"key": ""}', '{"key": "a", "shard": null}', '{"' * 100_000):
        with pytest.raises(ConfigInvalid, match="line 2"):
            parse_exclusions(f"a\n{wrong}\n")
