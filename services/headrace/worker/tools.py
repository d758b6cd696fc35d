"""Engines and sources made ready for a job, shared by the job's sessions and freed when they were long unused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.core.job import JobSpec
from headrace.worker.engines.protocol import Engine, PreparedEngine
from headrace.worker.sources.protocol import Source

# Opens the manifest at an address that must have that hash.
OpenSource = Callable[[str, str], Awaitable[Source]]

# A job's trainers restart within this time without everything being opened anew.
LINGER_S = 60.0


@dataclass(frozen=True, slots=True)
class JobTools:
    """What makes a job's batches."""

    engine: PreparedEngine
    source: Source


ToolsKey = tuple[str, str]


def tools_key(job: JobSpec) -> ToolsKey:
    """What two jobs must have equal to share tools: the plan, and the address, since equal data sets may lie in two places."""
    return job.plan_hash, job.dataset


class Toolbox:
    """Prepared engines and open sources by plan and address. Event loop thread."""

    def __init__(self, engine: Engine, open_source: OpenSource, linger_s: float = LINGER_S) -> None:
        self._engine = engine
        self._open_source = open_source
        self._linger_s = linger_s
        self._tools: dict[ToolsKey, JobTools] = {}
        self._used_s: dict[ToolsKey, float] = {}
        self._opening: dict[ToolsKey, asyncio.Lock] = {}

    async def get(self, job: JobSpec) -> JobTools:
        """The job's tools, made on first use, once.

        Raises EngineUnsupported, ManifestMissing, ManifestInvalid, ShardMissing, SourceUnavailable, AccessDenied.
        """
        key = tools_key(job)
        async with self._opening.setdefault(key, asyncio.Lock()):
            self._used_s[key] = time.monotonic()
            if key not in self._tools:
                engine = self._engine.prepare(job.pipeline, job.seed)
                try:
                    source = await self._open_source(job.dataset, job.manifest_hash)
                except BaseException:
                    engine.close()
                    raise
                self._tools[key] = JobTools(engine, source)
            return self._tools[key]

    async def free_unused(self, in_use: set[ToolsKey]) -> None:
        """Free the tools of jobs that were long not in use. in_use: those of known sessions and of batches in flight."""
        now = time.monotonic()
        for key in in_use:
            self._used_s[key] = now
        for key in [key for key in self._tools if now - self._used_s[key] > self._linger_s]:
            await self._free(key)

    async def close(self) -> None:
        """Free everything; call when no batch is in flight."""
        for key in list(self._tools):
            await self._free(key)

    async def _free(self, key: ToolsKey) -> None:
        tools = self._tools.pop(key)
        self._used_s.pop(key, None)
        self._opening.pop(key, None)
        tools.engine.close()
        await tools.source.close()
