"""The coordinator's part of scaling: from the ranks' totals to a decision, each interval."""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.scaling import Scaling
from headrace.core.records import RankRecord
from tests.unit.session_world import S, World

INTERVAL_S = 10


class Training(World):
    """A job of two ranks, fed by workers of 100 samples a second each."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.scaling = Scaling(INTERVAL_S)
        for n in range(workers):
            self.add(f"w{n}", samples_per_s=100.0, pool="cpu", alive_until_us=self.now_us + 10_000 * S)
        self.open()
        self.form()
        self.tick()

    def runs(self, seconds: float, step_s: float, waits: tuple[float, float]) -> None:
        """Both ranks take steps of that length; waits: the share of it that each is blocked."""
        self.wait(seconds)
        steps = round(seconds / step_s)
        ranks = dict[int, RankRecord]()
        for rank, record in self.state.ranks.items():
            ranks[rank] = replace(
                record,
                elapsed_s=record.elapsed_s + seconds,
                wait_s=record.wait_s + seconds * waits[rank],
                consumed=record.consumed + steps,
                alive_until_us=self.now_us + 5 * S,
            )
        self.state = replace(self.state, ranks=ranks)

    def look(self) -> int:
        self.scaling.look([self.state], self.state.workers, self.now_us, self.rules)
        return self.scaling.classes["cpu", "fp"].desired


def test_a_rank_that_starves_asks_for_the_workers_that_its_whole_job_lacks() -> None:
    """Steps of 1 s of which 0.6 s are rank 0's wait: without it 2 x 64 samples each 0.4 s, of 100 a worker."""
    job = Training(workers=2)
    job.runs(INTERVAL_S, 1.0, (0.6, 0.0))
    assert job.look() == 4  # 3.2 and a tenth
    assert job.scaling.demand == {"job": 320.0}
    found = job.scaling.classes["cpu", "fp"]
    assert (found.live, found.speed, found.most, found.jobs) == (2, 100.0, 12, ("job",))


def test_only_what_happened_since_the_last_decision_counts() -> None:
    job = Training(workers=2)
    for _ in range(5):
        job.runs(INTERVAL_S, 1.0, (0.6, 0.0))
        job.look()
    job.runs(INTERVAL_S, 2.0, (0.0, 0.0))  # the training became slower: 64 a second
    job.look()
    job.runs(INTERVAL_S, 2.0, (0.0, 0.0))
    assert job.look() == 1
    assert job.scaling.demand == {"job": 64.0}


def test_between_decisions_nothing_changes() -> None:
    job = Training(workers=2)
    job.runs(INTERVAL_S, 1.0, (0.6, 0.0))
    job.look()
    job.runs(INTERVAL_S / 2, 5.0, (0.0, 0.0))
    assert job.look() == 4


def test_ranks_that_are_silent_or_blocked_leave_it_as_it_is_and_a_job_that_is_over_lets_go() -> None:
    job = Training(workers=4)
    job.runs(INTERVAL_S, 1.0, (0.6, 0.0))
    assert job.look() == 4
    job.wait(INTERVAL_S)  # nothing is heard of them, but they may come back
    assert job.look() == 4
    job.wait(61)
    job.look()
    job.wait(INTERVAL_S)
    assert job.look() == 0
    assert job.scaling.demand == {}


def test_a_store_whose_clock_was_put_back_is_decided_anew() -> None:
    job = Training(workers=2)
    job.runs(INTERVAL_S, 1.0, (0.6, 0.0))
    job.look()
    job.now_us -= 1000 * S
    job.runs(1, 0.5, (0.0, 0.0))
    assert job.look() == 4
    assert job.scaling.demand == {"job": 256.0}
