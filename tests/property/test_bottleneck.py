"""What is made of the experiment's numbers: the right word, parts that are there, and something to do in every case."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.bottleneck import MEANINGS, PARTS, SLOWED, Measured, diagnosis
from headrace.core.errors import ConfigInvalid
from headrace.core.starvation import CAUSES
from headrace.core.verdict import BALANCED, COMPUTE_BOUND, INPUT_BOUND

seconds = st.floats(0, 10)
TRANSPORTS = ("", "shm", "grpc", "mixed")


@st.composite
def measured(draw: st.DrawFn) -> Measured:
    """Waits that fit into the live step, which may be a little shorter than the cached one: noise."""
    waits = draw(st.dictionaries(st.sampled_from(CAUSES), seconds))
    cached_s, slowed_s = draw(st.floats(0.001, 10)), draw(seconds)
    live_s = max(cached_s * draw(st.floats(0.8, 1.0)) + slowed_s, 0.001) + math.fsum(waits.values())
    return Measured(
        steps=10, batch_size=draw(st.integers(1, 4096)), cached_s=cached_s, live_s=live_s, waits_s=waits,
        workers=draw(st.integers(1, 100)), lanes=draw(st.integers(1, 200)), window=draw(st.integers(1, 64)),
        transport=draw(st.sampled_from(TRANSPORTS)),
    )  # fmt: skip


@given(measured())
def test_what_could_be_won_is_the_live_step_without_the_cached_one(found: Measured) -> None:
    said = diagnosis(found)
    assert 0 <= said.won_share < 1 <= said.speedup
    assert math.isclose(said.speedup * (1 - said.won_share), 1.0, rel_tol=1e-9)
    assert set(said.parts) == set(PARTS) and min(said.parts.values()) >= 0
    lost_s = found.live_s - found.cached_s
    assert math.fsum(said.parts.values()) >= lost_s * (1 - 1e-9) - 1e-12
    if said.parts[SLOWED] > 0:
        assert math.isclose(math.fsum(said.parts.values()), lost_s, rel_tol=1e-6, abs_tol=1e-9)


@given(measured())
def test_the_verdict_is_one_of_three_and_each_has_something_to_do(found: Measured) -> None:
    said = diagnosis(found)
    assert said.verdict in (INPUT_BOUND, BALANCED, COMPUTE_BOUND)
    assert (said.verdict == COMPUTE_BOUND) == (said.won_share <= 0.02) == (said.bottleneck == "")
    assert (said.verdict == INPUT_BOUND) == (said.won_share >= 0.1)
    assert said.workers_wanted == 0 or found.workers < said.workers_wanted <= found.lanes
    assert len(said.actions) == 2 and all(said.actions) and said.actions[0] != said.actions[1]
    assert not any("{" in action for action in said.actions)
    text = str(said)
    assert text.startswith(said.verdict) and all(action in text for action in said.actions)
    if said.verdict == COMPUTE_BOUND:
        assert "leave the loader alone" in said.actions[0]
        assert not any(word in text for word in ("workers like these", "GPU engine"))
    else:
        assert said.parts[said.bottleneck] == max(said.parts.values())


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_takes_all_is_the_bottleneck_and_named(part: str, transport: str) -> None:
    waits = {part: 0.3} if part in CAUSES else {}
    said = diagnosis(Measured(10, 32, 0.1, 0.4, waits, workers=2, lanes=12, window=4, transport=transport))
    assert (said.verdict, said.bottleneck) == (INPUT_BOUND, part)
    assert said.won_share == pytest.approx(0.75) and said.speedup == pytest.approx(4.0)
    assert MEANINGS[part] in str(said)
    assert said.parts[part] == pytest.approx(0.3)
    assert said.workers_wanted in (0, 8)
    if part in ("worker_busy", "decode", "augment", "lane_wait"):
        assert said.workers_wanted == 8 and any("about 8 workers like these instead of 2" in action for action in said.actions)
    else:
        assert said.workers_wanted == 0 and not any("workers like these" in action for action in said.actions)
    if part == "transfer" and transport == "shm":
        assert not any("put workers on the trainer's node" in action for action in said.actions), "they are there"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("workers", "wanted"), [(2, 6), (5, 6), (6, 0), (7, 0)])
def test_nobody_is_told_to_run_more_workers_than_lanes(part: str, workers: int, wanted: int) -> None:
    """Each lane has one worker: those beyond idle, however much is to be won."""
    waits = {part: 0.3} if part in CAUSES else {}
    said = diagnosis(Measured(10, 32, 0.1, 0.4, waits, workers=workers, lanes=6, window=4, transport="grpc"))
    if part in ("worker_busy", "decode", "augment", "lane_wait"):
        assert said.workers_wanted == wanted
        told = f"about {wanted} workers like these instead of {workers}" if wanted else "more workers would idle"
        assert any(told in action for action in said.actions)
    assert not any("workers like these" in action for action in said.actions if not wanted)
    assert said.actions[0] != said.actions[1]


def test_a_step_that_is_no_time_is_refused() -> None:
    good = Measured(1, 1, 0.1, 0.1, {}, workers=1, lanes=1, window=1, transport="")
    for change in ({"cached_s": 0.0}, {"live_s": math.nan}, {"live_s": math.inf}):
        with pytest.raises(ConfigInvalid):
            replace(good, **change)
