"""Too many bad samples stop a session: the rule, the coordinator's verdict, and what each rank then does."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from headrace.client.options import StreamOptions
from headrace.core.bad_share import AHEAD_S, LEAST_SAMPLES, first_keys, paced, ready_to_judge, stop_index, too_many, why
from headrace.core.errors import SpecInvalid, TooManyBadSamples
from headrace.core.events import BadSample, Note, Observe, Progress
from headrace.core.job import JobSpec, Stop, StreamState
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.core.records import RankRecord, SessionRecord, encode, rank_from_bytes, session_from_bytes
from headrace.testing.memory_stream import MemoryLink, memory_stream
from headrace.wire import convert
from tests.unit.session_world import World

TINY = PipelineSpec(ops=(CenterCrop((2, 2)),))
JOB = JobSpec("job", "/data", 100, pipeline=TINY, manifest_hash="aa", samples=5000)


def images(ids, epoch):  # type: ignore[no-untyped-def]
    return np.zeros((len(ids), 2, 2, 3), np.uint8)


# --- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "samples", "bad", "stops"),
    [
        (0.05, LEAST_SAMPLES, 50, False), (0.05, LEAST_SAMPLES, 51, True), (0.05, LEAST_SAMPLES - 1, 999, False),
        (0.0, LEAST_SAMPLES, 1, True), (0.0, 10**9, 0, False), (1.0, LEAST_SAMPLES, LEAST_SAMPLES, False),
    ],
)  # fmt: skip
def test_a_share_above_the_limit_stops_once_there_are_enough_samples(share: float, samples: int, bad: int, stops: bool) -> None:
    assert too_many(replace(JOB, max_bad_share=share), samples, bad) is stops


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.1", None, True])
def test_a_limit_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SpecInvalid, match="max_bad_share"):
        replace(JOB, max_bad_share=value)  # type: ignore[arg-type]


def test_the_limit_changes_no_batch_and_travels_with_the_job() -> None:
    other = replace(JOB, max_bad_share=1)
    assert other.plan_hash == JOB.plan_hash
    assert convert.job_from_json(convert.job_to_json(other)) == other != JOB
    old = {name: value for name, value in JOB.to_dict().items() if name != "max_bad_share"}
    assert JobSpec.from_dict(old) == JOB, "a job that was opened before there was a limit has the default one"


def test_the_words_name_reasons_keys_and_what_to_do() -> None:
    keys = first_keys((), [f"k{i}" for i in (0, 0, 1, 2, 3)])
    text = why(JOB, 2000, {"truncated": 7, "empty": 200, "corrupt": 1, "checksum": 92}, keys)
    assert text.startswith(
        "300 of the 2000 samples handed over in this session were bad (15.0%; the job's max_bad_share is 5.0%)"
    )
    assert "200 empty, 92 checksum, 7 truncated; the first: 'k0', 'k1', 'k2'" in text
    assert "`headrace quarantine job`" in text and "higher max_bad_share" in text


def test_all_ranks_stop_ahead_of_the_furthest() -> None:
    ranks = [RankRecord(1, "n", 0, consumed=consumed, speed=consumed / 10) for consumed in (90, 100)]
    assert stop_index(ranks) == 101 + 10 * AHEAD_S


def test_a_rank_is_as_fast_as_it_ever_was_between_two_reports() -> None:
    """A minute of compiling and a second at ten steps a second are ten steps a second."""
    rank = RankRecord(1, "n", 0)
    for elapsed_s, consumed in ((20.0, 1), (60.0, 1), (60.2, 3), (61.0, 11), (61.01, 12), (62.0, 15), (90.0, 15)):
        rank = paced(replace(rank, elapsed_s=elapsed_s, consumed=consumed))
    assert (rank.speed, rank.spans) == (10.0, 3)
    assert stop_index([rank, RankRecord(1, "n", 0)]) == 16 + 10 * AHEAD_S
    assert rank_from_bytes(encode(rank)) == rank
    assert ready_to_judge(2, [rank, RankRecord(1, "n", 0)])
    assert not ready_to_judge(2, [rank]), "the other may know of a stop that the store lost"
    assert not ready_to_judge(1, [replace(rank, spans=2)])


# --- the coordinator's verdict ---------------------------------------------------------------------------------------


def report(rank: int, consumed: int, samples: int, bad: int) -> Progress:
    """One batch a second."""
    told = (BadSample(0, rank, f"key-{rank}", "truncated"),) if bad else ()
    counts = (("truncated", bad),) if bad else ()
    return Progress(
        1, rank, f"n{rank}", None, consumed, 0, elapsed_s=float(consumed), bad=told, samples=samples, bad_counts=counts
    )


def test_the_coordinator_judges_the_sum_and_names_one_index_once() -> None:
    world = World(replace(JOB, samples=100_000))
    world.open(world=2)
    world.form(world=2, epochs=9)
    for consumed in range(6):
        world.do(report(0, consumed, 100 * consumed, 10 * consumed))
        world.wait(1.0)
    world.do(report(0, 6, 600, 60))
    world.tick()
    assert world.state.session is not None and world.state.session.stop is None, "600 samples are too few to judge"
    world.do(report(1, 8, 800, 0))
    world.tick()
    assert world.state.session.stop is None, "60 of 1400 are less than 5%"
    world.do(report(0, 12, 1200, 130))
    effects = world.tick()
    stop = world.state.session.stop
    assert stop is not None and stop.index == 12 + 1 + AHEAD_S
    assert "130 of the 2000" in stop.why and "'key-0'" in stop.why and "key-1" not in stop.why
    assert [e.event for e in effects if isinstance(e, Note)] == ["session_stops_for_bad_samples"]
    world.do(report(1, 20, 2000, 900))
    world.tick()
    assert world.state.session.stop == stop, "the index does not move any more"
    again = session_from_bytes(encode(world.state.session))
    assert again.stop == stop and rank_from_bytes(encode(world.state.ranks[0])) == world.state.ranks[0]
    world.form(world=2, attempt=2, suffix="b", epochs=9)
    assert world.state.session.stop is None, "another attempt begins anew"


def test_a_stop_that_the_store_lost_comes_back_from_the_ranks() -> None:
    world = World(replace(JOB, samples=1_000_000))
    world.open(world=2)
    known = world.form(world=2, epochs=9)
    for consumed in range(1, 14):
        for rank in range(2):
            world.do(report(rank, consumed, 100 * consumed, 10 * consumed))
        world.tick()
    assert world.state.session is not None
    stop = world.state.session.stop
    assert stop is not None
    world.state = replace(world.state, session=None, ranks={})
    for consumed in range(14, 20):  # a rank that had not heard speaks first
        world.do(replace(report(0, consumed, 100 * consumed, 10 * consumed), known=known))
        world.tick()
        assert world.state.session.stop is None, "the other may know more"
    world.do(replace(report(1, 19, 1900, 190), known=known, stop=stop))
    world.tick()
    assert world.state.session.stop == stop
    world.do(Observe(1, 0, "n0", known, stop=Stop(stop.index + 5, "later")))
    assert world.state.session.stop == stop
    world.do(Observe(1, 0, "n0", known, stop=Stop(stop.index - 5, "sooner")))
    assert world.state.session.stop == Stop(stop.index - 5, "sooner"), "of two the lower counts"


def test_records_of_an_older_version_have_no_stop_and_no_counts() -> None:
    record = SessionRecord(1, 1, 0, 3, 1, StreamState())
    old = {name: value for name, value in json.loads(encode(record)).items() if not name.startswith("stop")}
    assert session_from_bytes(json.dumps(old).encode()) == record
    rank = RankRecord(1, "n", 0)
    names = ("samples", "bad", "bad_keys", "paced_from", "speed", "spans")
    old = {name: value for name, value in json.loads(encode(rank)).items() if name not in names}
    assert rank_from_bytes(json.dumps(old).encode()) == rank


# --- what ranks do ---------------------------------------------------------------------------------------------------


def test_a_world_of_one_stops_by_itself_at_the_first_batch_that_is_too_many() -> None:
    job = replace(JOB, shuffle=replace(JOB.shuffle, mode="none"))
    bad = dict.fromkeys(range(900, 1400), "truncated") | dict.fromkeys(range(5), "empty")
    taken = 0
    with memory_stream(job, images, bad={k: v for k, v in bad.items() if k % 100 < 90}) as stream:
        with pytest.raises(TooManyBadSamples, match="90 truncated, 5 empty") as caught:
            for _ in stream:
                taken += 1
        assert (taken, caught.value.index, caught.value.rank, caught.value.job) == (10, 10, 0, "job")
        with pytest.raises(TooManyBadSamples):
            next(iter(stream))
        assert stream.stats().batches == 10, "nothing was lost: the state says where to go on"
        assert stream.state_dict()["step"] == 10
    with memory_stream(replace(job, max_bad_share=1.0), images, bad=bad) as stream:
        assert sum(1 for _ in zip(range(30), stream, strict=False)) == 30


def test_ranks_stop_at_the_index_that_the_coordinator_names_and_not_before() -> None:
    links: list[MemoryLink] = []
    with memory_stream(JOB, images, on_link=links.append, options=StreamOptions(0, 2), bad={1: "empty"}) as stream:
        taken = 0
        with pytest.raises(TooManyBadSamples, match="because") as caught:
            for _ in stream:
                taken += 1
                if taken == 4:
                    links[0].stop = Stop(7, "because")
                if taken == 7:
                    assert stream.stage_next() is not None, "what was staged for a device is not handed over either"
        assert (taken, caught.value.index) == (7, 7)
