"""A reason why a rank cannot use a worker is logged once."""

from __future__ import annotations

from structlog.testing import capture_logs

from headrace.coordinator.recent_events import RecentEvents
from headrace.coordinator.trouble_log import TroubleLog
from headrace.wire.gen import coordinator_service_pb2 as pb


def report(*reasons: str, rank: int = 0, attempt: int = 1, worker: str = "a") -> pb.ReportProgressRequest:
    troubles = [pb.LaneTrouble(lane=lane, worker=worker, reason=reason) for lane, reason in enumerate(reasons)]
    return pb.ReportProgressRequest(id=pb.RankId(job="job", attempt=attempt, rank=rank, nonce="n"), troubles=troubles)


def test_each_reason_is_logged_once_for_a_rank_and_worker() -> None:
    told = TroubleLog(RecentEvents())
    with capture_logs() as lines:
        told.tell(report("refused", "refused", "no connection since 3.1 s", ""))
        told.tell(report("no connection since 4.2 s", "refused"))
        told.tell(report("refused", worker="b"))
        told.tell(report("refused", rank=1))
        told.tell(report("refused", attempt=2))
    assert [(line["rank"], line["worker"], line["lane"], line["reason"]) for line in lines] == [
        (0, "a", 0, "refused"),
        (0, "a", 2, "no connection since 3.1 s"),
        (0, "b", 0, "refused"),
        (1, "a", 0, "refused"),
        (0, "a", 0, "refused"),
    ]
    assert {(line["event"], line["job"]) for line in lines} == {("lane_trouble", "job")}
