"""Settings of the coordinator: flags and HEADRACE_COORDINATOR_* variables."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from headrace.core.events import Rules
from headrace.core.lease import BEATS_A_TTL
from headrace.telemetry.security_settings import SecuritySettings


def _admin_token() -> SecretStr:
    """One variable for the server and the commands that ask it."""
    return SecretStr(os.environ.get("HEADRACE_ADMIN_TOKEN", ""))


class CoordinatorSettings(SecuritySettings):
    """Gives workers the lanes of jobs and keeps the sessions of trainers. Holds no state: any number can share a store.

    Each flag is also a variable: --admin-address is HEADRACE_COORDINATOR_ADMIN_ADDRESS. A flag wins over it.
    """

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_COORDINATOR_",
        extra="forbid",
        cli_parse_args=False,
        cli_prog_name="headrace coordinator",
        cli_kebab_case=True,
        cli_implicit_flags=True,
    )

    grpc_address: str = Field("0.0.0.0:7300", description="host:port for trainers and workers; port 0 takes a free one.")
    admin_address: str = Field("0.0.0.0:7301", description="host:port of health, metrics and the admin API; empty: none.")
    store: str = Field(
        "redis://127.0.0.1:6379/0",
        description="redis://, rediss://, unix:// or sentinel://host:port,host:port/service; "
        "memory:// keeps all in this process, for trying things out.",
        repr=False,
    )
    store_prefix: str = Field(
        "headrace", pattern=r"^[A-Za-z0-9._-]+$", description="Begins every key, so that fleets can share a store."
    )
    store_password_file: str = Field("", description="File of the store's password, read again for each new connection.")
    store_tls_ca: str = Field("", description="PEM file of who signed the certificate of a rediss:// store.")
    admin_token_file: str = Field("", description="File of the token that the admin API asks for; health and metrics do not.")
    admin_token: SecretStr = Field(
        default_factory=_admin_token, description="The same as a variable, also HEADRACE_ADMIN_TOKEN; a file is better."
    )
    require_job_token: bool = Field(False, description="Refuse jobs that are opened without a token of their own.")
    # One request takes a millisecond; what takes seconds is down, and callers should hear so while they can still retry.
    store_deadline_s: float = Field(2.0, gt=0, le=60, description="How long one request to the store may take.")
    # What is written makes a tick at once; only silence waits for one, and that is counted in seconds.
    tick_s: float = Field(1.0, ge=0.05, le=10, description="How often each job in use is looked at.")
    # Two heartbeats may be lost: the third after the last one heard comes 0.6 s before its time is up. (One, while overloaded.)
    heartbeat_s: float = Field(0.8, ge=0.05, le=60, description="How often workers shall send heartbeats.")
    worker_ttl_s: float = Field(
        3.0, ge=0.2, le=600, description="A worker that was silent for so long is dead; its lanes move."
    )
    # A rank reports each second, or every other one while all is well: one report may be lost.
    rank_ttl_s: float = Field(
        5.0, ge=0.2, le=600, description="A rank that was silent for so long may be claimed by another client."
    )
    session_idle_s: float = Field(
        60.0, ge=0, le=86400, description="Lanes are released when all ranks of a session have been silent for so long."
    )
    # A worker says so only of batches that it has not begun, so this need not be above any batch's own time. Workers and
    # ranks tell what lasts a second or longer: less would promise what nobody can keep.
    lag_s: float = Field(
        5.0,
        ge=1,
        le=600,
        description="A lane goes to another worker when a rank has been waiting for so long for a batch that is not begun.",
    )
    job_keep_days: int = Field(
        90, ge=1, le=36500, description="A job that nobody used for so long is forgotten, and with it where it stopped."
    )
    scaling_interval_s: float = Field(
        30.0, ge=1, le=3600, description="How often the number of workers that the trainers need is worked out."
    )
    max_rank_bytes: int = Field(
        1 << 30, ge=1, description="Bound on the memory of ready batches a rank, which bounds the window."
    )
    data_roots: str = Field(
        "",
        description="Addresses below which manifests and shards must lie, with commas between; empty: anywhere, but a manifest "
        "in an object store or on a web server names shards on that same store alone.",
    )
    manifest_cache_s: float = Field(10.0, ge=0, le=3600, description="How long a manifest that was read is not read again.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="Log lines; auto: JSON unless standard error is a terminal."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe lines that are logged."
    )
    exit_with_parent: bool = Field(False, description="End when the process that started this one ends.")

    @field_validator("worker_ttl_s")
    @classmethod
    def _heartbeats_fit(cls, value: float, info: ValidationInfo) -> float:
        if value < BEATS_A_TTL * info.data.get("heartbeat_s", 0.0):
            raise ValueError(
                f"must be at least {BEATS_A_TTL} times heartbeat_s, or one lost heartbeat would cost a worker its lanes"
            )
        return value

    @property
    def rules(self) -> Rules:
        """As the rules want it."""
        return Rules(
            rank_ttl_us=int(self.rank_ttl_s * 1e6),
            worker_ttl_us=int(self.worker_ttl_s * 1e6),
            idle_us=int(self.session_idle_s * 1e6),
            lag_s=self.lag_s,
            max_rank_bytes=self.max_rank_bytes,
        )
