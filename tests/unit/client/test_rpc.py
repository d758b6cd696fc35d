"""Calls to coordinators that are not there, and progress as it is reported."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

import headrace
from headrace.client.progress import MAX_BAD_PER_REPORT, Bad, Progress
from headrace.client.rpc import CoordinatorRpc, until
from headrace.core import errors
from headrace.core.starvation import CAUSES
from headrace.wire.gen import coordinator_service_pb2 as pb


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("addresses", ["", " , ", "nohost", "host:port", "a:1,b"])
def test_addresses_that_are_none_are_refused(addresses: str) -> None:
    with pytest.raises(errors.ConfigInvalid):
        headrace.connect(addresses)


def test_no_coordinator_is_named_with_all_addresses_that_were_tried() -> None:
    addresses = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    rpc = CoordinatorRpc(addresses)
    with pytest.raises(errors.CoordinatorUnavailable) as caught:
        rpc.call("OpenJob", pb.OpenJobRequest())
    assert all(address in str(caught.value) for address in addresses.split(","))
    rpc.close()
    rpc.close()


def test_opening_a_job_gives_up_after_its_deadline() -> None:
    with (
        headrace.connect(f"127.0.0.1:{free_port()}", deadline_s=0.3) as client,
        pytest.raises(errors.CoordinatorUnavailable, match="OpenJob"),
    ):
        client.job("train", dataset="/data", batch_size=4)


def test_a_job_that_cannot_work_is_refused_before_any_call() -> None:
    with headrace.connect("127.0.0.1:1") as client, pytest.raises(errors.SpecInvalid, match="batch_size"):
        client.job("train", dataset="/data", batch_size=0)


def test_until_repeats_what_may_pass_and_raises_the_rest() -> None:
    answers: list[int | errors.HeadraceError | None] = [None, errors.StoreUnavailable("away"), errors.RankClaimed("held"), 7]

    def call() -> int | None:
        answer = answers.pop(0)
        if isinstance(answer, errors.HeadraceError):
            raise answer
        return answer

    assert until(10, call, (errors.RankClaimed,)) == 7
    answers[:] = [errors.RankClaimed("held"), 7]
    with pytest.raises(errors.RankClaimed):
        until(10, call)


def test_until_ends_with_the_last_error_or_with_nothing() -> None:
    def away() -> int | None:
        raise errors.StoreUnavailable("away")

    assert until(0.01, lambda: None) is None
    with pytest.raises(errors.StoreUnavailable):
        until(0.01, away)


def test_bad_samples_go_out_in_portions_and_each_once() -> None:
    progress = Progress()
    told = [Bad(0, sample, f"key{sample}", "empty") for sample in range(2 * MAX_BAD_PER_REPORT + 5)]
    progress.handed_over(len(told), "shm", {}, told)
    portions = []
    while (snapshot := progress.snapshot()).bad:
        assert progress.snapshot().bad == snapshot.bad  # until it was answered, the same again
        progress.answered(snapshot)
        portions.append(snapshot.bad)
    assert [len(portion) for portion in portions] == [MAX_BAD_PER_REPORT, MAX_BAD_PER_REPORT, 5]
    assert [bad for portion in portions for bad in portion] == told


def test_totals_and_transport() -> None:
    progress = Progress()
    assert progress.snapshot().transport == ""
    progress.handed_over(4, "shm", {"read": 0.5}, [])
    assert progress.snapshot().transport == "shm"
    progress.wait_begins(17.5)
    assert progress.waiting_since_s == 17.5
    progress.wait_ends(18.0)
    assert progress.waiting_since_s is None
    assert progress.snapshot().waiting_s == 0.5
    assert progress.commit() == 1
    progress.handed_over(3, "grpc", {"read": 0.25, "copy": 1.0}, [])
    totals = progress.snapshot()
    assert (totals.consumed, totals.committed, totals.images, totals.transport) == (2, 1, 7, "mixed")
    assert totals.wait_by_cause == dict.fromkeys(CAUSES, 0.0) | {"read": 0.75, "copy": 1.0}
    assert totals.wait_s == 1.75


def test_log_lines_stay_off_the_trainers_standard_output() -> None:
    setups = {
        "": ("", "hello"),
        "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stdout))": ("hello", ""),
    }
    for setup, (out, err) in setups.items():
        use = "headrace.connect('127.0.0.1:1').close(); structlog.get_logger().warning('hello')"
        code = f"import sys, structlog, headrace; {setup or 'pass'}; {use}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert (out in done.stdout, bool(done.stdout)) == (True, bool(out))
        assert (err in done.stderr, bool(done.stderr)) == (True, bool(err))
