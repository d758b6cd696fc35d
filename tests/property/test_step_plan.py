"""The arithmetic of `headrace plan`: bounds that hold whatever the numbers, and a time line that agrees with it."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigInvalid
from headrace.core.step_plan import (
    ENGINE,
    LIMITS,
    READ,
    TRAINER,
    TRANSFER,
    WINDOW,
    Counts,
    Gpu,
    Stages,
    step_plan,
    timeline,
)

seconds = st.floats(0, 10)
stages_of = st.builds(
    Stages,
    read_s=seconds, decode_s=seconds, augment_s=seconds, transfer_s=seconds, copy_s=seconds, step_s=st.floats(0.001, 10),
)  # fmt: skip
number = st.integers(1, 64)
counts_of = st.builds(
    Counts,
    ranks=number, workers=number, threads=number, reads=number, window=st.integers(0, 16), lanes=st.integers(0, 64),
)  # fmt: skip
gpu_of = st.none() | st.builds(Gpu, decode_s=seconds, augment_s=seconds, shared=st.booleans())
EPSILON = 1 + 1e-9


@given(stages_of, counts_of, gpu_of)
def test_a_step_lies_between_its_longest_stage_and_all_of_them_in_a_row(
    stages: Stages, counts: Counts, gpu: Gpu | None
) -> None:
    plan = step_plan(stages, counts, gpu)
    assert set(plan.limits) == set(LIMITS)
    assert all(plan.overlapped_s >= limit for limit in plan.limits.values())
    assert plan.overlapped_s == plan.limits[plan.bottleneck]
    assert plan.alone_s <= plan.overlapped_s <= plan.serial_s * EPSILON
    assert plan.overlapped_s >= max(stages.step_s + stages.copy_s, stages.transfer_s)
    assert 0 <= plan.wait_share < 1
    assert math.isclose(plan.overlapped_s * (1 - plan.wait_share), plan.alone_s, rel_tol=1e-6)


@given(stages_of, counts_of, gpu_of, st.sampled_from(["workers", "threads", "reads", "window"]), st.integers(1, 10))
def test_more_of_anything_is_never_slower(stages: Stages, counts: Counts, gpu: Gpu | None, what: str, more: int) -> None:
    now = counts.ahead if what == "window" else getattr(counts, what)
    fuller = replace(counts, **{what: now + more})
    before, after = step_plan(stages, counts, gpu), step_plan(stages, fuller, gpu)
    assert after.overlapped_s <= before.overlapped_s * EPSILON
    assert after.serial_s <= before.serial_s * EPSILON


@given(stages_of, counts_of, gpu_of, st.sampled_from([field.name for field in fields(Stages)]), st.floats(0, 5))
def test_a_longer_stage_is_never_faster(stages: Stages, counts: Counts, gpu: Gpu | None, what: str, more_s: float) -> None:
    longer = replace(stages, **{what: getattr(stages, what) + more_s})
    assert step_plan(longer, counts, gpu).overlapped_s * EPSILON >= step_plan(stages, counts, gpu).overlapped_s


@given(stages_of, counts_of, gpu_of)
def test_the_workers_that_are_wanted_are_enough_and_one_less_is_not(stages: Stages, counts: Counts, gpu: Gpu | None) -> None:
    plan = step_plan(stages, counts, gpu)
    wanted = plan.workers_wanted
    if wanted == 0:
        most = counts.lanes or 100_000
        assert step_plan(stages, replace(counts, workers=most), gpu).wait_share > 0
        return
    assert step_plan(stages, replace(counts, workers=wanted), gpu).wait_share < 1e-6
    if wanted > 1:
        assert step_plan(stages, replace(counts, workers=wanted - 1), gpu).wait_share > 0
    if plan.wait_share == 0:
        assert wanted <= counts.workers


@settings(max_examples=30)
@given(stages_of, counts_of, gpu_of)
def test_the_time_line_settles_at_the_step_that_is_told(stages: Stages, counts: Counts, gpu: Gpu | None) -> None:
    plan = step_plan(stages, counts, gpu)
    for overlap, step_s in ((True, plan.overlapped_s), (False, plan.serial_s)):
        some, most = 40 * counts.ahead, 80 * counts.ahead
        ends = [piece.end_s for piece in timeline(stages, counts, most, gpu, overlap=overlap) if piece.stage == TRAINER]
        assert ends == sorted(ends)
        assert (ends[-1] - ends[some - 1]) / (most - some) == pytest.approx(step_s, rel=0.05)


@given(stages_of, counts_of, gpu_of, st.booleans())
def test_no_stage_of_a_batch_begins_before_the_one_before_it_ends(
    stages: Stages, counts: Counts, gpu: Gpu | None, overlap: bool
) -> None:
    pieces = timeline(stages, counts, 6, gpu, overlap=overlap)
    for batch in range(6):
        own = [piece for piece in pieces if piece.batch == batch]
        assert [piece.stage for piece in own] == [READ, ENGINE, TRANSFER, TRAINER]
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(own))
    trained = [piece for piece in pieces if piece.stage == TRAINER]
    assert all(a.end_s <= b.start_s * EPSILON for a, b in itertools.pairwise(trained)), "one step at a time"
    for piece in pieces:
        if piece.stage == READ and overlap and piece.batch >= counts.ahead:
            assert piece.start_s >= trained[piece.batch - counts.ahead].end_s, "never more than the window ahead"


def test_numbers_that_one_can_check_by_hand() -> None:
    stages = Stages(read_s=0.02, decode_s=0.6, augment_s=0.2, transfer_s=0.01, copy_s=0.0, step_s=0.1)
    plan = step_plan(stages, Counts(ranks=2, workers=2, threads=4, reads=4, window=8))
    assert plan.serial_s == pytest.approx(0.02 + 0.8 / 4 + 0.01 + 0.1)
    assert plan.limits == pytest.approx({READ: 0.005, ENGINE: 0.2, TRANSFER: 0.01, TRAINER: 0.1, WINDOW: 0.33 / 8})
    assert (plan.bottleneck, plan.overlapped_s, plan.workers_wanted) == (ENGINE, pytest.approx(0.2), 4)
    assert plan.wait_share == pytest.approx(0.5)
    on_gpu = step_plan(stages, Counts(ranks=2, workers=2, threads=4, window=8), Gpu(0.02, 0.01))
    assert (on_gpu.bottleneck, on_gpu.overlapped_s, on_gpu.workers_wanted) == (TRAINER, pytest.approx(0.1), 1)
    shared = step_plan(stages, Counts(ranks=2, workers=2, threads=4, window=8), Gpu(0.02, 0.01, shared=True))
    assert (shared.bottleneck, shared.overlapped_s) == (TRAINER, pytest.approx(0.13))
    few = step_plan(stages, Counts(ranks=2, workers=9, threads=1, window=8, lanes=3))
    assert few.workers_wanted == 0 and few.limits[ENGINE] == pytest.approx(0.8 * 2 / 3)


@pytest.mark.parametrize(
    "change", [{"read_s": -1.0}, {"decode_s": math.inf}, {"step_s": math.nan}, {"step_s": 0.0, "copy_s": 0.0}], ids=str
)
def test_times_that_cannot_be_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigInvalid):
        replace(Stages(1, 1, 1, 1, 1, 1), **change)


@pytest.mark.parametrize("change", [{"workers": 0}, {"ranks": 0}, {"window": -1}, {"lanes": -1}], ids=str)
def test_counts_that_cannot_be_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigInvalid):
        replace(Counts(), **change)
    with pytest.raises(ConfigInvalid):
        Gpu(-1, 0)
