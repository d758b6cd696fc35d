"""A fleet under a storm: one round of chaos, short; `make chaos` runs long ones. And what judges it can say no."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.testing.chaos.run import Settings, run_chaos
from headrace.testing.chaos.storm import Weather
from headrace.testing.journal import Journal, Taken, audit, kept

SEEN = 360

pytestmark = pytest.mark.timeout(700)


def test_a_storm_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)  # fresh each time: as real processes keep their own time, no run is repeated
    print(f"make chaos SEED={seed}{' ARGS=--secure' * (seed % 2)}; logs in {tmp_path}")
    report = run_chaos(
        Settings(seed, tmp_path, round_s=12.0, samples=SEEN, secure=bool(seed % 2), weather=Weather(longest_s=5.0))
    )
    print(report.to_dict())
    assert report.faults.total() >= 3
    assert report.epochs_audited > 0 and report.batches >= report.epochs_audited * SEEN // 20
    assert report.processes_measured == 1 + 2 + 4 + 3


# --- the judge ---------------------------------------------------------------------------------------------------------

SAMPLES, BATCH, WORLD = 12, 2, 2


def taken(batch: int, epoch: int = 0) -> Taken:
    ids = [BATCH * batch, BATCH * batch + 1]
    return Taken(epoch, batch, ids, ids, [0, 0], "digest", {})


def attempt(number: int, begin: int, *batches: int) -> list[Journal]:
    """An attempt that began before batch `begin` and took `batches`, dealt to its ranks in turn."""
    ranks = [[taken(batch) for batch in batches if (batch - begin) % WORLD == rank] for rank in range(WORLD)]
    return [Journal(number, (0, begin), mine, None) for mine in ranks]


def clean(*attempts: list[Journal]) -> bool:
    (found,) = audit(kept(attempts)[0], 1, SAMPLES, 0)
    return found.clean


def test_the_judge_takes_what_was_committed_and_no_more() -> None:
    assert clean(attempt(1, 0, 0, 1, 2, 3, 4, 5))
    assert clean(attempt(1, 0, 0, 1, 2, 3), attempt(2, 2, 2, 3, 4, 5))
    standing, undone = kept([attempt(1, 0, 0, 1, 2, 3), attempt(2, 2, 2, 3, 4, 5)])
    assert ([len(part) for part in standing], undone) == ([2, 4], 2)


def test_an_attempt_that_goes_back_behind_several_undoes_all_of_them() -> None:
    assert clean(attempt(1, 0, 0, 1), attempt(2, 2, 2, 3), attempt(3, 0, 0, 1, 2, 3, 4, 5))
    assert not clean(attempt(1, 0, 0, 1), attempt(2, 2, 2, 3), attempt(3, 4, 0, 1, 2, 3, 4, 5))


def test_an_attempt_without_a_session_counts_for_nothing() -> None:
    nothing = [Journal(0, (0, 0), [], None)] * WORLD
    assert clean(attempt(1, 0, 0, 1, 2, 3), nothing, attempt(3, 4, 4, 5))


@pytest.mark.parametrize(
    "attempts",
    [
        [attempt(1, 0, 0, 1, 2, 3, 4)],
        [attempt(1, 0, 0, 1, 2, 3, 4, 5, 5)],
        [attempt(1, 0, 0, 1), attempt(2, 4, 4, 5)],  # began behind what was handed over: batches are skipped
        [attempt(1, 0, 0, 1, 2, 3), attempt(2, 2, 4, 5)],
    ],
    ids=["missing", "twice", "began too late", "began early and went on late"],
)
def test_the_judge_says_no(attempts: list[list[Journal]]) -> None:
    assert not clean(*attempts)


def test_the_judge_goes_by_the_pixels() -> None:
    journals = attempt(1, 0, 0, 1, 2, 3, 4, 5)
    lying = replace(journals[0].taken[0], pixel_ids=[4, 5])
    assert not clean([replace(journals[0], taken=[lying, *journals[0].taken[1:]]), journals[1]])


def test_a_line_that_a_kill_cut_is_no_line(tmp_path: Path) -> None:
    from headrace.core.job import JobSpec, Session
    from headrace.core.pipeline_spec import PipelineSpec
    from headrace.testing.journal import JournalWriter

    path = tmp_path / "journal"
    assert Journal.read(path) == Journal(0, (0, 0), [], None)
    writer = JournalWriter(path)
    job = JobSpec("job", "/data", BATCH, PipelineSpec(), samples=SAMPLES)
    writer.begin(Session(job=job, attempt=3, world=2, epoch=1, first=4, window=4, lanes=3, epochs=2))
    writer.take(taken(4, epoch=1))
    writer.take(taken(6, epoch=1))
    whole = path.read_bytes()
    assert Journal.read(path) == Journal(3, (1, 4), [taken(4, epoch=1), taken(6, epoch=1)], None)
    for cut in range(1, len(whole.splitlines(keepends=True)[-1]) + 1):
        path.write_bytes(whole[:-cut])
        assert len(Journal.read(path).taken) == 1
