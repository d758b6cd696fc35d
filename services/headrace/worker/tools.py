"""Engines and sources made ready for a job, shared by the job's sessions and freed when the last one goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.core.job import JobSpec
from headrace.worker.engines.protocol import Engine, PreparedEngine
from headrace.worker.sources.protocol import Source

# Opens the manifest at an address that must have that hash.
OpenSource = Callable[[str, str], Awaitable[Source]]


@dataclass(frozen=True, slots=True)
class JobTools:
    """What makes a job's batches."""

    engine: PreparedEngine
    source: Source


class Toolbox:
    """Prepared engines and open sources by plan hash. Event loop thread."""

    def __init__(self, engine: Engine, open_source: OpenSource) -> None:
        self._engine = engine
        self._open_source = open_source
        self._tools: dict[str, JobTools] = {}

    async def get(self, job: JobSpec) -> JobTools:
        """The job's tools, made on first use.

        Raises EngineUnsupported, ManifestMissing, ManifestInvalid, ShardMissing, SourceUnavailable.
        """
        key = job.plan_hash
        if key not in self._tools:
            engine = self._engine.prepare(job.pipeline, job.seed)
            try:
                source = await self._open_source(job.dataset, job.manifest_hash)
            except BaseException:
                engine.close()
                raise
            self._tools[key] = JobTools(engine, source)
        return self._tools[key]

    async def keep_only(self, plan_hashes: set[str]) -> None:
        """Free the tools of all other jobs."""
        for key in [key for key in self._tools if key not in plan_hashes]:
            tools = self._tools.pop(key)
            tools.engine.close()
            await tools.source.close()
