"""What a trainer gives to connect, job and stream: what is none of what an argument takes is refused at once, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.client.connect import Client, Job
from headrace.core import errors
from headrace.core.job import JobSpec, Shuffle

SPEC = JobSpec("train", "/data", 4, samples=100)
REFUSED = (errors.ConfigInvalid, errors.SpecInvalid, errors.StateInvalid, errors.WorldMismatch)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[JobSpec]:
    """Specs that a coordinator was asked to open; it answers with the same."""
    asked: list[JobSpec] = []

    def answer(rpc: Any, spec: JobSpec, *_: Any) -> JobSpec:
        asked.append(spec)
        return spec

    monkeypatch.setattr("headrace.client.join.open_job", answer)
    return asked


@pytest.fixture
def client(opened: list[JobSpec]) -> Iterator[Client]:
    with headrace.connect("127.0.0.1:1") as made:
        yield made


def job_with(client: Client, **arguments: Any) -> Job:
    return client.job(**{"name": "train", "dataset": "/data", "batch_size": 4, **arguments})


def stream_with(client: Client, **arguments: Any) -> headrace.Stream:
    return Job(SPEC, lambda: pytest.fail("it joins"), None).stream(**arguments)


def connect_with(client: Client, **arguments: Any) -> Client:
    return headrace.connect(**{"addresses": "127.0.0.1:1", **arguments})


CALLS: dict[Callable[..., Any], Callable[..., Any]] = {
    headrace.connect: connect_with,
    Client.job: job_with,
    Job.stream: stream_with,
}
EVERY = [(call, name) for function, call in CALLS.items() for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(("call", "name"), EVERY, ids=lambda value: value if isinstance(value, str) else value.__name__)
@pytest.mark.parametrize("value", [object(), {"no": 1}, b"4", -1.5, [1]], ids=["object", "dict", "bytes", "number", "list"])
def test_no_argument_takes_just_anything(
    client: Client, opened: list[JobSpec], call: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises(REFUSED) as caught:
        call(client, **{name: value})
    assert name in str(caught.value)
    assert not opened


@pytest.mark.parametrize(
    ("call", "arguments", "takes"),
    [
        (connect_with, {"addresses": ["127.0.0.1:1", 2]}, "host:port"),
        (connect_with, {"addresses": None}, "host:port"),
        (connect_with, {"addresses": []}, "host:port"),
        (connect_with, {"deadline_s": "4"}, "finite number of seconds, 0 or more"),
        (connect_with, {"deadline_s": float("inf")}, "finite number of seconds"),
        (connect_with, {"deadline_s": float("nan")}, "finite number of seconds"),
        (connect_with, {"allow_plaintext_tokens": 1}, "one of True, False, None"),
        (job_with, {"world": -1}, "whole number from 1 to 65536"),
        (job_with, {"world": "2"}, "whole number from 1 to 65536"),
        (job_with, {"world": True}, "whole number"),
        (job_with, {"keep_s": -1}, "whole number from 0 to 4294967295"),
        (job_with, {"keep_s": 2**32}, "whole number from 0 to 4294967295"),
        (job_with, {"keep_s": 1.5}, "whole number"),
        (job_with, {"shuffle": 0}, r"True, False or a Shuffle\(...\)"),
        (job_with, {"shuffle": "none"}, r"True, False or a Shuffle\(...\)"),
        (job_with, {"dataset": None}, "text or a path"),
        (stream_with, {"world": "2"}, "whole number"),
        (stream_with, {"rank": None}, "whole number"),
        (stream_with, {"epochs": 2**80}, "whole number from 0"),
        (stream_with, {"join_deadline_s": "a"}, "finite number of seconds above 0"),
        (stream_with, {"wait_deadline_s": None}, "finite number of seconds above 0"),
        (stream_with, {"wait_deadline_s": 0}, "finite number of seconds above 0"),
        (stream_with, {"attempt": "x"}, "attempt must be a whole number"),
        (stream_with, {"attempt": -1}, "attempt must be a whole number from 0"),
        (stream_with, {"transport": ["shm"]}, "one of auto, cuda_ipc, shm, grpc"),
    ],
)
def test_an_error_says_what_the_argument_takes(
    client: Client, opened: list[JobSpec], call: Callable[..., Any], arguments: dict[str, Any], takes: str
) -> None:
    with pytest.raises(errors.ConfigInvalid, match=takes) as caught:
        call(client, **arguments)
    assert "HEADRACE_" not in str(caught.value)
    assert not opened


@pytest.mark.parametrize("pipeline", [{}, [], (), False, 0])
def test_nothing_is_taken_for_a_default_but_none(client: Client, opened: list[JobSpec], pipeline: Any) -> None:
    with pytest.raises(errors.SpecInvalid, match="pipeline must be a PipelineSpec"):
        job_with(client, pipeline=pipeline)
    assert not opened


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, Shuffle()),
        (True, Shuffle()),
        (False, Shuffle(mode="none")),
        (Shuffle(run=2), Shuffle(run=2)),
    ],
)
def test_shuffle_is_what_it_says(client: Client, opened: list[JobSpec], given: Any, meant: Shuffle) -> None:
    job_with(client, shuffle=given)
    assert opened[0].shuffle == meant


def test_addresses_may_be_a_list_and_files_paths(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-of-32-characters-or-more-0123456789")
    with headrace.connect(["127.0.0.1:1", "127.0.0.1:2"], token_file=token) as client:
        assert client._rpc.addresses == ("127.0.0.1:1", "127.0.0.1:2")


def test_a_token_that_is_no_text_is_not_shown() -> None:
    with pytest.raises(errors.ConfigInvalid, match="token must be a text") as caught:
        headrace.connect("127.0.0.1:1", token=b"secret-word")  # type: ignore[arg-type]
    assert "secret-word" not in str(caught.value)


def test_numbers_of_numpy_and_flags_that_were_not_given_are_taken(client: Client, opened: list[JobSpec]) -> None:
    """As argparse and os.environ.get give None, and arithmetic on arrays its own numbers."""
    nothing = dict.fromkeys(("token", "token_file", "tls_ca", "tls_cert", "tls_key", "tls_worker_name"))
    connect_with(client, deadline_s=np.float32(4), **nothing).close()
    job_with(client, batch_size=4, world=np.int64(2), keep_s=np.int32(60))
    stream_with(client, rank=0, world=1, attempt=np.int64(3), wait_deadline_s=np.float32(5), join_deadline_s=np.int16(7))
    for call, argument in ((job_with, {"world": np.float64(2)}), (job_with, {"world": True}), (stream_with, {"attempt": "3"})):
        with pytest.raises(REFUSED):
            call(client, **argument)


@pytest.mark.parametrize("number", [np.int64(8), np.uint8(8), np.array(8)])
def test_integers_of_other_libraries_are_recorded_as_pythons_own(client: Client, opened: list[JobSpec], number: Any) -> None:
    job_with(client, batch_size=number, seed=number)
    assert (opened[0].batch_size, opened[0].seed) == (8, 8)
    assert type(opened[0].batch_size) is type(opened[0].seed) is int
