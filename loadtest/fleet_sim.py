"""Workers and ranks that only talk: real requests over real gRPC channels, no pixels. The other half of `fleet_load.py`.

    python loadtest/fleet_sim.py '{"kind": "workers", ...}'

One asyncio loop a process. It says `ready` once all its members are in, then obeys lines on its standard input: `measure`
begins a measured span, `report` ends it and prints its numbers, `silence N` (workers) lets every Nth worker fall silent, as a
killed one does, `watch NAMES` (ranks) tells how long it took until no lane table names one of these workers.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from headrace.core.job import Endpoint, JobSpec
from headrace.core.lease import heartbeat_patience_s
from headrace.core.pipeline_spec import PipelineSpec
from headrace.telemetry.parent import exit_with_parent
from headrace.wire import convert, status
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen import coordinator_service_pb2_grpc as rpc
from headrace.wire.messages import PROTOCOL

FINGERPRINT = "simulated 1"
REPORT_S = 2.0  # what a rank does while all is well (client/session_link.py)
BATCHES_A_S = 5.0
WATCH_S = 30.0  # a watch is opened anew after this long (client/session_link.py)
JOIN_PAUSE_S, JOIN_LONGEST_S = 0.05, 1.0  # between the polls of a claim, growing (client/rpc.py)
WATCH_PAUSE_S = 0.25
MOVED_S = 80.0  # how long the end of some workers is waited for
CALL_S = 5.0
_CHANNEL = (
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
)


@dataclass(slots=True)
class Tally:
    """What was called in the measured span. took_s: by call; failed: by call and code."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    begun_s: float = 0.0
    late_s: float = 0.0

    def clear(self) -> None:
        """Begin a span."""
        self.took_s, self.failed, self.begun_s, self.late_s = {}, Counter(), time.monotonic(), 0.0

    def told(self) -> dict[str, Any]:
        """As JSON: counts and percentiles in seconds."""
        return {
            "span_s": time.monotonic() - self.begun_s,
            "calls": {name: _percentiles(took_s) for name, took_s in self.took_s.items()},
            "failed": dict(self.failed),
            "latest_s": self.late_s,
        }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    at = {f"p{share}": ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] for share in (50, 90, 99)}
    return {"count": len(ordered), **at, "most": ordered[-1]}


class Member:
    """One worker or rank: makes calls, turns to the next replica when one fails."""

    def __init__(self, channels: list[grpc.aio.Channel], tally: Tally) -> None:
        self._stubs = [rpc.CoordinatorServiceStub(channel) for channel in channels]  # type: ignore[no-untyped-call]
        random.shuffle(self._stubs)
        self._tally = tally

    async def call(self, name: str, request: Any, deadline_s: float = CALL_S) -> Any:
        """The answer, or None if the call failed, which is counted."""
        begun_s = time.monotonic()
        try:
            answer = await getattr(self._stubs[0], name)(request, timeout=deadline_s)
        except grpc.aio.AioRpcError as error:
            self.failed(name, error)
            return None
        self._tally.took_s.setdefault(name, []).append(time.monotonic() - begun_s)
        return answer

    def failed(self, name: str, error: grpc.aio.AioRpcError) -> None:
        """Count a failure and turn to the next replica."""
        self._tally.failed[f"{name} {status.error_from_rpc(error).code}"] += 1
        self._stubs.append(self._stubs.pop(0))


class Worker(Member):
    """Sends heartbeats that state what the last answer told it to hold, as `worker.lease_loop` does."""

    def __init__(self, number: int, channels: list[grpc.aio.Channel], tally: Tally) -> None:
        super().__init__(channels, tally)
        self.number, self.silent, self.lanes = number, False, 0
        endpoint = Endpoint(name_of(number), f"i{number}", f"node-{number // 4}", f"10.0.0.1:{number}", f"/run/{number}.sock")
        self._request = pb.HeartbeatRequest(
            protocol=PROTOCOL,
            endpoint=convert.endpoint_to_proto(endpoint),
            fingerprint=FINGERPRINT,
            ops=PipelineSpec().op_names,
            samples_per_s=2000 * random.uniform(0.9, 1.1),
            threads=8,
        )
        self._interval_s, self._ttl_s = 1.0, 3.0
        self.seen = asyncio.Event()

    async def run(self, wait_s: float) -> None:
        """Send heartbeats until silenced; the first one after `wait_s`."""
        due_s = time.monotonic() + wait_s
        while True:
            await asyncio.sleep(due_s - time.monotonic())
            if self.silent:
                return
            self._tally.late_s = max(self._tally.late_s, time.monotonic() - due_s)
            patience_s = heartbeat_patience_s(self._ttl_s) if self.seen.is_set() else CALL_S
            answer = await self.call("Heartbeat", self._request, patience_s)
            if answer is not None:
                self._take(answer)
            due_s = max(due_s + self._interval_s, time.monotonic())

    def _take(self, answer: pb.HeartbeatResponse) -> None:
        self._interval_s, self._ttl_s = (told.seconds + told.nanos / 1e9 for told in (answer.interval, answer.ttl))
        del self._request.held[:]
        self._request.held.extend(answer.leases)
        self.lanes = sum(len(leases.lanes) for leases in answer.leases)
        self.seen.set()


class Rank(Member):
    """Joins, watches and reports as the client's two threads do."""

    def __init__(self, spec: JobSpec, rank: int, world: int, channels: list[grpc.aio.Channel], tally: Tally) -> None:
        super().__init__(channels, tally)
        self._id = pb.RankId(job=spec.name, rank=rank, nonce=f"n{rank}")
        self._spec, self._world, self._rank = spec, world, rank
        self.owners: frozenset[str] = frozenset()
        self.complete = asyncio.Event()  # its lane table has an owner for each lane
        self.changed = asyncio.Event()
        self.tables, self.table_bytes, self.told = 0, 0, f"{spec.name} rank {rank}: not opened"

    async def run(self, wait_s: float) -> None:
        """For ever: opened, joined, then reports and watches; begins after `wait_s`."""
        await asyncio.sleep(wait_s)
        pause_s = JOIN_PAUSE_S
        spec = convert.job_to_proto(self._spec)
        job = None
        while job is None:
            job = await self.call("OpenJob", pb.OpenJobRequest(protocol=PROTOCOL, job=spec, world=self._world))
        plan_hash = convert.job_from_proto(job.job).plan_hash
        request = pb.JoinSessionRequest(protocol=PROTOCOL, id=self._id, world=self._world, plan_hash=plan_hash, node="node-0")
        while True:
            answer = await self.call("JoinSession", request)
            if answer is not None and answer.HasField("session"):
                break
            request.id.attempt = answer.attempt if answer is not None else request.id.attempt
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, JOIN_LONGEST_S)
        self._id.attempt = answer.attempt
        self.told = f"{self._id.job} rank {self._rank}: no table of attempt {answer.attempt}"
        await asyncio.gather(self._report(answer.session), self._watch(answer.session))

    async def _report(self, session: pb.Session) -> None:
        begun_s = time.monotonic()
        await asyncio.sleep(random.uniform(0, REPORT_S))
        while True:
            elapsed_s = time.monotonic() - begun_s
            request = pb.ReportProgressRequest(
                id=self._id, session=session, consumed=int(elapsed_s * BATCHES_A_S), wait_s=elapsed_s / 100,
                wait_by_cause=[pb.WaitByCause(cause="read", seconds=elapsed_s / 100)], elapsed_s=elapsed_s, transport="grpc",
                node="node-0", samples=int(elapsed_s * BATCHES_A_S) * self._spec.batch_size,
            )  # fmt: skip
            await self.call("ReportProgress", request)
            await asyncio.sleep(max(0.0, begun_s + elapsed_s + REPORT_S - time.monotonic()))

    async def _watch(self, session: pb.Session) -> None:
        request = pb.WatchSessionRequest(id=self._id, session=session)
        deadline_s = random.uniform(1.0, WATCH_S)  # the first one, so that thousands don't come back at once
        while True:
            try:
                async for table in self._stubs[0].WatchSession(request, timeout=deadline_s):
                    self._take(table)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.failed("WatchSession", error)
                    await asyncio.sleep(WATCH_PAUSE_S)
            deadline_s = WATCH_S

    def _take(self, table: pb.WatchSessionResponse) -> None:
        self.owners = frozenset(endpoint.worker for endpoint in table.endpoints)
        self.tables += 1
        self.table_bytes = table.ByteSize()
        self.told = f"{self._id.job} rank {self._rank}: {sum(1 for owner in table.owners if not owner)} lanes without owner"
        if all(table.owners):
            self.complete.set()
        self.changed.set()

    async def without(self, gone: frozenset[str]) -> float:
        """When a table was there that names none of them, and every lane has an owner."""
        while self.owners & gone:
            self.changed.clear()
            await self.changed.wait()
        return time.monotonic()


def name_of(number: int) -> str:
    """A worker's id."""
    return f"worker-{number:05d}"


def _channels(addresses: list[str]) -> list[grpc.aio.Channel]:
    return [grpc.aio.insecure_channel(address, options=_CHANNEL) for address in addresses]


class Process:
    """See the module."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._tally = Tally()
        self._running: list[asyncio.Task[None]] = []
        self._workers: list[Worker] = []
        self._ranks: list[Rank] = []

    def _start(self) -> list[Awaitable[Any]]:
        """Begin all; returns what to wait for until all are in."""
        task, each = self._task, self._task["members_a_channel"]
        channels: list[grpc.aio.Channel] = []
        if task["kind"] == "workers":
            for place, number in enumerate(range(task["first"], task["first"] + task["count"])):
                if place % each == 0:
                    channels = _channels(task["addresses"])
                self._workers.append(Worker(number, channels, self._tally))
            waits = [random.uniform(0, task["spread_s"]) for _ in self._workers]
            runs = [worker.run(wait_s) for worker, wait_s in zip(self._workers, waits, strict=True)]
            ready = [worker.seen.wait() for worker in self._workers]
        else:
            spec = JobSpec("job", task["dataset"], task["batch_size"])
            for job in range(task["jobs"]):
                named = JobSpec.from_dict({**spec.to_dict(), "name": f"job-{job}", "seed": job})
                for rank in range(task["world"]):
                    if len(self._ranks) % each == 0:
                        channels = _channels(task["addresses"])
                    self._ranks.append(Rank(named, rank, task["world"], channels, self._tally))
            # The ranks of a job start together, jobs one after another.
            each_s, within_s = task["jobs_spread_s"] / task["jobs"], task["ranks_spread_s"]
            waits = [place // task["world"] * each_s + random.uniform(0, within_s) for place in range(len(self._ranks))]
            runs = [rank.run(wait_s) for rank, wait_s in zip(self._ranks, waits, strict=True)]
            ready = [rank.complete.wait() for rank in self._ranks]
        self._running = [asyncio.create_task(run) for run in runs]
        return ready

    async def run(self, say: Callable[[Any], None]) -> None:
        """Start all, then obey."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._tally.clear()
        begun_s = time.monotonic()
        try:
            await asyncio.wait_for(asyncio.gather(*self._start()), self._task["deadline_s"])
        except TimeoutError:
            late = [rank.told for rank in self._ranks if not rank.complete.is_set()]
            late += [name_of(worker.number) for worker in self._workers if not worker.seen.is_set()]
            failed = dict(self._tally.failed)
            sys.exit(f"after {self._task['deadline_s']} s {len(late)} are not in, such as {late[:3]}; failed calls: {failed}")
        say({"ready_s": time.monotonic() - begun_s, **self._tally.told()})
        while line := (await reader.readline()).decode().split():
            match line:
                case ["measure"]:
                    self._tally.clear()
                    say({})
                case ["report"]:
                    lanes = sorted((worker.lanes for worker in self._workers), reverse=True)
                    tables = {"tables": sum(rank.tables for rank in self._ranks)}
                    size = max((rank.table_bytes for rank in self._ranks), default=0)
                    say({**self._tally.told(), **tables, "table_bytes": size, "lanes": lanes[:1] + lanes[-1:],
                         "holding": sum(1 for count in lanes if count)})  # fmt: skip
                case ["silence", each]:
                    gone = [worker for worker in self._workers if worker.number % int(each) == 0]
                    for worker in gone:
                        worker.silent = True
                    say({"gone": [name_of(worker.number) for worker in gone], "at_s": time.monotonic()})
                case ["watch", since_s, *names]:
                    found = asyncio.gather(*(rank.without(frozenset(names)) for rank in self._ranks))
                    try:
                        times_s = [at_s - float(since_s) for at_s in await asyncio.wait_for(found, MOVED_S)]
                        say({"moved": _percentiles([max(0.0, took_s) for took_s in times_s])})
                    except TimeoutError:
                        say({"moved": None})


def main() -> None:
    """Run one process of the load."""
    exit_with_parent()
    asyncio.run(Process(json.loads(sys.argv[1])).run(lambda told: print(json.dumps(told), flush=True)))


if __name__ == "__main__":
    main()
