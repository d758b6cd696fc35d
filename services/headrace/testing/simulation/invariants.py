"""What must hold at every moment of a run. Each check is made where it could first fail: at each write to the store, each
message that a rank takes, each batch that it is handed, each commit; bounds of memory also a few times a simulated second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.client.batch import Batch
from headrace.coordinator.fleet_ledger import WORKERS
from headrace.coordinator.store import Key, Stored, Table
from headrace.core import records
from headrace.core.arrivals import Arrival, Verdict
from headrace.core.batch import SUBSTITUTED
from headrace.core.job import Session
from headrace.core.records import LaneRecord, RankRecord, SessionRecord
from headrace.core.session_plan import resume_point
from headrace.testing.simulation.oracle import Oracle, Place
from headrace.testing.simulation.store import SimulatedStore, Writes
from headrace.testing.simulation.trace import Trace
from headrace.testing.simulation.trainer import Rank
from headrace.testing.simulation.worker import BAD_SAMPLE, WorkerProcess, has_bad, pixel_of

# Messages of one connection that may wait, beside those of its window.
SLACK = 8
# In peace, from the end of a worker's heartbeats to the next pass and its write.
MOVED_S = 2.5


@dataclass
class Life:
    """What the monitor knows of one rank's session. start: where it must begin. newest: tokens by lane that it was told."""

    job: str
    rank: int
    number: int
    world: int
    attempt: int
    oracle: Oracle
    start: Place
    steps: list[Place]
    newest: dict[int, int] = field(default_factory=dict)
    handed: int = 0
    finished: bool = False


class Monitor:
    """See the module. All checks count in trace.checks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._issued: dict[tuple[str, int, int], tuple[str, str]] = {}
        self._made_by: dict[tuple[str, int, int], int] = {}
        self._holders: dict[tuple[str, int, int, int], Rank] = {}
        self._unheard: set[str] = set()
        self._movable_since_us: dict[str, int] = {}
        self.most_workers = 0
        self.lanes: dict[str, int] = {}
        self.oracles: dict[str, Oracle] = {}
        self.most_world: dict[str, int] = {}

    def _check(self, name: str, holds: bool, text: Callable[[], str]) -> None:
        self._trace.checks[name] += 1
        if not holds:
            self._trace.broken(name, text())

    # --- the store ------------------------------------------------------------------------------------------------------

    def write(self, store: SimulatedStore, writes: Writes) -> None:
        """Records are about to be written."""
        for key, data in writes.items():
            group, kind = key.table
            if not group.startswith("job:") or data is None:
                continue
            job = group.removeprefix("job:")
            old = store._tables.get(key.table, {}).get(key.field)
            if kind == "lanes":
                self._lane(job, int(key.field), old, records.lane_from_bytes(data))
            elif kind == "ranks":
                self._rank(store, job, key, old, records.rank_from_bytes(data))
            elif kind == "main" and key.field == "session":
                self._session(store, job, old, records.session_from_bytes(data))

    def _lane(self, job: str, number: int, stored: Stored | None, new: LaneRecord) -> None:
        old = records.lane_from_bytes(stored.data) if stored else LaneRecord()
        where = f"lane {number} of {job}"
        self._check("token_never_goes_back", new.token >= old.token, lambda: f"{where}: {old} -> {new}")
        if not new.owner:
            return
        holder = new.owner, new.incarnation
        first = self._issued.setdefault((job, number, new.token), holder)
        self._check(
            "token_issued_once", first == holder, lambda: f"{where}: token {new.token} was {first}'s and is given to {holder}"
        )

    def _rank(self, store: SimulatedStore, job: str, key: Key, stored: Stored | None, new: RankRecord) -> None:
        self._check("committed_within_consumed", 0 <= new.committed <= new.consumed, lambda: f"{job}: {new}")
        old = records.rank_from_bytes(stored.data) if stored else None
        if old is None:
            return
        where = f"rank {key.field} of {job}"
        self._check("attempt_never_goes_back", new.attempt >= old.attempt, lambda: f"{where}: {old} -> {new}")
        if new.attempt != old.attempt:
            return
        main = store._tables.get(key.table._replace(kind="main"), {}).get("session")
        formed = (
            main is not None and (session := records.session_from_bytes(main.data)).formed and session.attempt == old.attempt
        )
        if formed:
            self._check("rank_stays_with_its_client", new.nonce == old.nonce, lambda: f"{where}: {old} -> {new}")
        if new.nonce == old.nonce:
            self._check(
                "committed_never_goes_back",
                new.committed >= old.committed and new.consumed >= old.consumed,
                lambda: (
                    f"{where} attempt {new.attempt}: committed {old.committed} of {old.consumed} -> "
                    f"{new.committed} of {new.consumed}"
                ),
            )

    def _session(self, store: SimulatedStore, job: str, stored: Stored | None, new: SessionRecord) -> None:
        old = records.session_from_bytes(stored.data) if stored else None
        if old is None:
            return
        self._check("attempt_never_goes_back", new.attempt >= old.attempt, lambda: f"{job}: {old} -> {new}")
        if new.attempt == old.attempt and old.formed:
            same = (new.formed, new.world, new.epoch, new.first, new.epochs) == (
                True,
                old.world,
                old.epoch,
                old.first,
                old.epochs,
            )
            self._check("session_stays_as_formed", same and new.window >= old.window, lambda: f"{job}: {old} -> {new}")

        healed = store.forgot and new.formed  # told again by a peer, which knows where it began and nothing else
        if new.attempt > old.attempt and old.formed and not healed:
            self._falls_back(store, job, old, new)

    def _falls_back(self, store: SimulatedStore, job: str, old: SessionRecord, new: SessionRecord) -> None:
        """An attempt goes on from what all ranks of the one before have committed at the moment at which it begins."""
        found = store._tables.get(Table(f"job:{job}", "ranks"), {})
        ranks = [records.rank_from_bytes(found[str(rank)].data) if str(rank) in found else None for rank in range(old.world)]
        least = min(rank.committed if rank is not None and rank.attempt == old.attempt else 0 for rank in ranks)
        oracle = self.oracles[job]
        wanted = oracle.after(Place(old.epoch, old.first), old.world, least)
        begins = Place(*resume_point(oracle.spec, new.fallback))
        where = f"{job}: {old} -> {new}"
        self._check("begins_after_the_commit", begins == wanted, lambda: f"{where}, {ranks}: {begins}, not {wanted}")

    def dead_owners(self, store: SimulatedStore, jobs: Iterable[str], quiet_s: float) -> None:
        """In peace no lane stays with a worker that died. quiet_s: so long has a replica known that silence is death."""
        most_us, now_us = (MOVED_S + 10 * store.wait_s) * 1e6, store.now_us()
        workers = {name: records.worker_from_bytes(each.data) for name, each in store._tables.get(WORKERS, {}).items()}
        over = [name for name, worker in workers.items() if worker.alive_until_us + most_us < now_us]
        takers = any(worker.alive(now_us) and not worker.draining and not worker.unable for worker in workers.values())
        for job in jobs:
            main = store._tables.get(Table(f"job:{job}", "main"), {}).get("session")
            formed = main is not None and records.session_from_bytes(main.data).formed
            if not takers or not formed:
                self._movable_since_us[job] = now_us  # a lane that nobody can take, or that no rank awaits yet, keeps its owner
            elif over and quiet_s * 1e6 > most_us and now_us - self._movable_since_us.setdefault(job, now_us) > most_us:
                lanes = store._tables.get(Table(f"job:{job}", "lanes"), {}).values()
                self._no_lane_of(over, job, [records.lane_from_bytes(each.data) for each in lanes])

    def _no_lane_of(self, over: list[str], job: str, lanes: list[LaneRecord]) -> None:
        held = [lane for lane in lanes if lane.owner in over]
        self._check("lanes_leave_the_dead", not held, lambda: f"{job}: {held}, though {over} died")

    # --- ranks ----------------------------------------------------------------------------------------------------------

    def tokens_told(self, life: Life, tokens: Iterable[int]) -> None:
        """A lane table reached a rank."""
        for lane, token in enumerate(tokens):
            life.newest[lane] = max(life.newest.get(lane, 0), token)

    def taken(self, life: Life, lane: int | None, arrival: Arrival, verdict: Verdict, maker: int) -> None:
        """A rank judged a READY. maker: number of the process that sent it."""
        if verdict is not Verdict.ACCEPTED or lane is None:
            return
        newest = life.newest.get(lane, 0)
        who = f"rank {life.rank} of {life.job}, lane {lane}, index {arrival.index} by {arrival.worker}"
        self._check(
            "one_accepted_owner", arrival.token >= newest, lambda: f"{who}: token {arrival.token} was taken after {newest}"
        )
        first = self._made_by.setdefault((life.job, lane, arrival.token), maker)
        self._check(
            "one_owner_per_token", first == maker, lambda: f"{who}: token {arrival.token} by processes {first} and {maker}"
        )

    def first_copy(self, life: Life, before: object, arrival: Arrival, verdict: Verdict) -> None:
        """Another copy of a batch that is here is not taken: the trainer may have the first one in hand."""
        second = isinstance(before, Arrival) and verdict is Verdict.ACCEPTED
        self._check("first_copy_stays", not second, lambda: f"rank {life.rank} of {life.job}: {before}, then {arrival}")

    def believes(self, worker: str, key: tuple[str, int], held: Mapping[int, int], told: Mapping[int, int]) -> None:
        """After a heartbeat's answer a worker holds no lease but what it says. held, told: tokens by lane."""
        self._check("no_lease_outlives_its_end", held.items() <= told.items(), lambda: f"{worker}, {key}: {held}, told {told}")

    def handed(self, life: Life, rank: Rank, batch: Batch, store: SimulatedStore) -> None:
        """A batch was handed to the trainer."""
        who = f"rank {life.rank} of {life.job} attempt {life.attempt}"
        self._check(
            "in_order_none_twice",
            batch.index == life.handed,
            lambda: f"{who}: index {batch.index} came after {life.handed - 1}",
        )
        seat = (life.job, life.attempt, life.rank, store.forgot)
        holder = self._holders.setdefault(seat, rank)
        if holder is not rank and store.emptied and (holder.host.paused or not holder.host.alive):
            # Nobody was left to tell the empty store of that session: another one begins with the same number.
            self._unheard.add(holder.nonce)
            holder = self._holders[seat] = rank
        self._check(
            "one_client_per_rank",
            holder is rank or rank.nonce in self._unheard,
            lambda: f"{who}: {holder.nonce} and {rank.nonce} are handed batches",
        )
        inside = life.handed < len(life.steps)
        self._check("within_the_session", inside, lambda: f"{who}: index {life.handed} of {len(life.steps)} steps")
        step = life.steps[life.handed]
        place = Place(step.epoch, step.batch + life.rank)
        self._check(
            "the_planned_batch",
            (batch.epoch, batch.batch) == (place.epoch, place.batch),
            lambda: f"{who}: index {life.handed} is {place}, epoch {batch.epoch} batch {batch.batch} came",
        )
        self.content(who, life, batch, place)
        life.handed += 1

    def handed_all(self, life: Life) -> None:
        """The stream says that its session is over."""
        who = f"rank {life.rank} of {life.job} attempt {life.attempt}"
        self._check("none_missing", life.handed == len(life.steps), lambda: f"{who}: {life.handed} of {len(life.steps)} steps")

    def agrees(self, life: Life, known: Session | None, session: Session) -> None:
        """All ranks of an attempt are told one and the same session."""
        # Until an engine is chosen the job has no fingerprint, and the window may grow; all else is settled once.
        same = known is None or replace(known, window=session.window, job=session.job) == session
        self._check("one_session_per_attempt", same, lambda: f"rank {life.rank} of {life.job}: {known} and {session}")

    def begins(self, life: Life, start: Place, possible: list[Place], what: str) -> None:
        """A session begins after what is committed."""
        self._check(
            "begins_after_the_commit", start in possible,
            lambda: f"{life.job} attempt {life.attempt} begins at {start}; {what} allows {possible[:1]} to {possible[-1:]}",
        )  # fmt: skip

    def content(self, who: str, life: Life, batch: Batch, place: Place) -> None:
        """Samples and pixels are the plan's; also while the trainer still has the batch in hand."""
        planned = batch.sample_ids.tolist()
        if place.batch < life.oracle.batches:
            wanted = life.oracle.samples(place)
            self._check("the_planned_samples", planned == wanted, lambda: f"{who}: {place} has {wanted}, {planned} came")
        rows = np.asarray(batch.pixels).reshape(len(planned), -1)
        sources = batch.source_ids.tolist()
        expected = [pixel_of(source, place.epoch, sample) for source, sample in zip(sources, planned, strict=True)]
        intact = rows.min(axis=1).tolist() == expected and rows.max(axis=1).tolist() == expected
        self._check("pixels_intact", intact, lambda: f"{who}: {place} has {rows[:, 0].tolist()}, not {expected}")
        bad = BAD_SAMPLE if has_bad(life.oracle.spec.dataset) else -1
        named = [sample == bad for sample in planned] == (batch.status == SUBSTITUTED).tolist()
        self._check("bad_samples_named", named, lambda: f"{who}: {planned} {batch.status.tolist()}")

    # --- memory ---------------------------------------------------------------------------------------------------------

    def bounds(self, store: SimulatedStore, ranks: Iterable[tuple[Life, Rank]], workers: Iterable[WorkerProcess]) -> None:
        """Nothing grows with the batches."""
        for table in store.tables():
            self._table(table, store.records(table))
        for life, rank in ranks:
            if rank.intake is not None:
                self._intake(life, rank.intake)
        for worker in workers:
            for port in worker.ports:
                self._port(worker, port)

    def _table(self, table: Table, count: int) -> None:
        job = table.group.removeprefix("job:")
        bounds = {
            "lanes": self.lanes.get(job, 0), "ranks": self.most_world.get(job, 0), "main": 2,
            "workers": self.most_workers, "jobs": len(self.lanes),
        }  # fmt: skip
        most = bounds.get(table.kind, 10_001)  # else bad samples, which have a bound of their own
        self._check("store_is_small", count <= most, lambda: f"{table}: {count} > {most}")

    def _intake(self, life: Life, intake: Any) -> None:
        arrivals, peers = intake._arrivals, intake._links.peers
        who = f"rank {life.rank} of {life.job}"
        known = [index for index in arrivals._known if index < arrivals.next or index >= arrivals.next + arrivals.window]
        self._check(
            "window_bounds_arrivals", not known, lambda: f"{who}: {known} outside [{arrivals.next}, +{arrivals.window})"
        )
        withheld = max((len(each) for each in arrivals._withheld.values()), default=0)
        self._check("window_bounds_withheld", withheld <= arrivals.window, lambda: f"{who}: {withheld} > {arrivals.window}")
        # One incarnation of each worker at a time, and the one before while its batches are in use.
        self._check(
            "few_links", len(peers) <= 2 * self.most_workers + SLACK, lambda: f"{who}: {len(peers)} peers: {sorted(peers)}"
        )
        slabs = len(intake._links.slabs)
        self._check("few_slabs", slabs <= 2 * self.most_workers + SLACK, lambda: f"{who}: {slabs} slabs")

    def _port(self, worker: WorkerProcess, port: Any) -> None:
        who = f"port of rank {port.rank} at {worker.name}"
        slots = len(port._writing)
        self._check("slots_bound_writes", slots <= port.window, lambda: f"{who}: {slots} writes, {port.window} slots")
        credit = port._credit
        size = max(len(credit.have), len(credit.made))
        self._check("window_bounds_credit", size <= credit.window, lambda: f"{who}: {size} > {credit.window}")
        waiting = len(port._connection._outbox)
        most = 4 * port.window + SLACK
        self._check("outbox_is_bounded", waiting <= most, lambda: f"{who}: {waiting} messages wait")
