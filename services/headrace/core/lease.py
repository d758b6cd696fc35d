"""Who holds which lane: the assignment rules, and what a heartbeat makes of a worker's record.

Pure. Lanes are given in proportion to speed, at least one to each worker while there are enough, and stay where they are
unless an owner is lost, lags, or the spread is badly out of proportion: every move costs remade batches.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.core.errors import StaleToken
from headrace.core.job import ANY_FINGERPRINT, JobSpec
from headrace.core.records import LaneRecord, WorkerRecord

# Lanes are dealt anew only if some worker's lanes per speed exceed the best possible by this factor: measured speeds
# wobble by some 10%, and one lane more or less must not count as a reason.
REBALANCE_AT = 1.5
# A token further ahead of the store's clock than this was never issued by us.
TOKEN_AHEAD_US = 86_400_000_000
# A worker that restarts under its id makes one entry; a process that keeps losing that fight is refused.
_MAX_REPLACED = 8


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that may serve one job now, and what the assignment needs to know of them.

    weights: speed of each that may take lanes. nodes: worker -> node. silent: workers that may live although nothing was heard
    of them; they keep what they have. lagging: (worker, lane) pairs that were behind for too long. barred: (worker, group of
    lanes) pairs whose rank could not use that worker.
    """

    weights: Mapping[str, float]
    nodes: Mapping[str, str]
    silent: frozenset[str] = frozenset()
    lagging: frozenset[tuple[str, int]] = frozenset()
    barred: frozenset[tuple[str, int]] = frozenset()


def beat(old: WorkerRecord | None, new: WorkerRecord, now_us: int) -> WorkerRecord:
    """The record after a heartbeat. Raises StaleToken for a process whose worker id another one took over."""
    if old is None:
        return new
    incarnation = new.endpoint.incarnation
    if old.endpoint.incarnation == incarnation:
        return replace(new, replaced=old.replaced)
    if incarnation in old.replaced and old.alive(now_us):
        raise StaleToken(
            f"another process now runs as worker {new.endpoint.worker}; stop this one or give it an id of its own",
            worker=new.endpoint.worker,
            incarnation=incarnation,
        )
    return replace(new, replaced=(*old.replaced, old.endpoint.incarnation)[-_MAX_REPLACED:])


def can_serve(worker: WorkerRecord, job: JobSpec) -> bool:
    """True if the worker's engine has all operations and the fingerprint that the job asks for (any while it asks for none)."""
    fits = job.fingerprint in ("", ANY_FINGERPRINT, worker.fingerprint)
    return fits and set(job.pipeline.op_names) <= set(worker.ops)


def speeds(workers: Iterable[WorkerRecord]) -> dict[str, float]:
    """Speed of each worker: measured samples per second, or by threads at the others' mean speed per thread."""
    known = list(workers)
    measured = [w for w in known if w.samples_per_s > 0]
    threads = sum(max(1, w.threads) for w in measured)
    per_thread = sum(w.samples_per_s for w in measured) / threads if threads else 1.0
    return {w.endpoint.worker: w.samples_per_s if w.samples_per_s > 0 else max(1, w.threads) * per_thread for w in known}


def fleet_for(job: JobSpec, workers: Mapping[str, WorkerRecord], now_us: int, lag_s: float, *, blind: bool = False) -> Fleet:
    """The fleet that may serve a job: live, with its operations and fingerprint; without those that say that they cannot.

    blind: the silent ones count as silent, not as dead.
    """
    fit = {name: w for name, w in workers.items() if can_serve(w, job)}
    live = {name: w for name, w in fit.items() if w.alive(now_us)}
    silent = {name for name, w in fit.items() if blind and not w.draining} - live.keys()
    lagging = {
        (name, lane)
        for name, w in live.items()
        for named, lane, behind_s in w.lagging
        if named == job.name and behind_s >= lag_s
    }
    ready = [w for w in live.values() if not w.draining]
    able = [w for w in ready if job.name not in w.unable]
    nodes = {name: w.endpoint.node for name, w in live.items()}
    return Fleet(speeds(able or ready), nodes, frozenset(silent), frozenset(lagging))


def choose_fingerprint(job: JobSpec, workers: Mapping[str, WorkerRecord], now_us: int) -> str:
    """The fingerprint with the most speed among live workers that have the job's operations; empty if there are none.

    Those that retire count only where there are no others.
    """
    able = [w for w in workers.values() if w.alive(now_us) and not w.draining and can_serve(w, job)]
    able = [w for w in able if not w.retiring] or able
    speed = speeds(able)
    total: Counter[str] = Counter()
    for worker in able:
        total[worker.fingerprint] += speed[worker.endpoint.worker]  # type: ignore[assignment]
    return min(total, key=lambda name: (-total[name], name), default="")


def quotas(lanes: int, weights: Mapping[str, float]) -> dict[str, int]:
    """How many lanes each worker should hold: in proportion to weight, at least one each while there are enough."""
    least = 1 if lanes >= len(weights) else 0
    total = sum(weights.values())
    share = {name: max(least, math.floor(lanes * weight / total)) for name, weight in weights.items()}
    spare = lanes - sum(share.values())
    # Too many (the ones that were raised to one): take from the most loaded. Too few: give to the least loaded.
    if spare < 0:
        heap = [(-share[name] / weights[name], name) for name in share if share[name] > least]
    else:
        heap = [((share[name] + 1) / weights[name], name) for name in share]
    heapq.heapify(heap)
    for _ in range(abs(spare)):
        _, name = heapq.heappop(heap)
        share[name] += 1 if spare > 0 else -1
        if spare > 0:
            heapq.heappush(heap, ((share[name] + 1) / weights[name], name))
        elif share[name] > least:
            heapq.heappush(heap, (-share[name] / weights[name], name))
    return share


def deal(
    owners: Mapping[int, str], lanes: int, fleet: Fleet, groups: int = 1, group_nodes: Mapping[int, str] | None = None
) -> dict[int, str]:
    """New owner of every lane, empty for nobody.

    owners: present valid owners (missing or empty: nobody). groups: lane l feeds the ranks of group l mod groups;
    group_nodes: group -> node of its rank, so that lanes go first to a worker beside the rank that they feed.
    """
    if not fleet.weights:
        return {lane: owners.get(lane, "") for lane in range(lanes)}
    refused = _refused(fleet)
    count = Counter(name for name, _ in refused)
    weights = {name: weight for name, weight in fleet.weights.items() if count[name] < groups}
    fleet = replace(fleet, weights=weights, barred=frozenset(refused))
    stays = fleet.weights.keys() | fleet.silent
    kept = {lane: owner if (owner := owners.get(lane, "")) in stays else "" for lane in range(lanes)}
    lost = [lane for lane, owner in kept.items() if (owner, lane % groups) in refused]
    kept.update(dict.fromkeys(lost, ""))
    nodes = group_nodes or {}
    local = {(name, group) for group, node in nodes.items() for name in fleet.weights if fleet.nodes.get(name) == node}
    target = _targets(lanes, fleet, groups)
    if not refused and _out_of_proportion(kept, lanes, fleet, target):
        _take_surplus(kept, target, groups, local)
    _give_unowned(kept, fleet, target, groups, local)
    # What is freed may go back to who had too much, where others are barred from it: lanes go from hand to hand instead.
    if refused and (lost or _out_of_proportion(kept, lanes, fleet, target)):
        _even_out(kept, fleet, target, groups, local)
    _relieve_lagging(kept, fleet, groups)
    return kept


def _refused(fleet: Fleet) -> set[tuple[str, int]]:
    """The barred pairs, but for groups that everybody is barred from."""
    barred = {(name, group) for name, group in fleet.barred if name in fleet.weights}
    count = Counter(group for _, group in barred)
    return {(name, group) for name, group in barred if count[group] < len(fleet.weights)}


def _targets(lanes: int, fleet: Fleet, groups: int) -> dict[str, int]:
    """How many lanes each worker should hold: the quotas, or as near to them as those allow who are barred from some groups."""
    if not fleet.barred:
        return quotas(lanes, fleet.weights)
    closed = {group for _, group in fleet.barred}
    willing = {group: [name for name in fleet.weights if (name, group) not in fleet.barred] for group in closed}
    share = dict.fromkeys(fleet.weights, 0)
    spread = lanes >= len(share)

    def load(name: str) -> tuple[bool, float, str]:
        return spread and share[name] > 0, (share[name] + 1) / fleet.weights[name], name

    # The groups with the least choice first.
    for group in sorted(closed, key=lambda group: (len(willing[group]), group)):
        for _ in range(group, lanes, groups):
            share[min(willing[group], key=load)] += 1
    heap = [load(name) for name in share]
    heapq.heapify(heap)
    for _ in range(lanes - sum(share.values())):
        name = heap[0][2]
        share[name] += 1
        heapq.heapreplace(heap, load(name))
    return share


def _held(kept: Mapping[int, str], fleet: Fleet) -> dict[str, int]:
    held = dict.fromkeys(fleet.weights, 0)
    for owner in kept.values():
        if owner in held:
            held[owner] += 1
    return held


def _out_of_proportion(kept: Mapping[int, str], lanes: int, fleet: Fleet, target: Mapping[str, int]) -> bool:
    held = _held(kept, fleet)
    free = sum(1 for owner in kept.values() if not owner)
    idle = sum(1 for count in held.values() if count == 0)
    if lanes >= len(held) and idle > free:
        return True
    best = max(target[name] / weight for name, weight in fleet.weights.items())
    return max(held[name] / weight for name, weight in fleet.weights.items()) > REBALANCE_AT * best


def _take_surplus(kept: dict[int, str], target: Mapping[str, int], groups: int, local: set[tuple[str, int]]) -> None:
    """Free what workers hold beyond their quota: lanes for ranks elsewhere first, then of the group it holds most of."""
    mine: dict[str, list[int]] = {}
    for lane, owner in kept.items():
        if owner in target:
            mine.setdefault(owner, []).append(lane)
    for name, held in mine.items():
        in_group = Counter(lane % groups for lane in held)
        for _ in range(len(held) - target[name]):
            lane = max(
                held, key=lambda lane: ((name, lane % groups) not in local, in_group[lane % groups], _spread(lane // groups))
            )
            held.remove(lane)
            in_group[lane % groups] -= 1
            kept[lane] = ""


def _spread(position: int) -> int:
    """Bits reversed: the largest of these are far from one another, so that what is taken away lies between what is kept."""
    return int(f"{position:016b}"[::-1], 2)


def _give_unowned(
    kept: dict[int, str], fleet: Fleet, target: Mapping[str, int], groups: int, local: set[tuple[str, int]]
) -> None:
    """Deal free lanes group by group, so that neighbouring batches of one rank come from different workers."""
    held = _held(kept, fleet)
    behind = {name for name, _ in fleet.lagging}
    able = [name for name in held if name not in behind] or list(held)
    beside: dict[int, list[str]] = {}
    takers = set(able)
    for name, group in local:
        if name in takers:
            beside.setdefault(group, []).append(name)

    def load(name: str) -> tuple[float, str]:
        return (held[name] + 1) / fleet.weights[name], name

    # Workers below their quota, the least loaded first; an entry is stale once its worker was given a lane.
    heap = [load(name) for name in able if held[name] < target[name]]
    heapq.heapify(heap)
    empty = {name for name in able if not held[name]}
    closed = {group for _, group in fleet.barred}
    free = sorted((lane for lane, owner in kept.items() if not owner), key=lambda lane: (lane % groups, lane))
    for i, lane in enumerate(free):
        near = [name for name in beside.get(lane % groups, ()) if held[name] < target[name]]
        while heap and (heap[0] != load(heap[0][1]) or held[heap[0][1]] >= target[heap[0][1]]):
            heapq.heappop(heap)
        if lane % groups in closed:
            fit = [[name for name in names if (name, lane % groups) not in fleet.barred] for names in (able, held)]
            name = min(fit[0] or fit[1], key=load)
        elif len(empty) >= len(free) - i:
            name = min(empty or able, key=load)  # the last lanes go to those who would have none
        elif near:
            name = min(near, key=load)
        else:
            name = heap[0][1] if heap else min(able, key=load)
        kept[lane] = name
        held[name] += 1
        empty.discard(name)
        heapq.heappush(heap, load(name))


def _even_out(kept: dict[int, str], fleet: Fleet, target: Mapping[str, int], groups: int, local: set[tuple[str, int]]) -> None:
    """Hand lanes of those above their target to those below it that are not barred from them; who has none gets one first."""
    held = _held(kept, fleet)
    behind = {name for name, _ in fleet.lagging}
    takers = sorted((name for name in held if name not in behind), key=lambda name: (held[name] / fleet.weights[name], name))

    def hand_over(taker: str, most: int, *, from_anybody: bool = False) -> None:
        def order(lane: int) -> tuple[bool, bool, int, int]:
            owner, group = kept[lane], lane % groups
            return held[owner] <= target[owner], (owner, group) in local, -_spread(lane // groups), lane

        open_to = [lane for lane, owner in kept.items() if owner in held and (taker, lane % groups) not in fleet.barred]
        for lane in sorted((lane for lane in open_to if kept[lane] != taker), key=order):
            if held[taker] >= most:
                return
            owner = kept[lane]
            if held[owner] > target[owner] or (from_anybody and held[owner] > 1):
                kept[lane] = taker
                held[owner] -= 1
                held[taker] += 1

    for taker in takers:
        if not held[taker]:
            hand_over(taker, min(1, target[taker]), from_anybody=True)
    for taker in takers:
        hand_over(taker, target[taker])


def _relieve_lagging(kept: dict[int, str], fleet: Fleet, groups: int) -> None:
    """Move one lagging lane of each lagging worker to the least loaded worker that keeps up."""
    behind = {name for name, _ in fleet.lagging}
    held = _held(kept, fleet)
    able = [name for name in held if name not in behind]
    if not able:
        return
    relieved: set[str] = set()
    for owner, lane in sorted(fleet.lagging):
        if kept.get(lane) != owner or owner in relieved:
            continue
        fit = [name for name in able if (name, lane % groups) not in fleet.barred]
        if not fit:
            continue  # who is barred from it would lose it again at once
        name = min(fit, key=lambda name: ((held[name] + 1) / fleet.weights[name], name))
        kept[lane] = name
        held[name] += 1
        relieved.add(owner)


def next_token(lane: LaneRecord, now_us: int) -> int:
    """A token never issued before: above the last known one, and at the clock, should the store have lost the last ones."""
    return max(lane.token + 1, now_us)
