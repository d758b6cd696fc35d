"""`headrace diagnose` on real fleets: what starves is told so, what does not is left alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

import headrace
from headrace.cli.main import cli
from headrace.core.bottleneck import SLOWED
from headrace.core.errors import ConfigInvalid
from headrace.core.records import job_from_bytes
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.slow_worker import Delay, Slow

# Far apart, so that a busy machine cannot turn one into the other.
SLOW_S = 0.1
BATCH = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_demo_dataset(tmp_path_factory.mktemp("photos"), samples=200, shards=2))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker, whose decoding takes long."""
    slow = json.dumps(asdict(Slow((Delay("decode", SLOW_S, 0, 1_000_000),))))
    directory = tmp_path_factory.mktemp("fleet")
    module = "headrace.testing.slow_worker"
    with Cluster(directory, workers=1, worker_module=module, worker_args=("--slow", slow)) as cluster:
        yield cluster


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli, list(map(str, arguments)))


def diagnosed(fleet: Cluster, dataset: str, *more: object) -> dict[str, Any]:
    common = ("--coordinator", fleet.addresses, "--batch-size", BATCH, "--json", "--warmup", 1)
    result = run("diagnose", dataset, *common, *more)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_step_that_is_faster_than_the_fleet_is_input_bound(fleet: Cluster, dataset: str, tmp_path: Path) -> None:
    picture = tmp_path / "step.png"
    found = diagnosed(fleet, dataset, "--step-time", "1ms", "--steps", 10, "--plot", picture)
    assert (found["verdict"], found["bottleneck"]) == ("input-bound", "decode")
    assert found["won_share"] > 0.8
    assert found["measured"]["cached_s"] < SLOW_S / 3 < SLOW_S < found["measured"]["live_s"] * 1.1
    assert found["measured"]["stages"]["decode_s"] > SLOW_S * 0.9
    assert found["workers_wanted"] > 3
    assert "workers like these instead of 1" in found["actions"][0]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_a_busy_worker_costs_the_step_is_measured_where_it_is_asked_for(fleet: Cluster, dataset: str) -> None:
    common = ("diagnose", dataset, "--coordinator", fleet.addresses, "--batch-size", BATCH, "--steps", 4, "--warmup", 1)
    result = run(*common, "--step-time", "5ms", "--beside", "--json")
    assert result.exit_code == 0, result.output
    cost = json.loads(result.stdout)["measured"]["contention"]
    assert min(cost["idle_s"], cost["busy_s"]) >= 0.005
    assert (cost["batch_size"], cost["on_gpu"]) == (BATCH, False)
    # Nobody works on a GPU here, so that nothing is measured unasked.
    assert diagnosed(fleet, dataset, "--step-time", "1ms", "--steps", 2)["measured"]["contention"] is None
    told = run(*common, "--step-time", "5ms", "--beside")
    assert "Beside the step: a worker at work beside it" in told.output


def test_its_job_is_not_kept_as_trainings_are(fleet: Cluster, dataset: str) -> None:
    """Or one a day would fill the list of jobs for three months; a training beside it says nothing of that."""
    diagnosed(fleet, dataset, "--step-time", "1ms", "--steps", 1)
    with headrace.connect(fleet.addresses) as client:
        client.job("train", dataset=dataset, batch_size=BATCH)
    with redis.Redis.from_url(fleet.store_url) as store:
        kept = {
            key.decode().partition("{job:")[2].partition("}")[0]: job_from_bytes(record.partition(b" ")[2]).keep_s
            for key in store.scan_iter("*{job:*}:main")
            if (record := store.hget(key, "job"))
        }
    assert kept.pop("train") == 0
    assert kept and all(name.startswith("diagnose-") and 0 < keep_s <= 3600 for name, keep_s in kept.items()), kept


def test_a_step_that_is_slower_than_the_fleet_is_told_to_leave_its_loader_alone(fleet: Cluster, dataset: str) -> None:
    found = diagnosed(fleet, dataset, "--step-time", f"{6 * SLOW_S}s", "--steps", 3)
    assert found["verdict"] in ("compute-bound", "balanced"), found
    assert found["won_share"] < 0.1
    assert sum(found["measured"]["waits_s"].values()) < SLOW_S, "the batches were there"
    if found["verdict"] == "compute-bound":
        assert "leave the loader alone" in found["actions"][0]


def test_what_is_printed_can_be_run_as_a_what_if(fleet: Cluster, dataset: str) -> None:
    common = ("--coordinator", fleet.addresses, "--batch-size", BATCH, "--warmup", 0)
    printed = run("diagnose", dataset, *common, "--step-time", "40ms", "--steps", 5)
    assert printed.exit_code == 0, printed.output
    assert "input-bound" in printed.output and "What to do:\n  1. run about" in printed.output
    line = next(line.strip() for line in printed.output.splitlines() if line.strip().startswith("headrace plan"))
    what_if = json.loads(run(*line.split()[1:], "--json").output)["cpu"]
    assert what_if["bottleneck"] == "engine" and what_if["overlapped_s"] > SLOW_S * 0.9
    more = json.loads(run(*line.split()[1:], "--json", "--workers", what_if["workers_wanted"]).output)["cpu"]
    assert more["wait_share"] < 0.01
    assert "step, overlapped" in run(*line.split()[1:]).output


def test_from_python_with_a_step_of_ones_own(fleet: Cluster, dataset: str) -> None:
    seen: list[tuple[int, bool]] = []

    def step(batch: headrace.Batch) -> None:
        seen.append((batch.batch, bool(batch.pixels.flags.writeable)))
        time.sleep(0.01)

    with headrace.connect(fleet.addresses) as client, client.job("own", dataset=dataset, batch_size=BATCH).stream() as stream:
        found = headrace.diagnose(step, stream, steps=6, warmup=2)
        window = stream.join().window
        assert stream.stats().batches == 1 + window + 2 + 6
    assert [batch for batch, cached in seen if cached] == [seen[0][0]] * 8, "the cached batch is one that stays"
    assert len([batch for batch, cached in seen if not cached]) == window + 2 + 6
    assert found.verdict == "input-bound" and str(found).startswith("input-bound: ")
    assert found.parts[SLOWED] < 0.5 * found.measured.live_s


def test_a_stream_that_is_too_short_is_told(fleet: Cluster, dataset: str) -> None:
    with headrace.connect(fleet.addresses) as client:
        job = client.job("short", dataset=dataset, batch_size=100)
        with job.stream(epochs=1) as stream, pytest.raises(ConfigInvalid, match=r"ended after 2 batches.*more epochs"):
            headrace.diagnose(lambda batch: None, stream, steps=20)
        with job.stream() as stream, pytest.raises(ConfigInvalid, match="steps must be"):
            headrace.diagnose(lambda batch: None, stream, steps=0)


def test_what_cannot_be_measured_is_told_before_anything_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine_to_step.py").write_text("number = 3\n")
    (tmp_path / "bad.json").write_text("{")
    for arguments, said in (
        ([], "give --step MODULE:FUNCTION, or --step-time"),
        (["--step", "x:y", "--step-time", "1ms"], "give --step MODULE:FUNCTION, or --step-time"),
        (["--step", "mine_to_step"], "must be MODULE:FUNCTION"),
        (["--step", "mine_to_step:absent"], "cannot be had"),
        (["--step", "mine_to_step:number"], "is no function"),
        (["--step", "no_such_module:step"], "cannot be had"),
        (["--step-time", "1ms", "--plot", "x.pdf"], "must end in .png or .svg"),
        (["--step-time", "1ms", "--plot", "no/where.png"], "is not there"),
        (["--step-time", "1ms", "--pipeline", "absent.json"], "cannot be read"),
        (["--step-time", "1ms", "--pipeline", "bad.json"], "is no JSON of a PipelineSpec"),
    ):
        result = run("diagnose", "/data", "--batch-size", 4, "--coordinator", "127.0.0.1:1", *arguments)
        assert result.exit_code == 1 and said in result.output, (arguments, result.output)
        assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plan_draws_its_time_lines(tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"plan.{suffix}"
    times = ("--step", "120ms", "--decode", "900ms", "--augment", "300ms", "--workers", 2, "--threads", 4)
    result = run("plan", *times, "--gpu-decode", "12ms", "--plot", picture)
    assert result.exit_code == 0, result.output
    assert "workers decoding and augmenting" in result.output and "GPU engine: the limit is the training step" in result.output
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml") and len(data) > 5000


def test_without_matplotlib_only_the_picture_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = run("plan", "--step", "1s", "--plot", tmp_path / "a.png")
    assert refused.exit_code == 1 and "pip install 'headrace[plots]'" in refused.output
    assert run("plan", "--step", "1s").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step", "1 m"], "is no time: write 120ms"),
        (["--step", "0"], "must take some time"),
        (["--step", "1s", "--gpu-shared"], "give its --gpu-decode"),
        (["--step", "1s", "--workers", "0"], "0 is not in the range"),
        ([], "Missing option '--step'"),
    ],
    ids=str,
)
def test_a_plan_of_nonsense_is_refused_in_a_sentence(arguments: list[str], said: str) -> None:
    result = run("plan", *arguments)
    assert result.exit_code != 0 and said in result.output
