"""Settings of the worker: flags and HEADRACE_WORKER_* variables."""

from __future__ import annotations

import os
import socket
import uuid
from functools import cached_property
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from headrace.core import defaults
from headrace.telemetry.security_settings import SecuritySettings


class WorkerSettings(SecuritySettings):
    """Reads shards, decodes and augments, and hands batches to trainers.

    Each flag is also a variable: --metrics-address is HEADRACE_WORKER_METRICS_ADDRESS. A flag wins over it.
    """

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_WORKER_",
        extra="forbid",
        cli_parse_args=False,
        cli_prog_name="headrace worker",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_parse_none_str="-",  # the default is `null`, which names an engine here
    )

    coordinator: str = Field(
        "127.0.0.1:7300", description="Coordinators as host:port, several separated by commas; any replica serves."
    )
    name: str = Field(
        "",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$",
        description="Id of this worker in logs, metrics and lane tables, unique in the fleet; empty: made from the host name.",
    )
    pool: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="What it is scaled together with, such as its Deployment: headrace_desired_workers is told for each pool.",
    )
    retiring: bool = Field(
        False,
        description="Serve the jobs that need this engine until they end; new jobs are bound to another engine where there is "
        "one. For the old pool of an upgrade that changes the engine's fingerprint.",
    )
    grpc_address: str = Field(
        "0.0.0.0:7310", description="host:port on which batches are served to other nodes; port 0 takes a free one."
    )
    advertise: str = Field(
        "", description="host:port under which trainers reach it; empty: this host's name and the bound port."
    )
    socket_dir: str = Field(
        defaults.SOCKET_DIR, description="Directory of the Unix socket for trainers on this node; empty: no shared memory."
    )
    socket_group: str = Field(
        "",
        pattern=r"^[0-9]{0,10}$",
        description="Numeric id of a group whose members may connect, too: trainers that run as another user. They "
        "name the worker's user in HEADRACE_SOCKET_OWNERS. Empty: the worker's own user alone.",
    )
    metrics_address: str = Field("0.0.0.0:7311", description="host:port of /metrics; empty: none.")
    # Not `auto` by itself: workers on unlike machines would choose unlike engines, and a job is served by one alone.
    engine: Literal["auto", "cpu", "cpu-libs", "dali", "dali-gpu", "cvcuda", "nvimgcodec", "null"] = Field(
        defaults.ENGINE,
        description="What decodes and augments. `auto` looks at what this machine has, and logs what it chose and why; workers "
        "that are to serve one job must all choose the same. `cpu-libs` is `cpu` without its native core, for fleets where not "
        "all have it; `dali` is DALI on the CPU, `dali-gpu` on the first GPU; `cvcuda` is nvImageCodec and CV-CUDA on it, "
        "`nvimgcodec` its decoder on the CPU (docs/engines.md); `null` leaves pixels as they are: for measuring overhead.",
    )
    gpu: int = Field(
        -1,
        ge=-1,
        le=1023,
        description="Ordinal of the GPU on which trainers of this node get their batches (cuda_ipc). -1: the first for engines "
        "that work on a GPU, none for others, which copy their batches to the one that is named here.",
    )
    threads: int = Field(0, ge=0, le=1024, description="Threads that decode; 0: one for each core this process may use.")
    batches_in_flight: int = Field(
        defaults.BATCHES_IN_FLIGHT,
        ge=1,
        le=64,
        description="Batches being read or decoded at a time; one decodes on all threads, the others are read ahead. An engine "
        "that has several at once gets as many more.",
    )
    read_ahead_bytes: int = Field(
        defaults.READ_AHEAD_BYTES, ge=1, description="Bound on the encoded bytes of a job that are read and not yet decoded."
    )
    # Far above any read: the source's own retries give up after some ten seconds; this ends a mount that hangs.
    read_deadline_s: float = Field(120.0, gt=0, description="How long the reads of one batch may take before the job fails.")
    drain_deadline_s: float = Field(
        30.0,
        gt=0,
        description="After SIGTERM, how long batches in flight may take where no coordinator takes the lanes back; one that "
        "does is told after a second, and the worker leaves then: others make what is not done.",
    )
    data_roots: str = Field(
        "",
        description="Addresses below which manifests and shards must lie, with commas between; empty: anywhere, but a manifest "
        "in an object store or on a web server names shards on that same store alone.",
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="Log lines; auto: JSON unless standard error is a terminal."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe lines that are logged."
    )
    exit_with_parent: bool = Field(False, description="End when the process that started this one ends.")

    @cached_property
    def worker_id(self) -> str:
        """The name, or one made up once."""
        return self.name or f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}"

    @property
    def cores(self) -> int:
        """Threads that decode, resolved."""
        return self.threads or len(os.sched_getaffinity(0))
