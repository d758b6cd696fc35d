"""Clients, jobs and streams belong to the process that opened them, and to whoever still holds them."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.client.connect import Job
from headrace.client.join import Joining
from headrace.client.link import Identity
from headrace.client.options import StreamOptions
from headrace.core import errors
from headrace.core.job import JobSpec

SPEC = JobSpec("train", "/data", 4, samples=100)


def client() -> headrace.Client:
    return headrace.connect("127.0.0.1:1")


def job() -> Job:
    return Job(SPEC, lambda: pytest.fail("it joins"), None)


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(("make", "what"), [(client, "client"), (job, "job"), (lambda: job().stream(), "stream")])
def test_sending_one_away_says_what_to_do_instead(make: Callable[[], Any], what: str, send: Callable[[Any], Any]) -> None:
    if isinstance(made := make(), headrace.Client):
        made.close()
    with pytest.raises(TypeError, match=rf"a {what} can neither be copied nor sent .* headrace\.connect"):
        send(made)


class Holder:
    """Stands for a stream that nobody can use any more, but which the garbage collector has not seen."""

    def __init__(self) -> None:
        self.cycle = self


def test_a_claimed_rank_is_asked_for_again_without_what_only_garbage_holds() -> None:
    gone: list[str] = []

    class Coordinator:
        calls = 0

        def call(self, method: str, request: Any, deadline_s: float = 1.0) -> Any:
            self.calls += 1
            if self.calls < 4:
                raise errors.RankClaimed("another client holds rank 0")
            raise errors.WorldMismatch("enough")

    collections: list[int] = []
    gc.collect()
    weakref.finalize(Holder(), gone.append, "abandoned")

    def count(phase: str, info: dict[str, int]) -> None:
        collections.append(info["generation"])

    gc.disable()
    gc.callbacks.append(count)
    try:
        joining = Joining(Coordinator(), SPEC, StreamOptions(), Identity(0, "nonce", "node"))  # type: ignore[arg-type]
        with pytest.raises(errors.WorldMismatch):
            joining.join(None)
    finally:
        gc.callbacks.remove(count)
        gc.enable()
    assert gone == ["abandoned"]
    assert collections == [2, 2]  # one collection, told at its start and its end
