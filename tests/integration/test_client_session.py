"""Clients against a real coordinator, store and worker: how sessions come together, go on, and end."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from PIL import Image
from structlog.testing import capture_logs

import headrace
from headrace.client.session_link import SessionLink
from headrace.core import errors
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.datasets.build import build_index
from headrace.testing.cluster import Cluster

SAMPLES = 48
BATCH = 4
SIDE = 8
T = TypeVar("T")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of small PNGs of two classes; each picture is of one colour, by its number."""
    root = tmp_path_factory.mktemp("dataset")
    for number in range(SAMPLES):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (SIDE, SIDE), (number, 2 * number, 255 - number)).save(folder / f"{number:04d}.png")
    asyncio.run(build_index(str(root)))
    return str(root)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One store, two coordinators, one worker; tests here may restart a coordinator but leave it running."""
    with Cluster(tmp_path_factory.mktemp("fleet"), coordinators=2, workers=1) as cluster:
        yield cluster


@pytest.fixture
def open_job(fleet: Cluster, dataset: str, request: pytest.FixtureRequest) -> Callable[..., headrace.Job]:
    """Opens a job named after the test."""

    def open_it(world: int = 1, **kwargs: Any) -> headrace.Job:
        values = {"dataset": dataset, "batch_size": BATCH, "pipeline": PipelineSpec((CenterCrop((SIDE, SIDE)),)), **kwargs}
        name = request.node.name.replace("[", "-").replace("]", "")[:90]
        with headrace.connect(fleet.addresses, deadline_s=20) as client:
            return client.job(name, world=world, **values)

    return open_it


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that stand for the processes of ranks."""
    with ThreadPoolExecutor(4, thread_name_prefix="rank") as executor:
        yield executor


def ids(stream: headrace.Stream) -> list[int]:
    """What the rest of the epoch holds, pixels checked against the ids."""
    seen: list[int] = []
    for batch in stream:
        blue = batch.pixels[:, 0, 0, 2]
        assert (np.unique(batch.pixels[..., 2].reshape(len(batch), -1), axis=1).shape) == (len(batch), 1)
        assert len(set(blue.tolist())) == len(batch)
        seen += batch.sample_ids[batch.mask].tolist()
    return seen


def client_threads() -> list[str]:
    names = ("headrace-control", "headrace-watch", "headrace-intake")
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def wait_for(true: Callable[[], bool], deadline_s: float = 20) -> None:
    end_s = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end_s, "it did not come true"
        time.sleep(0.05)


def result(future: Future[T]) -> T:
    return future.result(timeout=60)


def error_of(future: Future[Any]) -> BaseException:
    error = future.exception(timeout=60)
    assert error is not None
    return error


def test_two_ranks_share_an_epoch_and_leave_nothing_behind(
    open_job: Callable[..., headrace.Job], pool: ThreadPoolExecutor
) -> None:
    job = open_job(world=2)

    def train(rank: int) -> tuple[list[int], headrace.StreamStats]:
        with job.stream(rank=rank, world=2, epochs=2, transport=("shm", "grpc")[rank]) as stream:
            seen = [sample for _ in stream.epochs() for sample in ids(stream)]
        return seen, stream.stats()

    ranks = [result(future) for future in [pool.submit(train, rank) for rank in range(2)]]
    assert sorted(ranks[0][0] + ranks[1][0]) == sorted(2 * list(range(SAMPLES)))
    for rank, (_, stats) in enumerate(ranks):
        assert stats.batches == 2 * SAMPLES // BATCH // 2
        assert stats.wait_s == pytest.approx(sum(stats.wait_s_by_cause.values()))
        assert stats.transport == ("shm", "grpc")[rank]
        assert [reason for _, reason in stats.transports.values()] != [""]
    me = psutil.Process()
    assert client_threads() == []
    assert [child for child in me.children() if "headrace.client" in " ".join(child.cmdline())] == []
    gc.collect()
    assert not [c for c in me.net_connections() if c.status == psutil.CONN_ESTABLISHED]


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_descriptors_do_not_grow_with_streams(open_job: Callable[..., headrace.Job], transport: Any) -> None:
    job = open_job()
    me = psutil.Process()
    start = {"version": 1, "job": "x", "plan_hash": job.plan_hash, "epoch": 0, "first": 0, "step": 0, "world": 1}

    def once() -> int:
        with job.stream(epochs=1, transport=transport, state=start) as stream:
            assert sorted(ids(stream)) == list(range(SAMPLES))
        del stream
        gc.collect()
        return me.num_fds()

    once()
    counts = [once() for _ in range(4)]
    assert counts[-1] <= counts[0]


def test_a_rank_that_does_not_come_is_named(open_job: Callable[..., headrace.Job]) -> None:
    stream = open_job(world=3).stream(rank=0, world=3, join_deadline_s=1)
    with stream, pytest.raises(errors.WaitTimeout, match=r"rank\(s\) 1, 2 of 3") as caught:
        len(stream)
    assert caught.value.awaited == "1, 2"
    assert client_threads() == []


def test_ranks_with_different_states_are_both_told(open_job: Callable[..., headrace.Job], pool: ThreadPoolExecutor) -> None:
    job = open_job(world=2)
    states = [None, {"version": 1, "job": "x", "plan_hash": job.plan_hash, "epoch": 0, "first": 0, "step": 2, "world": 2}]
    streams = [job.stream(rank=rank, world=2, state=states[rank], join_deadline_s=20) for rank in range(2)]
    for future in [pool.submit(stream.join) for stream in streams]:
        error = error_of(future)
        assert isinstance(error, errors.StateMismatch)
        assert "batch 4" in str(error)


def test_another_world_size_is_refused(open_job: Callable[..., headrace.Job], pool: ThreadPoolExecutor) -> None:
    job = open_job(world=2)
    first = job.stream(rank=0, world=2, join_deadline_s=5)
    joining = pool.submit(first.join)
    deadline_s = time.monotonic() + 4
    while True:  # until rank 0 has its claim, a claim of rank 1 of 3 would be the first and set the world to 3
        with job.stream(rank=1, world=3, join_deadline_s=0.5) as odd:
            try:
                odd.join()
            except errors.WorldMismatch as error:
                assert (error.world, error.rank) == (3, 1)
                break
            except errors.WaitTimeout:
                assert time.monotonic() < deadline_s
        if joining.done():  # the other one came first, so that this one was refused
            break
    assert isinstance(error_of(joining), errors.WaitTimeout | errors.WorldMismatch)


def test_a_rank_has_one_holder(open_job: Callable[..., headrace.Job]) -> None:
    job = open_job()
    with job.stream(attempt=1) as holder:
        holder.join()
        for attempt in (1, None):
            with job.stream(attempt=attempt, join_deadline_s=1) as other, pytest.raises(errors.RankClaimed) as caught:
                other.join()
            assert (caught.value.rank, caught.value.attempt) == (0, 1)
        assert next(iter(holder)).index == 0
    with job.stream(join_deadline_s=5) as after:  # it left, so nobody waits for its claim to lapse
        assert after.join().attempt == 2


def test_an_automatic_attempt_waits_for_a_dead_holders_claim_to_lapse(open_job: Callable[..., headrace.Job]) -> None:
    job = open_job()
    dead = job.stream()
    dead.join()
    assert dead._link is not None
    dead._link._stop.set()  # type: ignore[attr-defined]  # no more signs of life, and no goodbye
    with job.stream(join_deadline_s=30) as stream:
        assert stream.join().attempt == 2
    dead.close()


def test_a_later_attempt_ends_the_running_one(open_job: Callable[..., headrace.Job]) -> None:
    job = open_job()
    with job.stream(attempt=4) as old:
        taken = len([None for _, _ in zip(range(3), old, strict=False)])
        old.commit(deadline_s=10)
        with job.stream(attempt=6) as new:
            assert (new.state_dict()["first"], new.state_dict()["step"]) == (taken, 0)
            with pytest.raises(errors.SessionSuperseded) as caught:
                for _ in range(1000):
                    ids(old)
                    time.sleep(0.05)
            assert (caught.value.attempt, caught.value.newest) == (4, 6)
            with pytest.raises(errors.SessionSuperseded):
                job.stream(attempt=5).join()
            assert len(ids(new)) == SAMPLES - taken * BATCH


def test_a_commit_is_where_the_next_attempt_begins_and_a_state_wins_over_it(open_job: Callable[..., headrace.Job]) -> None:
    job = open_job()
    seen: list[int] = []
    with job.stream() as stream:
        for batch in stream:
            seen += batch.sample_ids.tolist()
            if batch.step == 1:
                state = stream.state_dict()
            if batch.step == 4:
                stream.commit()
                break
    with job.stream() as stream:
        assert stream.state_dict()["first"] == 5
        assert sorted(seen + ids(stream)) == list(range(SAMPLES))
    with job.stream(state=state) as stream:
        assert len(ids(stream)) == SAMPLES - 2 * BATCH


def test_a_script_that_is_run_again_is_told_why_nothing_comes(open_job: Callable[..., headrace.Job]) -> None:
    job = open_job()
    with job.stream(epochs=1) as stream:
        ids(stream)
        stream.commit()
    with capture_logs() as lines, job.stream(epochs=1) as stream:
        assert ids(stream) == []
    assert "nothing_left" in [line["event"] for line in lines]
    with capture_logs() as lines, job.stream(epochs=2) as stream:
        assert len(stream) > 0
    assert "resumed" in [line["event"] for line in lines]


def test_ranks_too_many_for_what_is_left_are_told_once_that_nothing_comes(
    open_job: Callable[..., headrace.Job], pool: ThreadPoolExecutor
) -> None:
    job = open_job(world=4)
    with job.stream(epochs=1) as stream:
        for batch in stream:
            if batch.step == SAMPLES // BATCH - 3:
                stream.commit()

    def train(rank: int) -> tuple[list[int], int]:
        with job.stream(rank=rank, world=4, epochs=1) as stream:
            return ids(stream), stream.stats().dropped

    with capture_logs() as lines:
        ranks = [result(future) for future in [pool.submit(train, rank) for rank in range(4)]]
    assert ranks == [([], 2 * BATCH)] * 4
    assert [line["event"] for line in lines].count("nothing_left") == 1


def test_batches_flow_while_the_coordinators_are_down_and_reports_go_on_after(
    open_job: Callable[..., headrace.Job], fleet: Cluster
) -> None:
    job = open_job()
    seen = []
    with job.stream(epochs=3, wait_deadline_s=30) as stream:
        seen.append(ids(stream))
        stream.commit(deadline_s=10)
        for number in range(2):
            fleet.kill_coordinator(number)
        seen.append(ids(stream))
        with pytest.raises(errors.WaitTimeout, match="did not record"):
            stream.commit(deadline_s=0.5)
        for number in range(2):
            fleet.restart_coordinator(number)
        stream.commit(deadline_s=20)
        seen.append(ids(stream))
        assert ids(stream) == []
    assert all(sorted(part) == list(range(SAMPLES)) for part in seen)


def test_one_of_two_coordinators_is_enough_to_join_and_to_leave(open_job: Callable[..., headrace.Job], fleet: Cluster) -> None:
    job = open_job()
    fleet.kill_coordinator(0)
    try:
        with job.stream(epochs=1) as stream:
            assert len(ids(stream)) == SAMPLES
        with job.stream(epochs=1, join_deadline_s=4, attempt=9) as stream:
            assert stream.join().attempt == 9
    finally:
        fleet.restart_coordinator(0)


def test_bad_samples_are_told_once_for_each_epoch_they_were_met_in(
    open_job: Callable[..., headrace.Job], fleet: Cluster, tmp_path: Path
) -> None:
    for number in range(SAMPLES):
        Image.new("RGB", (SIDE, SIDE), (number, 0, 0)).save(tmp_path / f"{number:04d}.png")
    (tmp_path / "0007.png").write_bytes(b"")
    (tmp_path / "0009.png").write_bytes((tmp_path / "0009.png").read_bytes()[:-30])
    asyncio.run(build_index(str(tmp_path)))
    job = open_job(dataset=str(tmp_path))
    with job.stream(epochs=2) as stream:
        met = [
            (batch.epoch, bad.sample_id, bad.reason) for _ in stream.epochs() for batch in stream for bad in batch.substituted
        ]
        assert stream.stats().substituted == len(met) == 4
    with urllib.request.urlopen(f"http://{fleet.coordinators[0].admin_address}/api/jobs/{job.spec.name}", timeout=10) as answer:
        told = json.load(answer)
    assert told["bad_samples_total"] == 4
    assert [(bad["sample"], bad["count"], bad["last_epoch"]) for bad in told["bad_samples"]] == [(7, 2, 1), (9, 2, 1)]
    assert {(bad["sample"], bad["reason"]) for bad in told["bad_samples"]} == {(sample, reason) for _, sample, reason in met}
    assert {(epoch, sample) for epoch, sample, _ in met} == {(0, 7), (1, 7), (0, 9), (1, 9)}


def test_a_store_that_lost_all_of_a_session_gets_it_back_from_the_rank(
    open_job: Callable[..., headrace.Job], fleet: Cluster
) -> None:
    job = open_job()
    with job.stream(epochs=2, attempt=3, wait_deadline_s=30) as stream:
        seen = ids(stream)
        fleet.kill_store()
        with pytest.raises(errors.WaitTimeout, match="did not record"):
            stream.commit(deadline_s=1)
        fleet.restart_store(cut_last_second=True)
        stream.commit(deadline_s=20)
        seen += ids(stream)
    assert sorted(seen) == sorted(2 * list(range(SAMPLES)))
    with job.stream(epochs=2, attempt=4) as after:
        assert after.state_dict()["epoch"] == 2 - 1  # the commit, and not the second epoch, which was never committed
        assert len(after) == SAMPLES // BATCH


def test_a_stream_that_nobody_closes_is_closed_when_it_is_dropped(open_job: Callable[..., headrace.Job]) -> None:
    job = open_job()
    stream = job.stream(epochs=1)
    assert len(client_threads()) == 0
    assert len(ids(stream)) == SAMPLES
    assert len(client_threads()) == 3
    del stream
    gc.collect()
    wait_for(lambda: client_threads() == [])


def test_a_stream_that_nobody_closes_ends_with_the_process(open_job: Callable[..., headrace.Job], fleet: Cluster) -> None:
    """It also gives its rank back: the next attempt need not wait for the claim to lapse."""
    spec = open_job().spec
    code = f"""
import json, sys, headrace
job = headrace.connect({fleet.addresses!r}).open(headrace.JobSpec.from_dict(json.loads(sys.argv[1])))
stream = job.stream(transport="grpc")
print(next(iter(stream)).index)
"""
    arguments = [sys.executable, "-c", code, json.dumps(spec.to_dict())]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert "Traceback" not in done.stderr
    with headrace.connect(fleet.addresses) as client, client.open(spec).stream(join_deadline_s=2) as after:
        assert after.join().attempt == 2


def test_a_coordinator_that_hangs_is_left_for_the_other(open_job: Callable[..., headrace.Job], fleet: Cluster) -> None:
    job = open_job()
    with job.stream(epochs=1) as stream:
        next(iter(stream))
        link = stream._link
        assert isinstance(link, SessionLink)
        hung = link._rpc.current()[0]
        fleet.kill_coordinator(hung, signal.SIGSTOP)
        try:
            stream.commit(deadline_s=20)
            tables = link._tables
            assert link._rpc.current()[0] != hung
            wait_for(lambda: link._tables > tables)  # the watch has moved as well
            assert len(ids(stream)) == SAMPLES - BATCH
        finally:
            fleet.kill_coordinator(hung, signal.SIGCONT)


def test_what_a_job_cannot_be_is_said_when_it_is_opened(open_job: Callable[..., headrace.Job], tmp_path: Path) -> None:
    job = open_job()
    assert job.samples == SAMPLES
    with pytest.raises(errors.JobMismatch):
        open_job(seed=1)
    with pytest.raises(errors.ManifestMissing):
        open_job(dataset=str(tmp_path))
    with pytest.raises(errors.NoSteps):
        job.stream(world=SAMPLES).join()
    other = {"version": 1, "job": "x", "plan_hash": "0" * 32, "epoch": 0, "first": 0, "step": 2, "world": 1}
    with pytest.raises(errors.StateInvalid):
        job.stream(state=other)
    past = {**other, "plan_hash": job.plan_hash, "step": 1000}
    with pytest.raises(errors.StateInvalid, match="past its epoch"):
        job.stream(state=past).join()
