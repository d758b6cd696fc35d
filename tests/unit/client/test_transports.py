"""The ladder, the waits between tries, and the words between trainer and fetcher."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.transports import fetch_protocol as protocol
from headrace.client.transports.fetch_host import FetchHost
from headrace.client.transports.ladder import walk
from headrace.client.transports.peers import BACKOFF_FIRST_S, BACKOFF_MOST_S, backoff_s
from headrace.core.errors import ProtocolMismatch, TransportUnavailable
from headrace.core.job import Endpoint
from headrace.wire import messages

HERE = Endpoint("w0", "1", "node-a", "10.0.0.1:7000", "/run/w0.sock")
THERE = Endpoint("w1", "1", "node-b", "10.0.0.2:7000", "/run/w1.sock")
NO_SOCKET = Endpoint("w2", "1", "node-a", "10.0.0.1:7001", "")
NO_GRPC = Endpoint("w3", "1", "node-b", "", "")


@pytest.mark.parametrize(
    ("choice", "endpoint", "failure", "name", "reason"),
    [
        ("auto", HERE, "", "shm", "same node; cuda_ipc: this rank asked for no GPU"),
        ("auto", HERE, "/run/w0.sock: refused", "grpc", "shm: /run/w0.sock: refused"),
        ("auto", THERE, "", "grpc", "shm: the worker runs on another node"),
        ("auto", NO_SOCKET, "", "grpc", "shm: the worker offers no socket"),
        ("grpc", HERE, "", "grpc", "forced by the caller"),
        ("shm", HERE, "", "shm", "demanded by the caller"),
    ],
)
def test_ladder(choice: str, endpoint: Endpoint, failure: str, name: str, reason: str) -> None:
    rung = walk(choice, endpoint, "node-a", failure)  # type: ignore[arg-type]
    assert rung.name == name
    assert reason in rung.reason


@pytest.mark.parametrize(
    ("choice", "endpoint", "failure"),
    [("cuda_ipc", HERE, ""), ("shm", THERE, ""), ("shm", NO_SOCKET, ""), ("shm", HERE, "no such file"), ("auto", NO_GRPC, "")],
)
def test_a_demanded_rung_that_is_not_there_names_worker_and_reason(choice: str, endpoint: Endpoint, failure: str) -> None:
    with pytest.raises(TransportUnavailable) as error:
        walk(choice, endpoint, "node-a", failure)  # type: ignore[arg-type]
    assert error.value.worker == endpoint.worker
    assert error.value.reason


def test_backoff_grows_to_its_bound() -> None:
    pauses = [backoff_s(failures) for failures in range(1, 100)]
    assert pauses[0] == BACKOFF_FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_MOST_S


HELLO = messages.Hello(messages.PROTOCOL, "job", 3, 1, "nonce", 7, 4, (8, 9), "secret")


@pytest.mark.parametrize(
    "message",
    [
        protocol.Config(4, 8192, 7, (8, 9)),
        protocol.Connect(3, "host:1", "w0", HELLO),
        protocol.Disconnect(3),
        protocol.Forward(0, messages.Next(8)),
        protocol.Forward(2**32 - 1, messages.Ready(8, 5, 1, 4096, 2**64 - 1)),
        protocol.Forward(1, messages.Failed(8, "batch_failed", "all bad", {"shard": "a"})),
        protocol.Drop(3, 8),
        protocol.Down(3, "peer_gone", "gone"),
        protocol.Ping(),
    ],
)
def test_fetch_messages_come_back_equal(message: protocol.FetchMessage) -> None:
    assert protocol.decode(protocol.encode(message)) == message


@given(st.one_of(st.binary(max_size=64), st.builds(lambda k, b: bytes([k]) + b, st.integers(0, 8), st.binary(max_size=64))))
def test_garbage_is_a_protocol_mismatch(data: bytes) -> None:
    try:
        protocol.decode(data)
    except ProtocolMismatch:
        return


def test_the_fetcher_runs_under_its_own_settings_of_glibc_and_keeps_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=3")
    host = FetchHost(0, slots=2, slot_bytes=4096)
    try:
        host.start(0, ())
        environment = Path(f"/proc/{host.pid}/environ").read_bytes().replace(b"\0", b":")  # glibc itself cuts it at colons
        ours = b"GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=0x100000:glibc.malloc.tcache_count=3:"
        assert ours in environment  # the user's comes last: of two that name one setting, glibc takes the last
    finally:
        host.close()
        host.slab.close(0)
