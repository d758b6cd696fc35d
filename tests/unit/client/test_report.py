"""What a rank's report says of a wait that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from structlog.testing import capture_logs

from headrace.client.link import Identity
from headrace.client.progress import Bad, Progress
from headrace.client.rpc import CoordinatorRpc
from headrace.client.session_link import SessionLink
from headrace.client.transports.protocol import IntakeStatus, LaneTrouble
from headrace.coordinator.requests import progress_of
from headrace.core.epoch_plan import lane_count
from headrace.core.errors import SessionSuperseded, TooManyBadSamples
from headrace.core.job import JobSpec, LaneTable, Session, Stop
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.testing.memory_stream import MemoryIntake
from headrace.wire import convert


@dataclass(slots=True)
class TroubledIntake(MemoryIntake):
    """One that misses a lane."""

    def status(self) -> IntakeStatus:
        return IntakeStatus(remade=3, refused=2, troubles=(LaneTrouble(7, "w1", 2**60, 2.5, False, "connection refused"),))


@pytest.fixture
def link() -> Iterator[SessionLink]:
    """A session of which no coordinator knows; never started."""
    job = JobSpec("job", "/data", 4, PipelineSpec((CenterCrop((8, 8)),)), samples=40, manifest_hash="m")
    session = Session(job, 1, 1, 0, 0, 1, 3, lane_count(job.samples, job.batch_size))
    intake = TroubledIntake(session, 0, lambda ids, epoch: ids)
    rpc = CoordinatorRpc("127.0.0.1:1")
    yield SessionLink(rpc, session, Identity(0, "nonce", "node"), intake, Progress())
    rpc.close()


def test_a_report_carries_the_running_wait_and_the_lanes_in_trouble(link: SessionLink) -> None:
    progress = link._progress
    progress.handed_over(4, "shm", {"read": 0.5}, [])
    progress.wait_begins(time.monotonic() - 4.0)
    report = link._report_message(progress.snapshot())
    assert 4.0 <= report.waiting_s < 60.0
    assert report.wait_s == sum(part.seconds for part in report.wait_by_cause) == 0.5
    (trouble,) = report.troubles
    assert (trouble.lane, trouble.worker, trouble.token) == (7, "w1", 2**60)
    assert (trouble.waited.ToMilliseconds(), trouble.connected, trouble.reason) == (2500, False, "connection refused")
    assert report.batches_remade == 3
    assert report.batches_fenced == 2


def test_a_report_counts_the_bad_samples_of_the_whole_session(link: SessionLink) -> None:
    progress = link._progress
    for epoch in range(2):
        progress.handed_over(4, "shm", {}, [Bad(epoch, 1, "a", "empty"), Bad(epoch, 2, "b", "corrupt")])
        snapshot = progress.snapshot()
        report = link._report_message(snapshot)
        progress.answered(snapshot)
        assert len(report.bad_samples) == 2, "each is told once"
        assert report.samples == 4 * (epoch + 1)
        assert {each.reason: each.count for each in report.bad_counts} == {"empty": epoch + 1, "corrupt": epoch + 1}


def test_the_session_is_told_with_the_engine_of_its_batches_once_there_is_one(link: SessionLink) -> None:
    def told() -> list[str]:
        messages = (link._report_message(link._progress.snapshot()), link._watch_request())
        return [convert.session_from_proto(message.session).job.fingerprint for message in messages]

    assert told() == ["", ""]
    link._progress.fingerprint = "cpu-1"
    assert told() == ["cpu-1", "cpu-1"]
    sent = convert.session_from_proto(link._watch_request().session)
    assert replace(sent, job=sent.job.with_fingerprint("")) == link.session, "nothing else differs"


def table(stop: Stop | None) -> LaneTable:
    return convert.lane_table_from_proto(convert.lane_table_to_proto(LaneTable(1, 3, ("",), (0,), {}, stop)))


def test_a_stop_reaches_a_rank_that_already_waits_for_a_batch_beyond_it(link: SessionLink) -> None:
    link._take_table(table(None))
    assert link.stop is None
    progress, intake = link._progress, link.intake
    for _ in range(6):
        progress.handed_over(4, "shm", {}, [])
    link._take_table(table(Stop(7, "rotten")))
    assert link.stop == Stop(7, "rotten")
    assert intake._ended is None, "index 6 is still to come"  # type: ignore[attr-defined]
    link.stop = None
    progress.handed_over(4, "shm", {}, [])
    link._take_table(table(Stop(7, "rotten")))
    with pytest.raises(TooManyBadSamples, match="rotten") as caught:
        intake.take(7, 5.0)
    assert (caught.value.job, caught.value.rank) == ("job", 0)
    link._take_table(table(Stop(99, "other")))
    assert link.stop == Stop(7, "rotten"), "of two the lower counts"
    report = link._report_message(progress.snapshot())
    assert (report.stop_index, report.stop_why) == (7, "rotten"), "a store that lost it is healed"
    assert progress_of(report).stop == Stop(7, "rotten")
    link._take_table(table(Stop(5, "sooner")))
    assert link.stop == Stop(5, "sooner")


def committed_after(link: SessionLink, batches: int) -> None:
    for _ in range(batches):
        link._progress.handed_over(4, "shm", {}, [])
    link._progress.commit()


@pytest.mark.parametrize("superseded", [False, True])
def test_a_commit_that_nobody_confirmed_before_the_stream_closed_is_named(link: SessionLink, superseded: bool) -> None:
    committed_after(link, 3)
    if superseded:
        link._end(SessionSuperseded("a later attempt"))
    with capture_logs() as lines:
        link.close()
    told = [line for line in lines if line["event"] == "commit_not_confirmed"]
    assert [(line["epoch"], line["step"], line["job"], line["rank"]) for line in told] == [(0, 2, "job", 0)]
    assert told[0]["log_level"] == "warning"


@pytest.mark.parametrize("batches", [0, 3])
def test_nothing_is_told_of_commits_that_are_recorded(link: SessionLink, batches: int) -> None:
    committed_after(link, batches)
    if batches:
        link._note_recorded(link._progress.snapshot())
    with capture_logs() as lines:
        link.close()
    assert [line["event"] for line in lines] == ["leave_not_recorded"]


def test_the_last_report_confirms_what_was_committed_just_before(link: SessionLink, monkeypatch: pytest.MonkeyPatch) -> None:
    committed_after(link, 3)
    monkeypatch.setattr(link._rpc, "call", lambda *_: None)
    with capture_logs() as lines:
        link.close()
    assert lines == []
