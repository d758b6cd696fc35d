"""A trainer that forks in the middle of a stream: the child ends by itself and is told, the parent goes on undisturbed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.cluster import Cluster
from tests.integration.bad_input_rig import indexed, write_shards

# Forks as the trainer's own process would; what a child says goes to the parent's output. The deadline is of each child.
TRAINER = """
import gc, multiprocessing, os, signal, sys, time
import headrace
from headrace.core.errors import StateInvalid

address, dataset, transport = sys.argv[1:]

def refused(*uses):
    for use in uses:
        try:
            use()
        except StateInvalid as error:
            assert "was forked" in str(error) and "open one of its own" in str(error), error
        else:
            raise AssertionError(use)

def use():
    refused(lambda: next(batches), stream.join, lambda: len(stream), stream.commit, lambda: stream.commit(deadline_s=3),
            stream.state_dict, lambda: stream.load_state_dict({}), stream.stats, stream.stage_next,
            lambda: next(stream.epochs()), lambda: next(iter(stream)), lambda: fresh.join(), lambda: open_job(client, "more"))

def go_on_to_the_epochs_end():
    refused(lambda: [None for _ in loop])

def close():
    stream.close()
    client.close()
    fresh.close()

def drop():
    global stream, batches, loop, fresh, client
    link = stream._link
    del stream, batches, loop, fresh, client
    gc.collect()
    link.close()
    link.intake.close()

def open_its_own():
    with headrace.connect(address) as client, open_job(client, f"{transport}-own").stream(transport=transport, epochs=1) as own:
        assert sum(1 for _ in own) == 4

def open_job(client, name):
    pipeline = headrace.PipelineSpec((headrace.CenterCrop((16, 16)),))
    return client.job(name, dataset=dataset, batch_size=8, pipeline=pipeline)

def ended(pid, what):
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            assert status == 0, (what, status)
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"the child hangs: {what}")

client = headrace.connect(address)
job = open_job(client, transport)
with job.stream(transport=transport, epochs=3, wait_deadline_s=30) as stream:
    fresh = job.stream()
    loop = iter(stream)
    taken = 4
    for _ in range(taken):
        next(loop)
    batches = (batch for _ in stream.epochs() for batch in stream)
    for what in (lambda: None, use, go_on_to_the_epochs_end, close, drop, open_its_own):
        pid = os.fork()
        if pid == 0:
            what()
            sys.exit(0)  # by way of the `with` and of what is to be done at the interpreter's end
        ended(pid, what)
        next(batches)
        taken += 1
    child = multiprocessing.get_context("fork").Process(target=use)
    child.start()
    child.join(20)
    assert child.exitcode == 0, child.exitcode
    taken += sum(1 for _ in batches)
    stream.commit(deadline_s=10)
    assert (taken, stream.stats().batches, stream.session.attempt) == (12, 12, 1), (taken, stream.stats())
client.close()
print("went on")
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator and a worker."""
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_forked_child_ends_and_is_told_and_the_parent_goes_on(fleet: Cluster, tmp_path: Path, transport: str) -> None:
    write_shards(tmp_path, 1, 32)
    command = [sys.executable, "-c", TRAINER, fleet.addresses, indexed(tmp_path), transport]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr[-4000:]
    assert fleet.logs()["coordinator-0"].count("superseded") == 0
