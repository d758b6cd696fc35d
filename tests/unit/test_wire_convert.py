"""Conversions: what goes through protobuf comes back equal, and what a peer garbles is refused by a named error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolMismatch, SpecInvalid
from headrace.core.job import Endpoint, JobSpec, LaneTable, Session, Shuffle, StreamState
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb

JOB = JobSpec("run-1", "file:///data/manifest.json", 64, seed=-5, shuffle=Shuffle(run=4), manifest_hash="ab", samples=1000)
SESSION = Session(JOB, 3, 2, 1, 7, 10, 4, 12)
small = st.integers(0, 2**40)


def test_job_and_session_come_back_equal() -> None:
    assert convert.job_from_proto(convert.job_to_proto(JOB)) == JOB
    message = pb.Session.FromString(convert.session_to_proto(SESSION).SerializeToString())
    assert convert.session_from_proto(message) == SESSION


@given(small, small, small, st.integers(1, 65536))
def test_state_comes_back_equal(epoch: int, first: int, step: int, world: int) -> None:
    state = StreamState(epoch, first, step, world)
    assert convert.state_from_proto(convert.state_to_proto(state)) == state


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), small), max_size=30))
def test_lane_table_comes_back_equal(lanes: list[tuple[str, int]]) -> None:
    owners = tuple(owner for owner, _ in lanes)
    endpoints = {worker: Endpoint(worker, "i", "n", "h:1", "/s") for worker in set(owners) - {""}}
    table = LaneTable(9, 3, owners, tuple(token for _, token in lanes), endpoints)
    assert convert.lane_table_from_proto(convert.lane_table_to_proto(table)) == table


def test_owner_without_endpoint_travels_as_nobody() -> None:
    message = convert.lane_table_to_proto(LaneTable(1, 3, ("gone", "a"), (5, 6), {"a": Endpoint("a", "i", "n", "h:1", "")}))
    assert convert.lane_table_from_proto(message).owners == ("", "a")


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": "64"},
        {"samples": -1},
        {"surprise": 1},
        {"pipeline": []},
        {"seed": True},
        {"name": 3},
        {"shuffle": {"mode": "half"}},
    ],
)
def test_garbled_job_is_spec_invalid(change: dict[str, object]) -> None:
    text = json.dumps({**JOB.to_dict(), **change})
    with pytest.raises(SpecInvalid):
        convert.job_from_proto(pb.Job(name=JOB.name, spec_json=text))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_what_is_no_json_object_is_spec_invalid(text: str) -> None:
    with pytest.raises(SpecInvalid):
        convert.job_from_proto(pb.Job(name="run-1", spec_json=text))


def test_job_under_another_name_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="outside"):
        convert.job_from_proto(pb.Job(name="other", spec_json=convert.job_to_json(JOB)))


@pytest.mark.parametrize("change", [{"world": 0}, {"world": 65537}, {"attempt": 0}, {"lanes": 0}, {"window": 0}])
def test_impossible_session_is_refused(change: dict[str, int]) -> None:
    message = convert.session_to_proto(SESSION)
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(ProtocolMismatch):
        convert.session_from_proto(message)


def test_impossible_lane_tables_and_endpoints_are_refused() -> None:
    with pytest.raises(ProtocolMismatch):
        convert.lane_table_from_proto(pb.WatchSessionResponse(window=3, owners=[1], tokens=[1]))
    with pytest.raises(ProtocolMismatch):
        convert.lane_table_from_proto(pb.WatchSessionResponse(window=3, owners=[0], tokens=[]))
    with pytest.raises(ProtocolMismatch):
        convert.endpoint_from_proto(pb.Endpoint(worker="w"))
