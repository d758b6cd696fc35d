"""What a job is, and the words that sessions and leases share.

Pure. These records travel as protobuf (`wire.convert`) and rest in the store as JSON (`to_dict`/`from_dict` beside the
session rules); here they are plain frozen data.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from headrace.core import limits
from headrace.core.errors import SpecInvalid
from headrace.core.pipeline_spec import PipelineSpec, shown

Tail = Literal["drop", "pad"]
ShuffleMode = Literal["full", "none"]
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

ANY_FINGERPRINT = "any"
MAX_ADDRESS_CHARS = limits.ADDRESS_CHARS
MAX_WORLD = limits.WORLD
# Attempts lie below this: what Redis' scripts and JSON can count exactly.
ATTEMPT_BOUND = limits.COUNT_BOUND


# What a coordinator fills in from the manifest, which has the same limits.
_MOST = {
    "samples": limits.SAMPLES,
    "max_key_bytes": limits.KEY_BYTES,
    "max_label_bytes": limits.LABEL_BYTES,
    "label_width": limits.MULTI_CLASSES,
}


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How samples are mixed.

    mode: `full` shuffles over the whole epoch; `none` keeps manifest order. run: neighbours that stay together and are
    one read. window: samples permuted among themselves within a lane. Both trade reads against mixing.
    """

    mode: ShuffleMode = "full"
    run: int = 16
    window: int = 4096

    def __post_init__(self) -> None:
        if self.mode not in get_args(ShuffleMode):
            raise SpecInvalid(f"shuffle.mode must be full or none, not {shown(self.mode)}", field="shuffle.mode")
        for name, value in (("run", self.run), ("window", self.window)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**24:
                raise SpecInvalid(f"shuffle.{name} must be a whole number from 1 to 2^24, not {shown(value)}", field=name)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything that decides a job's batches.

    dataset: address of the manifest. manifest_hash and samples: filled in by the coordinator from the manifest when the
    job is opened (empty and 0 until then; a caller that fills manifest_hash demands that very manifest).
    fingerprint: engine fingerprint that may serve the job; empty until the first worker is chosen, `any` to allow
    engines that differ. seed: any 64-bit whole number. max_bad_share: a session stops with TooManyBadSamples when more
    than this share of its samples (of at least 1000) was bad; 1 never stops it.
    """

    name: str
    dataset: str
    batch_size: int
    pipeline: PipelineSpec = field(default_factory=PipelineSpec)
    seed: int = 0
    shuffle: Shuffle = field(default_factory=Shuffle)
    tail: Tail = "drop"
    fingerprint: str = ""
    manifest_hash: str = ""
    samples: int = 0
    max_key_bytes: int = 0
    max_label_bytes: int = 0
    label_kind: str = "int"
    label_width: int = 1
    max_bad_share: float = 0.05

    def __post_init__(self) -> None:
        _check_types(self)
        if not NAME_PATTERN.fullmatch(self.name):
            raise SpecInvalid(
                f"job name {shown(self.name)} must be 1 to 100 of A-Z a-z 0-9 . _ -, a letter or digit first",
                field="name",
            )
        if not 0 < len(self.dataset) <= MAX_ADDRESS_CHARS:
            raise SpecInvalid(
                f"dataset must be the address of a manifest (made by `headrace index`), up to {MAX_ADDRESS_CHARS} letters, "
                f"not {shown(self.dataset)}",
                field="dataset",
            )
        if not 1 <= self.batch_size <= limits.BATCH_SIZE:
            raise SpecInvalid(
                f"batch_size must be from 1 to {limits.BATCH_SIZE}, not {shown(self.batch_size)}", field="batch_size"
            )
        if not isinstance(self.pipeline, PipelineSpec):
            raise SpecInvalid(f"pipeline must be a PipelineSpec(ops=(...)), not {self.pipeline!r}", field="pipeline")
        if self.tail not in get_args(Tail):
            raise SpecInvalid(f"tail must be drop or pad, not {shown(self.tail)}", field="tail")
        for name, most in _MOST.items():
            if not 0 <= getattr(self, name) <= most:
                raise SpecInvalid(f"{name} must be from 0 to {most}, not {shown(getattr(self, name))}", field=name)
        if not -(2**63) <= self.seed < 2**63:
            raise SpecInvalid("seed must fit 64 bits", field="seed")
        if not 0 <= self.max_bad_share <= 1:
            raise SpecInvalid(f"max_bad_share must be from 0 to 1, not {shown(self.max_bad_share)}", field="max_bad_share")
        for name in ("dataset", "fingerprint", "manifest_hash", "label_kind"):
            limits.text(getattr(self, name), name, error=SpecInvalid, limit=MAX_ADDRESS_CHARS, field=name)
        object.__setattr__(self, "max_bad_share", float(self.max_bad_share))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back equal."""
        return {**asdict(self), "pipeline": self.pipeline.to_dict()}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> JobSpec:
        """Read plain data. Raises SpecInvalid on unknown or malformed fields."""
        known = set(JobSpec.__dataclass_fields__)
        unknown = sorted(set(data) - known)
        if unknown:
            raise SpecInvalid(
                f"unknown job field {shown(unknown[0])}; known: {', '.join(sorted(known))}", field=unknown[0][:100]
            )
        values = dict(data)
        try:
            values["pipeline"] = PipelineSpec.from_dict(values.get("pipeline", {}))
            values["shuffle"] = Shuffle(**values.get("shuffle", {}))
            return JobSpec(**values)
        except TypeError as error:
            raise SpecInvalid(f"malformed job: {str(error)[:200]}") from error

    @property
    def plan_hash(self) -> str:
        """Hex BLAKE2b-128 over what decides a batch's samples and what is done to them (not the engine, not the address)."""
        return _plan_hash(self)

    def with_fingerprint(self, fingerprint: str) -> JobSpec:
        """The same job with its engine chosen."""
        return replace(self, fingerprint=fingerprint)


@lru_cache(maxsize=2048)
def _plan_hash(job: JobSpec) -> str:
    """Asked for with every heartbeat and every claim, and always the same."""
    order = [job.manifest_hash, job.samples, job.batch_size, job.seed, asdict(job.shuffle), job.tail]
    parts = [*order, job.pipeline.canonical_json()]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _check_types(job: JobSpec) -> None:
    """Refuse values of other types than declared: they come from JSON and from callers without a type checker."""
    kinds: dict[str, Any] = {
        "int": int, "float": int | float, "str": str, "Tail": str, "PipelineSpec": PipelineSpec, "Shuffle": Shuffle,
    }  # fmt: skip
    for each in fields(job):
        value, kind = getattr(job, each.name), kinds[str(each.type)]
        if not isinstance(value, kind) or isinstance(value, bool):
            wording = {int: "a whole number", str: "a text", int | float: "a number"}.get(kind) or f"a {kind.__name__}"
            raise SpecInvalid(f"{each.name} must be {wording}, not {shown(value)}", field=each.name)


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a job's ranks go on: epoch, first batch of that epoch's session, steps done since, in a world of that size."""

    epoch: int = 0
    first: int = 0
    step: int = 0
    world: int = 1

    @property
    def next_batch(self) -> int:
        """First batch of the epoch that no rank has taken."""
        return self.first + self.step * self.world


@dataclass(frozen=True, slots=True)
class Session:
    """One generation of a job's trainers, as all parties know it.

    epoch, first: where it begins. epochs: epochs after which production ends (absolute count: epochs=2 ends before
    epoch 2); 0 is endless. window: S, how many steps beyond a rank's next may be made. lanes: L. token_hashes: of the job's
    tokens (core.job_token), told to workers alone; none where the job has no token.
    """

    job: JobSpec
    attempt: int
    world: int
    epoch: int
    first: int
    epochs: int
    window: int
    lanes: int
    token_hashes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """(job name, attempt)."""
        return (self.job.name, self.attempt)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a worker is reached. grpc: host:port. socket: path of its Unix socket, or empty. node: equal on one kernel."""

    worker: str
    incarnation: str
    node: str
    grpc: str
    socket: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ranks hand over no batch of `index` or above. why: for the error that they raise instead."""

    index: int
    why: str


@dataclass(frozen=True, slots=True)
class LaneTable:
    """A versioned snapshot of who serves which lane of a session.

    owners[l] is a worker id, or empty while nobody holds lane l. tokens[l] is the newest token issued for it (0: none yet).
    stop: where the session ends for too many bad samples, if it does.
    """

    version: int
    window: int
    owners: tuple[str, ...]
    tokens: tuple[int, ...]
    endpoints: dict[str, Endpoint]
    stop: Stop | None = None
