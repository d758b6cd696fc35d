"""The stream's logic over real slots made in this process: order, epochs, state, life time of pixels, accounting."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog import make_filtering_bound_logger as logging_at
from structlog.testing import LogCapture

import headrace
from headrace.client.options import StreamOptions, state_to_dict
from headrace.core import errors
from headrace.core.batch import BatchMeta
from headrace.core.job import JobSpec, Shuffle, StreamState
from headrace.core.pipeline_spec import CenterCrop, Output, PipelineSpec
from headrace.core.starvation import CAUSES
from headrace.testing.memory_stream import MemoryLink, memory_stream

SIDE = 4


def job(samples: int = 20, batch_size: int = 4, **kwargs: Any) -> JobSpec:
    output = kwargs.pop("output", Output())
    return JobSpec(
        name="train",
        dataset="/data/set",
        batch_size=batch_size,
        samples=samples,
        manifest_hash="m",
        seed=3,
        pipeline=PipelineSpec((CenterCrop((SIDE, SIDE)),), output),
        shuffle=Shuffle(run=2, window=8),
        **kwargs,
    )


def images(ids: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
    """Each pixel is the sample's id plus 100 times the epoch."""
    return np.broadcast_to((ids + 100 * epoch).astype(np.uint8)[:, None, None, None], (len(ids), SIDE, SIDE, 3))


def stream(spec: JobSpec | None = None, **kwargs: Any) -> headrace.Stream:
    options = {
        name: kwargs.pop(name)
        for name in ("rank", "world", "epochs", "wait_deadline_s", "join_deadline_s", "attempt", "transport")
        if name in kwargs
    }
    return memory_stream(spec or job(), images, options=StreamOptions(**options), **kwargs)


def linked(**kwargs: Any) -> tuple[headrace.Stream, MemoryLink]:
    links: list[MemoryLink] = []
    made = stream(on_link=links.append, **kwargs)
    made.join()
    return made, links[0]


def ids_of(made: headrace.Stream) -> list[int]:
    return [int(sample) for batch in made for sample in batch.sample_ids[batch.mask]]


def test_two_epochs_hold_every_sample_once_and_differ() -> None:
    with stream(epochs=2) as made:
        epochs = {epoch: ids_of(made) for epoch in made.epochs()}
    assert sorted(epochs) == [0, 1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]


def test_for_after_for_goes_through_the_epochs_and_then_yields_nothing() -> None:
    with stream(epochs=2) as made:
        assert [len(made), len(ids_of(made)), len(made), len(ids_of(made)), len(made), len(ids_of(made))] == [
            5,
            20,
            5,
            20,
            0,
            0,
        ]


def test_an_epoch_left_early_goes_on_with_its_rest() -> None:
    with stream(epochs=1) as made:
        seen: list[int] = []
        for batch in made:
            seen += batch.sample_ids.tolist()
            if batch.step == 1:
                break
        assert len(made) == 3
        turns = 0
        for epoch in made.epochs():
            assert epoch == 0
            seen += ids_of(made)
            turns += 1
    assert turns == 1
    assert sorted(seen) == list(range(20))


def test_epochs_without_an_inner_loop_is_an_error_and_not_a_hang() -> None:
    with stream() as made, pytest.raises(errors.StateInvalid, match="no batch was taken"):
        for _ in made.epochs():
            pass


def test_a_batch_has_what_its_documentation_says() -> None:
    with stream(labels=lambda ids: ids % 7) as made:
        batch = next(iter(made))
        assert batch.pixels.shape == (4, SIDE, SIDE, 3)
        assert batch.pixels.dtype == np.uint8
        assert not batch.pixels.flags.writeable
        assert (batch.pixels[:, 0, 0, 0] == batch.sample_ids).all()
        assert (batch.labels == batch.sample_ids % 7).all()
        assert batch.keys == [f"{sample:08d}" for sample in batch.sample_ids]
        assert batch.mask.all() and (batch.status == 0).all() and batch.substituted == []
        assert (batch.epoch, batch.step, batch.batch, batch.index) == (0, 0, 0, 0)
        assert (batch.fingerprint, batch.worker, batch.transport, len(batch)) == ("memory", "memory", "shm", 4)
        with pytest.raises(ValueError, match="read-only"):
            batch.pixels[0] = 0


def test_pixels_are_gone_once_the_next_batch_is_asked_for_and_a_copy_stays() -> None:
    with stream(epochs=1) as made:
        before: headrace.Batch | None = None
        kept: list[headrace.Batch] = []
        for batch in made:
            if before is not None:
                with pytest.raises(errors.BatchReleased) as caught:
                    _ = before.pixels
                assert (caught.value.epoch, caught.value.step) == (0, before.step)
                with pytest.raises(errors.BatchReleased):
                    before.copy()
            before = batch
            kept.append(batch.copy())
        assert before is not None and before.released
    for copy in kept:
        assert (copy.pixels[:, 0, 0, 0] == copy.sample_ids).all()
        assert copy.pixels.flags.writeable


def test_slots_go_back_when_the_next_batch_is_asked_for() -> None:
    made, link = linked(epochs=1)
    given_back = []
    for _ in made:
        given_back.append(link.intake.released)
    assert given_back == [0, 1, 2, 3, 4]
    assert link.intake.released == 5
    made.close()
    assert link.closed and link.intake.closed


@pytest.mark.parametrize("tail", ["drop", "pad"])
@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(6, 60),
    batch_size=st.integers(1, 6),
    worlds=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    takes=st.lists(st.integers(0, 5), min_size=4, max_size=4),
)
def test_states_carry_an_epoch_over_any_worlds_with_no_sample_twice(
    tail: Any, samples: int, batch_size: int, worlds: list[int], takes: list[int]
) -> None:
    """Ranks stop after some steps, save, and other numbers of ranks go on; a state goes through JSON in between."""
    spec = job(samples, batch_size, tail=tail)
    if samples // batch_size < 3:
        return
    state: dict[str, Any] | None = None
    seen: list[int] = []
    for world, take in [*zip(worlds, takes, strict=False), (1, 1000)]:
        states = []
        for rank in range(world):
            made = stream(spec, rank=rank, world=world, epochs=1)
            if state is not None:
                made.load_state_dict(state)
            with made:
                for count, batch in enumerate(made):
                    if count == take:
                        break
                    seen += batch.sample_ids[batch.mask].tolist()
                    last = made.state_dict()
                else:
                    last = made.state_dict()
                if take == 0:
                    last = state or stream(spec, world=world, epochs=1).state_dict()
            states.append(last)
        assert all(other == states[0] for other in states)
        state = json.loads(json.dumps(states[0]))
    assert len(seen) == len(set(seen))
    if tail == "pad":
        assert sorted(seen) == list(range(samples))


def test_a_state_counts_the_batch_in_hand_and_nothing_beyond() -> None:
    with stream(epochs=2) as made:
        iterator = iter(made)
        for step in range(1, 5):
            next(iterator)
            assert {name: made.state_dict()[name] for name in ("epoch", "first", "step", "world")} == {
                "epoch": 0,
                "first": 0,
                "step": step,
                "world": 1,
            }
        next(iterator)
        state = made.state_dict()
        assert (state["epoch"], state["first"], state["step"]) == (1, 0, 0)
        assert state["plan_hash"] == job().plan_hash


def test_a_batch_that_was_staged_ahead_is_not_counted() -> None:
    made, link = linked(epochs=1)
    batches = iter(made)
    next(batches)
    state = made.state_dict()
    staged = made.stage_next()
    assert staged is not None and staged.step == 1
    assert made.state_dict() == state and made.stats().batches == 1
    assert next(batches) is staged
    assert made.stats().batches == 2
    link.intake.let(2)
    assert made.stage_next() is None
    link.intake.let(None)
    link.intake.broken[2] = errors.BatchFailed("all bad", batch=2)
    assert made.stage_next() is None
    with pytest.raises(errors.BatchFailed):
        next(batches)
    made.close()


def test_staging_stops_at_the_end_of_an_epoch() -> None:
    with stream(epochs=2) as made:
        for batch in made:
            staged = made.stage_next()
            assert (staged is None) == (batch.step == 4)


def test_a_stream_that_is_dropped_unclosed_is_abandoned() -> None:
    made, link = linked()
    next(iter(made))
    del made
    gc.collect()
    assert link.closed


def test_a_truth_test_does_not_join() -> None:
    links: list[MemoryLink] = []
    made = stream(on_link=links.append)
    assert made
    assert links == []
    assert len(made) == 5
    assert len(links) == 1


def test_loading_a_state_too_late_is_refused() -> None:
    with stream() as made:
        state = made.state_dict()
        with pytest.raises(errors.StateInvalid, match="too late"):
            made.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"plan_hash": "other", "step": 1}, "another plan"),
        ({"version": 2}, "version"),
        ({"step": -1}, "out of range"),
        ({"world": 0}, "out of range"),
        ({"step": True}, "out of range"),
        ({"more": 1}, "fields differ"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], says: str) -> None:
    state = stream().state_dict() | change
    with pytest.raises(errors.StateInvalid, match=says):
        stream().load_state_dict(state)


def test_at_an_epochs_beginning_another_batch_size_may_go_on() -> None:
    with stream(epochs=2) as made:
        ids_of(made)
        state = made.state_dict()
    other = stream(job(batch_size=2), epochs=2)
    other.load_state_dict(state)
    with other:
        assert len(other) == 10
        assert next(iter(other)).epoch == 1


def test_bad_samples_are_named_and_counted_once() -> None:
    with stream(epochs=1, bad={7: "truncated", 11: "empty"}) as made:
        told = []
        for batch in made:
            told += [(sub.sample_id, sub.reason, sub.row) for sub in batch.substituted]
            for sub in batch.substituted:
                assert batch.pixels[sub.row, 0, 0, 0] == sub.source_id != sub.sample_id
        assert sorted(sample for sample, _, _ in told) == [7, 11]
        snapshot = made._progress.snapshot()
        assert sorted((bad.epoch, bad.sample, bad.reason) for bad in snapshot.bad) == [(0, 7, "truncated"), (0, 11, "empty")]
        made._progress.answered(snapshot)
        assert made._progress.snapshot().bad == ()
        assert made.stats().substituted == 2


def test_waits_are_explained_also_when_a_deadline_broke_them() -> None:
    made, link = linked(epochs=1, wait_deadline_s=0.05)
    link.intake.let(0)
    for _ in range(2):
        with pytest.raises(errors.WaitTimeout, match="memory"):
            next(iter(made))
    stats = made.stats()
    assert stats.waiting_s >= 0.1, "a batch that never comes is waited for, too"
    assert stats.wait_s == pytest.approx(stats.waiting_s) == pytest.approx(sum(stats.wait_s_by_cause.values()))
    threading.Timer(0.02, link.intake.let, [None]).start()
    assert next(iter(made)).index == 0
    stats = made.stats()
    assert set(stats.wait_s_by_cause) == set(CAUSES)
    assert stats.wait_s == pytest.approx(sum(stats.wait_s_by_cause.values()))
    assert 0.1 <= stats.wait_s <= stats.elapsed_s
    assert stats.waiting_s == 0
    assert stats.wait_s_by_cause["lane_wait"] >= 0.1
    made.close()


def test_a_wait_counts_while_it_lasts_by_what_is_known_of_its_batch() -> None:
    made, link = linked(epochs=1)
    link.intake.let(0)
    trainer = threading.Thread(target=lambda: next(iter(made)))
    trainer.start()
    before = made.stats()
    while not (stats := made.stats()).waiting_s > before.waiting_s > 0:
        before = stats
        assert stats.wait_s == pytest.approx(sum(stats.wait_s_by_cause.values())) == pytest.approx(stats.waiting_s)
    link.intake.milestones = {"leased": math.inf}
    stats = made.stats()
    assert stats.wait_s_by_cause["lane_wait"] == pytest.approx(stats.waiting_s) == pytest.approx(stats.wait_s)
    link.intake.let(None)
    trainer.join()
    assert made.stats().waiting_s == 0
    made.close()


@pytest.mark.parametrize(("samples", "world", "dropped"), [(20, 1, [0, 0, 0]), (23, 1, [3, 6, 9]), (23, 2, [7, 14, 21])])
def test_leftover_samples_are_counted_at_each_epochs_end(
    samples: int, world: int, dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = LogCapture()
    monkeypatch.setattr(structlog, "get_logger", lambda *_: structlog.wrap_logger(None, [lines], logging_at(0)))
    with stream(job(samples), world=world, epochs=3) as made:
        seen = []
        for _ in made.epochs():
            batches = iter(made)
            next(batches)
            assert made.stats().dropped == (seen[-1] if seen else 0), "not before the end"
            list(batches)
            seen.append(made.stats().dropped)
    assert seen == dropped and made.stats().dropped == dropped[-1]
    ends = [line for line in lines.entries if line["event"] == "epoch_ends"]
    assert [(line["epoch"], line["samples_dropped"]) for line in ends] == [(epoch, dropped[0]) for epoch in range(3)]
    assert {line["log_level"] for line in ends} == {"debug"}


def test_what_a_session_finds_too_little_to_go_on_with_is_dropped() -> None:
    with stream(job(20), world=2, epochs=2) as made:
        made.load_state_dict(state_to_dict(job(20), StreamState(0, 4, 0, 1)))
        made.join()
        assert made.stats().dropped == 4
        assert {batch.epoch for batch in made} == {1}
        assert made.stats().dropped == 4 + 4


def test_what_ends_the_session_is_raised_from_a_running_wait() -> None:
    made, link = linked()
    link.intake.let(0)
    threading.Timer(0.02, link.intake.fail, [errors.SessionSuperseded("over", attempt=1)]).start()
    with pytest.raises(errors.SessionSuperseded):
        next(iter(made))
    made.close()


@pytest.mark.parametrize("name", ["rank", "attempt", "epoch", "step", "batch", "lane", "job", "plan_hash"])
def test_a_batch_that_is_not_the_plans_is_never_handed_over(name: str) -> None:
    def alter(meta: BatchMeta) -> None:
        value = getattr(meta, name)
        setattr(meta, name, value + 1 if isinstance(value, int) else value + "x")

    with stream(alter=alter) as made:
        with pytest.raises(errors.ProtocolMismatch, match=name):
            next(iter(made))
        assert made.stats().batches == 0


def test_another_engine_than_the_jobs_is_refused() -> None:
    def alter(meta: BatchMeta) -> None:
        meta.fingerprint = "cpu-2"

    with (
        stream(job(fingerprint="cpu-1"), alter=alter) as made,
        pytest.raises(errors.ProtocolMismatch, match="fingerprint is 'cpu-2' where the plan has 'cpu-1'"),
    ):
        next(iter(made))
    with stream(job(fingerprint="any"), alter=alter) as made:
        assert next(iter(made)).fingerprint == "cpu-2"


def test_after_close_nothing_is_handed_over() -> None:
    made, link = linked()
    batch = next(iter(made))
    made.close()
    made.close()
    assert link.closed and batch.released
    for use in (lambda: next(iter(made)), lambda: len(made), made.join):
        with pytest.raises(errors.StateInvalid, match="closed"):
            use()
    assert made.stats().batches == 1
    assert made.state_dict()["step"] == 1


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("deadline_s", [0.0, 3.0])
def test_a_commit_after_close_is_an_error_and_commits_nothing(joined: bool, deadline_s: float) -> None:
    with stream() as made:
        if joined:
            next(iter(made))
            made.commit()
            next(iter(made))
    with pytest.raises(errors.StateInvalid, match=r"before the end of the `with`"):
        made.commit(deadline_s=deadline_s)
    assert made.stats().committed == int(joined)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rank": 2, "world": 2}, errors.WorldMismatch),
        ({"rank": 0, "world": 0}, errors.WorldMismatch),
        ({"rank": -1}, errors.ConfigInvalid),
        ({"transport": "tcp"}, errors.ConfigInvalid),
        ({"wait_deadline_s": float("inf")}, errors.ConfigInvalid),
        ({"join_deadline_s": 0}, errors.ConfigInvalid),
        ({"epochs": 1.5}, errors.ConfigInvalid),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], error: type[errors.HeadraceError]) -> None:
    with pytest.raises(error):
        StreamOptions(**options)


def test_attempt_comes_from_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "4")
    assert StreamOptions().fixed_attempt == 0
    monkeypatch.setenv("HEADRACE_ATTEMPT", "7")
    assert StreamOptions().fixed_attempt == 7
    assert StreamOptions(attempt=9).fixed_attempt == 9
    monkeypatch.setenv("HEADRACE_ATTEMPT", "seven")
    with pytest.raises(errors.ConfigInvalid, match="HEADRACE_ATTEMPT"):
        _ = StreamOptions().fixed_attempt


def test_bfloat16_pixels_have_their_dtype() -> None:
    spec = job(output=Output(dtype="bfloat16"))
    with stream(spec) as made:
        batch = next(iter(made))
        assert batch.dtype == "bfloat16"
        assert batch.pixels.itemsize == 2
        assert (batch.pixels[:, 0, 0, 0].astype(np.float32) == batch.sample_ids).all()


def test_importing_headrace_loads_nothing_heavy() -> None:
    code = (
        "import sys, headrace; headrace.PipelineSpec(); print(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    heavy = {
        "torch",
        "jax",
        "grpc",
        "google",
        "fastapi",
        "uvicorn",
        "redis",
        "pydantic",
        "PIL",
        "cv2",
        "obstore",
        "rich",
        "click",
    }
    assert not loaded & heavy
    assert "numpy" in loaded
