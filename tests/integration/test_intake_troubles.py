"""Workers that a rank cannot use: what it tells of them, how long it bears them, and which transport it gets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from headrace.client.transports import connections, links
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import ManifestMissing
from headrace.wire.messages import Refuse
from tests.integration.fake_worker import FakeWorker
from tests.integration.intake_bench import DEADLINE_S, RUNGS, Bench, eat, take_in_vain, until

NO_DATA = Refuse("manifest_missing", "no manifest at /data", {"dataset": "/data"})


@pytest.mark.parametrize("transport", RUNGS)
def test_a_lane_of_a_worker_that_refuses_us_is_told_and_comes_from_its_next_owner(
    bench: Bench, transport: TransportChoice
) -> None:
    unable, able = bench.worker("unable"), bench.worker("able")
    unable.refuse = [NO_DATA] * 1000
    intake = bench.intake(transport)
    intake.update(bench.tables.give(unable))
    until(lambda: unable.hellos, "it has refused us once: a fetcher takes its time to start")
    with pytest.raises(Exception, match="no manifest at /data"):
        intake.take(0, 1.5)
    troubles = intake.status().troubles
    assert [(trouble.lane, trouble.worker, trouble.token) for trouble in troubles] == [(lane, "unable", 1) for lane in range(3)]
    assert all(trouble.waited_s >= 1 and not trouble.connected for trouble in troubles)
    assert "no manifest at /data" in troubles[0].reason
    intake.update(bench.tables.give(able))
    assert set(eat(intake, range(10))) == {"able"}
    assert intake.status().troubles == ()


def test_a_refusal_ends_the_rank_only_if_the_lane_stays_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_S", 0.5)
    worker = bench.worker()
    worker.refuse = [NO_DATA] * 1000
    intake = bench.intake()
    intake.update(bench.tables.give(worker))
    until(lambda: len(worker.hellos) > 5, "it has refused us for longer than that")
    waiter = take_in_vain(intake, 0, DEADLINE_S)
    waiter.join()
    with pytest.raises(ManifestMissing, match="no manifest at /data") as error:
        intake.take(0, DEADLINE_S)
    assert error.value.dataset == "/data"


def test_a_refusal_while_the_trainer_needs_nothing_of_that_worker_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE_S", 0.2)
    unable, able = bench.worker("unable"), bench.worker("able")
    unable.refuse = [NO_DATA] * 1000
    intake = bench.intake()
    intake.update(bench.tables.give(able, unable))
    eat(intake, range(1))
    until(lambda: len(unable.hellos) > 5, "it has refused us for longer than that")
    unable.refuse = []
    assert set(eat(intake, range(1, 10))) == {"able", "unable"}


def test_a_lease_that_the_store_forgot_is_told_at_once(bench: Bench) -> None:
    one, two = bench.worker("one"), bench.worker("two")
    intake = bench.intake()
    before = bench.tables.give(one)
    intake.update(before)
    intake.update(bench.tables.give(two))
    eat(intake, range(3))
    two.kill()
    intake.update(before)
    told = intake.status().troubles
    assert {(trouble.token, trouble.waited_s) for trouble in told} == {(2, 0.0)}
    assert [trouble.lane for trouble in told] == list(range(bench.session.lanes))
    intake.update(bench.tables.give(one))  # above what the rank knows
    assert eat(intake, range(3, 12))[-6:] == ["one"] * 6
    assert intake.status().troubles == ()


def refusing(worker: FakeWorker) -> tuple[socket.socket, Path]:
    """A socket that nobody listens on in the place of the worker's; and where the worker's is now."""
    aside = worker.path.rename(f"{worker.path}.aside")
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(os.fspath(worker.path))
    return dead, aside


def test_a_socket_that_refuses_for_a_moment_is_no_reason_for_grpc(bench: Bench) -> None:
    worker = bench.worker()
    dead, aside = refusing(worker)
    intake = bench.intake("auto")
    intake.update(bench.tables.give(worker))
    until(lambda: any(peer.failures >= 2 for peer in intake._links.peers.values()), "it refused")
    aside.replace(worker.path)
    dead.close()
    eat(intake, range(5))
    assert intake.status().transports["w0"][0] == "shm"


def test_shared_memory_is_looked_at_again_when_grpc_breaks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SHM_TRIES", 2)
    worker = bench.worker()
    dead, aside = refusing(worker)
    intake = bench.intake("auto")
    intake.update(bench.tables.give(worker))
    eat(intake, range(5))
    assert intake.status().transports["w0"][0] == "grpc"
    worker.connections[-1].cut()
    eat(intake, range(5, 12))
    assert intake.status().transports["w0"][0] == "grpc", "still refused"
    aside.replace(worker.path)
    dead.close()
    worker.connections[-1].cut()
    eat(intake, range(12, 20))
    assert intake.status().transports["w0"][0] == "shm"
