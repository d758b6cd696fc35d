"""Who may speak for a job, and how its token is replaced while ranks still have the old one."""

from __future__ import annotations

import itertools

import pytest

from headrace.core.errors import Unauthenticated
from headrace.core.events import Adopt, Event, JobState, Join, Leave, Observe, Open, Progress, Rules
from headrace.core.job import JobSpec, Session
from headrace.core.job_token import admits, hashes, renewed
from headrace.core.records import JobRecord, encode, job_from_bytes
from headrace.core.session_state import apply

OLD, NEW, EVIL = hashes("job", ["the old token", "the new token", "a token of nobody"])
RULES = Rules()
SPEC = JobSpec("job", "/data", 4, manifest_hash="m", samples=100, fingerprint="any")


def test_hashes_differ_by_job_and_token() -> None:
    made = [hashes(job, [token])[0] for job in ("a", "b", "ab") for token in ("x", "y", "bx")]
    assert len(set(made)) == 9
    assert all(len(each) == 64 for each in made)
    assert not any(token in made[0] for token in ("x", "y"))


@pytest.mark.parametrize("begins", [True, False])
def test_wrong_missing_and_needless_tokens_are_refused(begins: bool) -> None:
    with pytest.raises(Unauthenticated, match="another token"):
        renewed("job", (NEW, OLD), (EVIL,), begins=begins)
    with pytest.raises(Unauthenticated, match="shows no token"):
        renewed("job", (NEW,), (), begins=begins)
    with pytest.raises(Unauthenticated, match="open without a token"):
        renewed("job", (), (NEW,), begins=begins)
    assert renewed("job", (), (), begins=begins) == ()


def test_a_rotation_while_ranks_run() -> None:
    kept: tuple[str, ...] = (OLD,)
    for given in ((OLD,), (NEW, OLD), (OLD,), (NEW, OLD), (NEW,), (OLD,)):  # each rank's file changes in its own time
        kept = renewed("job", kept, given, begins=False)
    assert kept == (NEW, OLD)
    kept = renewed("job", kept, (NEW,), begins=True)
    assert kept == (NEW,)
    with pytest.raises(Unauthenticated):
        renewed("job", kept, (OLD,), begins=False)


@pytest.mark.parametrize("begins", [True, False])
def test_who_holds_only_an_old_token_decides_nothing(begins: bool) -> None:
    for given in ((OLD,), (EVIL, OLD), (OLD, EVIL)):
        assert renewed("job", (NEW, OLD), given, begins=begins) == (NEW, OLD)


def test_two_ranks_with_files_in_another_order_do_not_write_in_turns() -> None:
    kept: tuple[str, ...] = (OLD,)
    seen = []
    for given in itertools.islice(itertools.cycle([(NEW, OLD), (OLD, NEW)]), 10):
        kept = renewed("job", kept, given, begins=False)
        seen.append(kept)
    assert len(set(seen)) == 1


def events(tokens: tuple[str, ...]) -> list[Event]:
    session = Session(SPEC, 1, 1, 0, 0, 0, 3, 12)
    progress = Progress(1, 0, "n", session, 0, 0, tokens=tokens)
    return [
        Open(SPEC, 1, tokens),
        Join(1, 0, 1, "n", None, "", 0, "node", 100, tokens),
        Observe(1, 0, "n", session, tokens),
        progress,
        Leave(1, 0, "n", progress, tokens),
    ]


@pytest.mark.parametrize("number", range(5), ids=["open", "join", "observe", "progress", "leave"])
@pytest.mark.parametrize("tokens", [(), (EVIL,)], ids=["none", "another"])
def test_no_event_of_a_rank_passes_without_the_jobs_token(number: int, tokens: tuple[str, ...]) -> None:
    joined = JobState("job", JobRecord(SPEC, 0, (NEW,)))
    joined, _ = apply(joined, events((NEW,))[1], 1000, RULES)
    with pytest.raises(Unauthenticated):
        apply(joined, events(tokens)[number], 2000, RULES)
    apply(joined, events((NEW,))[number], 2000, RULES)


def test_a_job_that_the_store_lost_is_healed_with_its_token() -> None:
    by_rank, _ = apply(JobState("job"), events((NEW, OLD))[2], 1000, RULES)
    told = Session(SPEC, 1, 1, 0, 0, 0, 3, 12, token_hashes=(NEW,))
    by_worker, _ = apply(JobState("job"), Adopt("w", "i", 1, ((0, 5),), told), 1000, RULES)
    for state, kept in ((by_rank, (NEW, OLD)), (by_worker, (NEW,))):
        assert state.job is not None and state.job.token_hashes == kept
        with pytest.raises(Unauthenticated):
            apply(state, events((EVIL,))[2], 2000, RULES)


def test_the_store_keeps_hashes_alone() -> None:
    record = JobRecord(SPEC, 5, (NEW, OLD))
    assert job_from_bytes(encode(record)) == record
    assert b"token" not in encode(record).replace(b"token_hashes", b"")
    old = encode(JobRecord(SPEC, 5)).replace(b',"token_hashes":[]', b"")
    assert job_from_bytes(old) == JobRecord(SPEC, 5)


def test_a_job_without_a_token_admits_all() -> None:
    assert admits((), ()) and admits((), (EVIL,))
    assert admits((NEW, OLD), (EVIL, OLD)) and not admits((NEW,), (OLD,)) and not admits((NEW,), ())
