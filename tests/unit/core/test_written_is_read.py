"""Whatever ranks report within the protocol's limits, the records made of it can be read: one that cannot is lost for good."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core import limits
from headrace.core.bad_share import AHEAD_S
from headrace.core.batch import BAD_REASONS
from headrace.core.events import BadSample, Progress
from headrace.core.job import JobSpec
from headrace.core.records import encode, rank_from_bytes, session_from_bytes
from tests.unit.session_world import World

JOB = JobSpec("j" * limits.NAME_CHARS, "/data", 100, manifest_hash="aa", samples=limits.SAMPLES)
LONG = 300  # more than is kept of a key
MOST = limits.COUNT_BOUND - 1
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(lambda text: text * (LONG // len(text)))
counts = st.integers(1000, 10_000) | st.integers(MOST - 10, MOST)


@given(st.lists(keys, min_size=3, max_size=3, unique=True), counts, counts)
@example([chr(0xF0000 + number) * LONG for number in range(3)], MOST, MOST)
@example([quote * LONG for quote in "'\"\\"], 1000, 1000)
def test_a_stop_is_read_whatever_its_keys_and_counts(names: list[str], samples: int, consumed: int) -> None:
    world = World(JOB)
    world.open(world=1)
    world.form(world=1)
    bad = tuple(BadSample(0, number, name, BAD_REASONS[-1]) for number, name in enumerate(names))
    for second in range(5):
        done = max(0, consumed - 4 + second) if second else 0
        reasons = tuple((reason, samples) for reason in BAD_REASONS)
        world.do(Progress(1, 0, "n0", None, done, 0, elapsed_s=float(second), bad=bad, samples=samples, bad_counts=reasons))
        assert rank_from_bytes(encode(world.state.ranks[0])) == world.state.ranks[0]
    world.tick()
    session = world.state.session
    assert session is not None and session.stop is not None
    assert session_from_bytes(encode(session)) == session
    assert session.stop.index == min(MOST, consumed + 1 + AHEAD_S * max(1, consumed - 3))
    assert "`headrace quarantine" in session.stop.why, "what to do about it is not what is cut"
    assert len(session.stop.why) <= limits.ERROR_CHARS
    world.do(Progress(1, 0, "n0", None, consumed, 0, stop=replace(session.stop, index=0)))
    assert world.state.session is not None and session_from_bytes(encode(world.state.session)) == world.state.session
