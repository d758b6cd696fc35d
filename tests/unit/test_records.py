"""Records come back from their JSON equal."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.core import limits, records
from headrace.core.job import Endpoint, JobSpec, StreamState
from headrace.core.records import JobRecord, LaneRecord, LaneTrouble, RankRecord, SessionRecord, WorkerRecord

number = st.integers(0, 2**53 - 1)
world, lane_number = st.integers(1, limits.WORLD), st.integers(0, limits.LANES - 1)
window, lane_count = st.integers(1, limits.WINDOW), st.integers(1, limits.LANES)
text = st.text(max_size=8)
state = st.builds(StreamState, number, number, number, world)
pairs = st.lists(st.tuples(text, st.floats(0, 1e9)), max_size=3).map(tuple)
ranks = st.builds(RankRecord, number, text, number, text, st.booleans(), st.none() | state, number, number, waits=pairs)
troubles = st.lists(st.builds(LaneTrouble, lane_number, text, number, st.floats(0, 1e9), st.booleans()), max_size=2).map(tuple)
ranks = st.builds(replace, ranks, troubles=troubles)
barred = st.lists(st.tuples(text, number, number, number), max_size=2).map(tuple)
sessions = st.builds(SessionRecord, number, world, number, window, lane_count, state, barred=barred)
workers = st.builds(
    WorkerRecord,
    st.builds(Endpoint, text, text, text, text, text),
    text,
    st.lists(text).map(tuple),
    st.floats(0, 1e9),
    number,
    st.booleans(),
    number,
    st.lists(st.tuples(text, number, st.floats(0, 1e3)), max_size=2).map(tuple),
    st.lists(text).map(tuple),
    st.lists(text).map(tuple),
)
lanes = st.builds(LaneRecord, text, text, number, number, number)


@given(ranks, sessions, workers, lanes)
def test_records_come_back_equal(rank: RankRecord, session: SessionRecord, worker: WorkerRecord, lane: LaneRecord) -> None:
    assert records.rank_from_bytes(records.encode(rank)) == rank
    assert records.session_from_bytes(records.encode(session)) == session
    assert records.worker_from_bytes(records.encode(worker)) == worker
    assert records.lane_from_bytes(records.encode(lane)) == lane
    job = JobRecord(JobSpec("job", "/data", 8), 5, ("a" * 64,), keep_s=60)
    assert records.job_from_bytes(records.encode(job)) == job


@given(ranks, sessions, workers, lanes)
def test_what_a_newer_version_adds_is_not_minded(
    rank: RankRecord, session: SessionRecord, worker: WorkerRecord, lane: LaneRecord
) -> None:
    def grown(data: object) -> object:
        if isinstance(data, list):
            return [grown(item) for item in data]
        return {**{name: grown(value) for name, value in data.items()}, "news": 1} if isinstance(data, dict) else data

    def more(record: RankRecord | SessionRecord | WorkerRecord) -> bytes:
        return json.dumps(grown(json.loads(records.encode(record)))).encode()

    def one_more(record: JobRecord) -> bytes:
        return json.dumps({**json.loads(records.encode(record)), "news": 1}).encode()

    assert records.rank_from_bytes(more(rank)) == rank
    assert records.session_from_bytes(more(session)) == session
    assert records.worker_from_bytes(more(worker)) == worker
    assert records.lane_from_bytes(records.encode(lane)[:-1] + b",1]") == lane
    job = JobRecord(JobSpec("job", "/data", 8), 5, ("a" * 64,), keep_s=60)
    assert records.job_from_bytes(one_more(job)) == job


def test_what_an_older_version_wrote_is_read() -> None:
    assert records.lane_from_bytes(b'["a","a-1",5]') == LaneRecord("a", "a-1", 5)
    old = {"attempt": 1, "nonce": "n", "alive_until_us": 5, "state": None, "waits": []}
    assert records.rank_from_bytes(json.dumps(old).encode()) == RankRecord(1, "n", 5)
    older = json.loads(records.encode(SessionRecord(1, 1, 1, 3, 12, StreamState())))
    for entry in (["a-1", 2, 5], ["a-1", 2, 5, 1, "news"]):
        assert records.session_from_bytes(json.dumps({**older, "barred": [entry]}).encode()).barred == (("a-1", 2, 5, 1),)
