"""The way in: `headrace.connect(...)` -> `client.job(...)` -> `job.stream(...)`.

gRPC is imported when a connection is made, so that `import headrace` alone, for a pipeline spec, stays cheap.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from headrace.client import arguments
from headrace.client.gpu import GpuChoice, check_device
from headrace.client.link import Identity, Link
from headrace.client.options import StreamOptions
from headrace.client.origin import StaysHere
from headrace.client.progress import Progress
from headrace.client.stream import Stream
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import ConfigInvalid
from headrace.core.job import MAX_WORLD, JobSpec, Shuffle, StreamState, Tail
from headrace.core.pipeline_spec import PipelineSpec, shown
from headrace.telemetry.descriptors import need_descriptors
from headrace.telemetry.node import node_id

if TYPE_CHECKING:
    from headrace.client.rpc import CoordinatorRpc
    from headrace.wire.calls import Calls
    from headrace.wire.device_memory import Device

OPEN_DEADLINE_S = 30.0
# Open files: gRPC's own; and of a stream, with its watch, sockets of some workers, and a fetcher. Trainers have thousands.
_CLIENT_NEEDS = 24
_STREAM_NEEDS = 16


def connect(
    addresses: str | Sequence[str],
    *,
    deadline_s: float = OPEN_DEADLINE_S,
    token: str = "",
    token_file: str | os.PathLike[str] = "",
    tls_ca: str | os.PathLike[str] = "",
    tls_cert: str | os.PathLike[str] = "",
    tls_key: str | os.PathLike[str] = "",
    tls_worker_name: str = "",
    allow_plaintext_tokens: bool | None = None,
) -> Client:
    """A client of the coordinator replicas at `addresses`: "host:port", or several with commas between or in a list.

    No call is made yet. deadline_s: longest time to go on trying to open a job while no coordinator answers. Warnings go to
    standard error, more with HEADRACE_LOG_LEVEL=info, unless the process configures structlog. The others are TLS and token,
    see client.security.SecurityOptions; each is also a variable, as HEADRACE_TOKEN_FILE. Raises ConfigInvalid for an argument
    that is not what it must be, a malformed address, files that cannot be used, or a token that would go to another machine
    without TLS; OutOfDescriptors.
    """
    text, deadline_s = arguments.addresses(addresses), arguments.deadline("deadline_s", deadline_s, zero=True)
    token = arguments.unless_none(arguments.text, "token", token)
    tls_worker_name = arguments.unless_none(arguments.text, "tls_worker_name", tls_worker_name)
    arguments.choice("allow_plaintext_tokens", allow_plaintext_tokens, Literal[True, False, None])
    need_descriptors(_CLIENT_NEEDS, "headrace.connect")
    from headrace.client.logs import keep_out_of_the_way
    from headrace.client.rpc import CoordinatorRpc, addresses_of
    from headrace.client.security import SecurityOptions

    keep_out_of_the_way()
    security = SecurityOptions(
        token,
        arguments.unless_none(arguments.path, "token_file", token_file),
        arguments.unless_none(arguments.path, "tls_ca", tls_ca),
        arguments.unless_none(arguments.path, "tls_cert", tls_cert),
        arguments.unless_none(arguments.path, "tls_key", tls_key),
        tls_worker_name,
        allow_plaintext_tokens,
    )
    coordinators, workers = security.calls(addresses_of(text))
    return Client(CoordinatorRpc(text, coordinators), deadline_s, workers)


class Client(StaysHere):
    """Opens jobs. A context manager; streams that it opened have connections of their own and outlive it."""

    def __init__(self, rpc: CoordinatorRpc, deadline_s: float, workers: Calls | None = None) -> None:
        self._rpc = rpc
        self._workers = workers
        self._deadline_s = deadline_s

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; idempotent."""
        self._rpc.close()

    def job(
        self,
        name: str,
        *,
        dataset: str | os.PathLike[str],
        batch_size: int,
        pipeline: PipelineSpec | None = None,
        seed: int = 0,
        shuffle: Shuffle | bool | None = None,
        tail: Tail = "drop",
        fingerprint: str = "",
        max_bad_share: float = 0.05,
        world: int = 1,
        keep_s: int = 0,
    ) -> Job:
        """Open a job, or join it if it is open with the same parameters. Every rank calls this.

        dataset: what `headrace index` has indexed, as the fleet reaches it: a directory or an address (a relative path is taken
        from this process's working directory). shuffle: False keeps the order of the manifest; True and None are Shuffle().
        fingerprint: engine that must serve it; empty takes the first
        worker's, `any` allows several. max_bad_share: a session stops, with TooManyBadSamples, when more of its samples were
        bad; 1 never stops it. world: to refuse now what would give no rank a step. keep_s: seconds after its last use in
        which the fleet forgets it, for a job that is no training; 0 keeps it for months. Raises ConfigInvalid, SpecInvalid,
        JobMismatch, ManifestMissing, ManifestInvalid, NoSteps, EngineUnsupported, CoordinatorUnavailable.
        """
        spec = JobSpec(
            name=name,
            dataset=_absolute(dataset),
            batch_size=arguments.own_integer(batch_size),
            pipeline=PipelineSpec() if pipeline is None else pipeline,
            seed=arguments.own_integer(seed),
            shuffle=arguments.shuffle(shuffle),
            tail=tail,
            fingerprint=fingerprint,
            max_bad_share=max_bad_share,
        )
        return self.open(spec, world=world, keep_s=keep_s)

    def open(self, spec: JobSpec, *, world: int = 1, keep_s: int = 0) -> Job:
        """As `job`, from a spec."""
        if not isinstance(spec, JobSpec):
            raise ConfigInvalid(f"spec must be a JobSpec, not {shown(spec)}", field="spec")
        world = arguments.whole("world", world, 1, MAX_WORLD)
        keep_s = arguments.whole("keep_s", keep_s, 0, 2**32 - 1)
        from headrace.client.join import open_job

        return Job(open_job(self._rpc, spec, world, self._deadline_s, keep_s), self._rpc.another, self._workers)


def _absolute(dataset: str | os.PathLike[str]) -> str:
    """Coordinator and workers have working directories of their own, so that only an absolute path names the same data."""
    address = arguments.path("dataset", dataset)
    return address if not address or "://" in address else str(Path(address).expanduser().absolute())


class Job(StaysHere):
    """An open job. spec: as the coordinator recorded it, with the manifest's hash and sample count."""

    def __init__(self, spec: JobSpec, connect: Callable[[], CoordinatorRpc], workers: Calls | None) -> None:
        self.spec = spec
        self._connect = connect
        self._workers = workers

    @property
    def plan_hash(self) -> str:
        """Names what decides the batches; stamped on each of them and on states."""
        return self.spec.plan_hash

    @property
    def samples(self) -> int:
        """Samples in the data set."""
        return self.spec.samples

    def stream(
        self,
        *,
        rank: int = 0,
        world: int = 1,
        epochs: int = 0,
        state: Mapping[str, Any] | None = None,
        attempt: int | None = None,
        transport: TransportChoice = "auto",
        device: int | Device | None = None,
        wait_deadline_s: float = 300.0,
        join_deadline_s: float = 60.0,
    ) -> Stream:
        """One rank's stream of batches. The session is joined at its first use and forms once all ranks have joined.

        epochs: absolute number of epochs after which it ends (2 ends before epoch 2, also after a resume); 0 is endless.
        state: of an earlier `state_dict()`, of any world size; None goes on from what all ranks of the last attempt
        committed, else from the start. attempt: number of this generation of trainers, higher supersedes lower; None
        takes HEADRACE_ATTEMPT if set, else lets the coordinator number them. transport: `auto` is cuda_ipc from workers on
        the GPU `device`, shm from others on this node and gRPC from other nodes; one that is named must be had from every
        worker. device: ordinal of the GPU on which batches are wanted; None is no GPU (for `cuda_ipc`: 0), unless an iterator
        says otherwise. Raises ConfigInvalid,
        WorldMismatch, StateInvalid; what joining raises, see Stream.join.
        """
        options = StreamOptions(
            rank=rank,
            world=world,
            epochs=epochs,
            attempt=attempt,
            transport=transport,
            wait_deadline_s=wait_deadline_s,
            join_deadline_s=join_deadline_s,
        )
        check_device(device)
        gpu = GpuChoice(device)
        stream = Stream(self.spec, options, _Connector(self.spec, options, self._connect, self._workers, gpu), gpu)
        if state is not None:
            stream.load_state_dict(state)
        return stream


class _Connector:
    """Joins the session when the stream first needs it; implements client.link.Connector."""

    def __init__(
        self,
        job: JobSpec,
        options: StreamOptions,
        connect: Callable[[], CoordinatorRpc],
        workers: Calls | None,
        gpu: GpuChoice,
    ) -> None:
        self._job = job
        self._options = options
        self._connect = connect
        self._workers = workers
        self._gpu = gpu

    def __call__(self, state: StreamState | None, progress: Progress) -> Link:
        need_descriptors(_STREAM_NEEDS, "a stream")
        from headrace.client.join import Joining
        from headrace.client.session_link import SessionLink
        from headrace.client.transports.intake import ThreadIntake

        options = self._options
        gpu = self._gpu.open(options.transport)  # before the others wait for this rank
        identity = Identity(options.rank, uuid.uuid4().hex, node_id())
        rpc = self._connect()
        joining = Joining(rpc, self._job, options, identity)
        try:
            session = joining.join(state)
            try:
                intake = ThreadIntake(
                    session,
                    identity.rank,
                    identity.nonce,
                    identity.node,
                    transport=options.transport,
                    start_index=0,
                    calls=self._workers,
                    gpu=gpu,
                )
            except BaseException:
                joining.give_back()
                raise
        except BaseException:
            rpc.close()
            raise
        link = SessionLink(rpc, session, identity, intake, progress)
        link.start()
        return link
