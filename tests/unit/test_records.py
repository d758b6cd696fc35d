"""Records come back from their JSON equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core import records
from headrace.core.job import Endpoint, JobSpec, StreamState
from headrace.core.records import JobRecord, LaneRecord, RankRecord, SessionRecord, WorkerRecord

number = st.integers(0, 2**53)
text = st.text(max_size=8)
state = st.builds(StreamState, number, number, number, number)
pairs = st.lists(st.tuples(text, st.floats(0, 1e9)), max_size=3).map(tuple)
ranks = st.builds(RankRecord, number, text, number, text, st.booleans(), st.none() | state, number, number, waits=pairs)
sessions = st.builds(SessionRecord, number, number, number, number, number, state)
workers = st.builds(
    WorkerRecord,
    st.builds(Endpoint, text, text, text, text, text),
    text,
    st.lists(text).map(tuple),
    st.floats(0, 1e9),
    number,
    st.booleans(),
    number,
    st.lists(st.tuples(text, st.lists(number).map(tuple)), max_size=2).map(tuple),
    st.lists(st.tuples(text, number, st.floats(0, 1e3)), max_size=2).map(tuple),
    st.lists(text).map(tuple),
)


@given(ranks, sessions, workers, st.builds(LaneRecord, text, text, number))
def test_records_come_back_equal(rank: RankRecord, session: SessionRecord, worker: WorkerRecord, lane: LaneRecord) -> None:
    assert records.rank_from_bytes(records.encode(rank)) == rank
    assert records.session_from_bytes(records.encode(session)) == session
    assert records.worker_from_bytes(records.encode(worker)) == worker
    assert records.lane_from_bytes(records.encode(lane)) == lane
    job = JobRecord(JobSpec("job", "/data", 8), 5)
    assert records.job_from_bytes(records.encode(job)) == job
