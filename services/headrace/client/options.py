"""What a stream is opened with, and the state that it can be resumed from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.client import arguments
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import ConfigInvalid, StateInvalid, WorldMismatch
from headrace.core.job import ATTEMPT_BOUND, MAX_WORLD, JobSpec, StreamState

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """One rank's part in a session.

    epochs: absolute number of epochs after which production ends; 0 is endless. attempt: None lets the coordinator number
    the attempts, unless HEADRACE_ATTEMPT is set. wait_deadline_s: longest wait of one next(). join_deadline_s: longest
    wait for all ranks.
    """

    rank: int = 0
    world: int = 1
    epochs: int = 0
    attempt: int | None = None
    transport: TransportChoice = "auto"
    wait_deadline_s: float = 300.0
    join_deadline_s: float = 60.0

    def __post_init__(self) -> None:
        for name, most in (("rank", MAX_WORLD), ("world", 2**31), ("epochs", ATTEMPT_BOUND - 1)):
            arguments.whole(name, getattr(self, name), 0, most)
        if not 1 <= self.world <= MAX_WORLD or self.rank >= self.world:
            raise WorldMismatch(
                f"rank {self.rank} does not lie in a world of {self.world} (1 to {MAX_WORLD}, ranks from 0)",
                rank=self.rank,
                world=self.world,
            )
        if self.attempt is not None:
            arguments.whole("attempt", self.attempt, 0, ATTEMPT_BOUND - 1)
        arguments.choice("transport", self.transport, TransportChoice)
        for name in ("wait_deadline_s", "join_deadline_s"):
            arguments.deadline(name, getattr(self, name))

    @property
    def fixed_attempt(self) -> int:
        """The attempt to claim; 0 lets the coordinator choose. Raises ConfigInvalid.

        torchrun's TORCHELASTIC_RESTART_COUNT is not used: it begins again with every torchrun, so a second run of a job
        would present an attempt that is long over.
        """
        if self.attempt is not None:
            return int(self.attempt)
        value = os.environ.get("HEADRACE_ATTEMPT", "").strip() or "0"
        if not value.isdecimal() or int(value) >= ATTEMPT_BOUND:
            raise ConfigInvalid(f"HEADRACE_ATTEMPT must be a whole number from 0 to 2^53-1, not {value!r}", field="attempt")
        return int(value)


def state_to_dict(job: JobSpec, state: StreamState) -> dict[str, Any]:
    """A state as plain data that JSON can hold."""
    return {"version": STATE_VERSION, "job": job.name, "plan_hash": job.plan_hash, **asdict(state)}


def state_from_dict(job: JobSpec, data: Mapping[str, Any]) -> StreamState:
    """Read a state for a job. Raises StateInvalid if it is malformed, or of another plan in mid-epoch.

    At an epoch's beginning a state of another plan is accepted (another batch size, another data set): no sample of the
    epoch was taken. The job's name may differ: the plan hash decides which samples a batch holds.
    """
    fields = ("epoch", "first", "step", "world")
    if not isinstance(data, Mapping) or set(data) != {"version", "job", "plan_hash", *fields}:
        raise StateInvalid("this is not what Stream.state_dict() returned: its fields differ", job=job.name)
    if data["version"] != STATE_VERSION:
        raise StateInvalid(
            f"the state has version {data['version']!r}, this client reads {STATE_VERSION}: use the version that wrote it",
            job=job.name,
        )
    numbers = {name: data[name] for name in fields}
    if not all(type(value) is int and 0 <= value < 2**63 for value in numbers.values()) or numbers["world"] < 1:
        raise StateInvalid(f"the state's numbers are out of range: {numbers}", job=job.name)
    state = StreamState(**numbers)
    if data["plan_hash"] != job.plan_hash and state.next_batch != 0:
        raise StateInvalid(
            f"the state is of job {data['job']!r} with another plan (data set, batch size, seed, shuffle, tail or pipeline "
            f"differ) and stands inside epoch {state.epoch}: open the job as it was, or resume from an epoch's beginning",
            job=job.name,
            plan_hash=job.plan_hash,
        )
    return state
