"""Who holds which lane: the assignment rules, and what a heartbeat makes of a worker's record.

Pure. Lanes are given in proportion to speed, at least one to each worker while there are enough, and stay where they are
unless an owner is lost, lags, or the spread is badly out of proportion: every move costs remade batches.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from headrace.core.errors import StaleToken
from headrace.core.fleet import Fleet
from headrace.core.records import LaneRecord, WorkerRecord

K = TypeVar("K", float, tuple[bool, float])

# Lanes are dealt anew only if some worker's lanes per speed exceed the best possible by this factor: measured speeds
# wobble by some 10%, and one lane more or less must not count as a reason.
REBALANCE_AT = 1.5
# Who is that little slower than the fastest may be chosen in its place: well below what moves lanes again.
NEARLY = 1.2
# At least so many heartbeats in a worker's life after one: one may be lost.
BEATS_A_TTL = 2.5
# The weight of who can bear no lane: he gets one if nobody else is to be had.
_NO_LANE = 1e-9
# A token further ahead of the store's clock than this was never issued by us.
TOKEN_AHEAD_US = 86_400_000_000
# A worker that restarts under its id makes one entry; a process that keeps losing that fight is refused.
_MAX_REPLACED = 8


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


def heartbeat_patience_s(ttl_s: float) -> float:
    """How long a worker waits for the answer to a heartbeat: a replica that hangs leaves time to ask another one."""
    return min(1.0, ttl_s / 4)


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


def drawn(weights: Mapping[str, float], best: float, job: str) -> dict[str, float]:
    """The weights as one job sees them that has fewer lanes than there are workers: how many lanes each can bear that is to
    have nearly the best load, and between those that can bear as many a key decides.

    Else all such jobs would sit on the same workers, the fastest ones, and the others idle. best: see best_load.
    """
    bears = {name: math.floor(weight * best * NEARLY + 1e-9) for name, weight in weights.items()}
    return {name: lanes * (1 + _draw(f"{job} {name}") / 100) if lanes else _NO_LANE for name, lanes in bears.items()}


def _draw(text: str) -> float:
    """-1 to 1."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**63 - 1


def best_load(lanes: int, fleet: Fleet) -> float:
    """Lanes per speed of the worker that has most of it, where lanes are dealt as well as they can be. None is barred."""
    if lanes not in fleet.kept:
        fleet.kept[lanes] = _load(quotas(lanes, fleet.weights), fleet)
    return fleet.kept[lanes]


def _load(held: Mapping[str, int], fleet: Fleet) -> float:
    return max((count / fleet.weights[name] for name, count in held.items()), default=0.0)


def deal(
    owners: Mapping[int, str],
    lanes: int,
    fleet: Fleet,
    groups: int = 1,
    group_nodes: Mapping[int, str] | None = None,
    *,
    job: str = "",
) -> dict[int, str]:
    """New owner of every lane, empty for nobody.

    owners: present valid owners (missing or empty: nobody). groups: lane l feeds the ranks of group l mod groups;
    group_nodes: group -> node of its rank, so that lanes go first to a worker beside the rank that they feed. job: its name.
    """
    if not fleet.weights:
        return {lane: owners.get(lane, "") for lane in range(lanes)}
    if _settled(owners, lanes, fleet):
        return {lane: owners[lane] for lane in range(lanes)}
    refused = _refused(fleet)
    count = Counter(name for name, _ in refused)
    weights = {name: weight for name, weight in fleet.weights.items() if count[name] < groups}
    fleet = replace(fleet, weights=weights, barred=frozenset(refused), kept=fleet.kept if not refused else {})
    stays = fleet.weights.keys() | fleet.silent
    kept = {lane: owner if (owner := owners.get(lane, "")) in stays else "" for lane in range(lanes)}
    lost = [lane for lane, owner in kept.items() if (owner, lane % groups) in refused]
    kept.update(dict.fromkeys(lost, ""))
    local = _local(fleet, group_nodes or {})
    if lanes < len(fleet.weights):
        # Most have none, and who has one is chosen anew whenever speeds wobble: only what is too much for its owner is moved.
        best = best_load(lanes, fleet)
        _take_surplus(kept, _bearable(kept, best, fleet), groups, local)
        chosen = replace(fleet, weights=drawn(fleet.weights, best, job) if job else fleet.weights, kept={})
        _give_unowned(kept, chosen, quotas(lanes, chosen.weights), groups, local)
        _relieve_lagging(kept, chosen, groups)
        return kept
    target = _targets(lanes, fleet, groups)
    best = _load(target, fleet) if refused else best_load(lanes, fleet)
    if not refused and _out_of_proportion(kept, lanes, fleet, best):
        _take_surplus(kept, target, groups, local)
    _give_unowned(kept, fleet, target, groups, local)
    # What is freed may go back to who had too much, where others are barred from it: lanes go from hand to hand instead.
    if refused and (lost or _out_of_proportion(kept, lanes, fleet, best)):
        _even_out(kept, fleet, target, groups, local)
    _relieve_lagging(kept, fleet, groups)
    return kept


def _refused(fleet: Fleet) -> set[tuple[str, int]]:
    """The barred pairs, but for groups that everybody is barred from."""
    barred = {(name, group) for name, group in fleet.barred if name in fleet.weights}
    count = Counter(group for _, group in barred)
    return {(name, group) for name, group in barred if count[group] < len(fleet.weights)}


def _settled(owners: Mapping[int, str], lanes: int, fleet: Fleet) -> bool:
    """True where nothing is to be done: this is asked every second, and must not cost by the number of workers."""
    if fleet.barred or fleet.lagging:
        return False
    weights, silent = fleet.weights, fleet.silent
    if not all((owner := owners.get(lane, "")) in weights or owner in silent for lane in range(lanes)):
        return False
    return not _out_of_proportion(owners, lanes, fleet, best_load(lanes, fleet))


def _local(fleet: Fleet, group_nodes: Mapping[int, str]) -> set[tuple[str, int]]:
    """(worker, group) pairs on one node."""
    at: dict[str, list[str]] = {}
    wanted = set(group_nodes.values())
    for name in fleet.weights if wanted else ():
        if (node := fleet.nodes.get(name)) in wanted and node is not None:
            at.setdefault(node, []).append(name)
    return {(name, group) for group, node in group_nodes.items() for name in at.get(node, ())}


class _Least(Generic[K]):
    """Names by what they carry, which only grows: the least loaded first. load: of a name, now."""

    def __init__(self, names: Iterable[str], load: Callable[[str], K]) -> None:
        self._load: Callable[[str], K] = load
        self._heap: list[tuple[K, str]] = [(load(name), name) for name in names]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def name(self) -> str:
        """The least loaded; of equal ones the first by name."""
        while (now := self._load(self._heap[0][1])) != self._heap[0][0]:
            heapq.heapreplace(self._heap, (now, self._heap[0][1]))
        return self._heap[0][1]


def _targets(lanes: int, fleet: Fleet, groups: int) -> dict[str, int]:
    """How many lanes each worker should hold: the quotas, or as near to them as those allow who are barred from some groups."""
    if not fleet.barred:
        return quotas(lanes, fleet.weights)
    share = dict.fromkeys(fleet.weights, 0)

    def load(name: str) -> tuple[bool, float]:
        return share[name] > 0, (share[name] + 1) / fleet.weights[name]

    closed = {group for _, group in fleet.barred}
    willing = {group: [name for name in share if (name, group) not in fleet.barred] for group in closed}
    # The groups with the least choice first.
    for group in sorted(closed, key=lambda group: (len(willing[group]), group)):
        least = _Least(willing[group], load)
        for _ in range(group, lanes, groups):
            share[least.name()] += 1
    least = _Least(share, load)
    for _ in range(lanes - sum(share.values())):
        share[least.name()] += 1
    return share


def _held(kept: Mapping[int, str], fleet: Fleet) -> dict[str, int]:
    held = dict.fromkeys(fleet.weights, 0)
    for owner in kept.values():
        if owner in held:
            held[owner] += 1
    return held


def _out_of_proportion(kept: Mapping[int, str], lanes: int, fleet: Fleet, best: float) -> bool:
    held = Counter(owner for owner in kept.values() if owner in fleet.weights)
    free = sum(1 for owner in kept.values() if not owner)
    if lanes >= len(fleet.weights) and len(fleet.weights) - len(held) > free:
        return True  # somebody would have none
    return _load(held, fleet) > REBALANCE_AT * best


def _bearable(kept: Mapping[int, str], best: float, fleet: Fleet) -> dict[str, int]:
    """What each owner may keep: all, but for those with too much for their speed."""
    held = Counter(owner for owner in kept.values() if owner in fleet.weights)
    fair = {name: math.floor(best * fleet.weights[name] + 1e-9) for name in held}
    return {n: count if count / fleet.weights[n] <= REBALANCE_AT * best else fair[n] for n, count in held.items()}


def _take_surplus(kept: dict[int, str], target: Mapping[str, int], groups: int, local: set[tuple[str, int]]) -> None:
    """Free what workers hold beyond their quota: lanes for ranks elsewhere first, then of the group it holds most of."""
    mine: dict[str, dict[int, list[int]]] = {}
    for lane, owner in kept.items():
        if owner in target:
            mine.setdefault(owner, {}).setdefault(lane % groups, []).append(lane)
    for name, held in mine.items():
        surplus = sum(map(len, held.values())) - target[name]
        if surplus <= 0:
            continue
        for lanes in held.values():
            lanes.sort(key=lambda lane: (_spread(lane // groups), -lane))

        def order(group: int, lanes: list[int], name: str = name) -> tuple[bool, int, int, int, int]:
            return (name, group) in local, -len(lanes), -_spread(lanes[-1] // groups), lanes[-1], group

        # One entry a group: what is taken from a group changes that group's place alone.
        heap = [order(group, lanes) for group, lanes in held.items()]
        heapq.heapify(heap)
        for _ in range(surplus):
            group = heap[0][-1]
            kept[held[group].pop()] = ""
            if held[group]:
                heapq.heapreplace(heap, order(group, held[group]))
            else:
                heapq.heappop(heap)


def _spread(position: int) -> int:
    """Bits reversed: the largest of these are far from one another, so that what is taken away lies between what is kept."""
    return int(f"{position:016b}"[::-1], 2)


def _give_unowned(
    kept: dict[int, str], fleet: Fleet, target: Mapping[str, int], groups: int, local: set[tuple[str, int]]
) -> None:
    """Deal free lanes group by group, so that neighbouring batches of one rank come from different workers."""
    free = sorted((lane for lane, owner in kept.items() if not owner), key=lambda lane: (lane % groups, lane))
    if not free:
        return
    held = _held(kept, fleet)
    behind = {name for name, _ in fleet.lagging}
    able = [name for name in held if name not in behind] or list(held)
    beside: dict[int, list[str]] = {}
    takers = set(able)
    for name, group in local:
        if name in takers:
            beside.setdefault(group, []).append(name)

    def load(name: str) -> float:
        return (held[name] + 1) / fleet.weights[name]

    def below_first(name: str) -> tuple[bool, float]:
        return held[name] >= target[name], load(name)

    least = _Least(able, below_first)
    open_to: dict[int, _Least[float]] = {}  # by group that somebody is barred from
    for group in {group for _, group in fleet.barred}:
        fit = [name for name in able if (name, group) not in fleet.barred]
        open_to[group] = _Least(fit or [name for name in held if (name, group) not in fleet.barred], load)
    empty = {name for name in able if not held[name] and target[name]}
    waiting = iter(sorted(empty, key=lambda name: (below_first(name), name)))
    for i, lane in enumerate(free):
        near = [name for name in beside.get(lane % groups, ()) if held[name] < target[name]]
        if lane % groups in open_to:
            name = open_to[lane % groups].name()
        elif empty and len(empty) >= len(free) - i:
            name = next(name for name in waiting if name in empty)  # the last lanes go to those who would have none
        elif near:
            name = min(near, key=lambda name: (load(name), name))
        else:
            name = least.name()
        kept[lane] = name
        held[name] += 1
        empty.discard(name)


def _even_out(kept: dict[int, str], fleet: Fleet, target: Mapping[str, int], groups: int, local: set[tuple[str, int]]) -> None:
    """Hand lanes of those above their target to those below it that are not barred from them; who has none gets one first."""
    held = _held(kept, fleet)
    behind = {name for name, _ in fleet.lagging}
    takers = sorted((name for name in held if name not in behind), key=lambda name: (held[name] / fleet.weights[name], name))

    def hand_over(taker: str, most: int, *, from_anybody: bool = False) -> None:
        if held[taker] >= most:
            return

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
    if not fleet.lagging:
        return
    behind = {name for name, _ in fleet.lagging}
    held = _held(kept, fleet)
    able = [name for name in held if name not in behind]

    def load(name: str) -> float:
        return (held[name] + 1) / fleet.weights[name]

    closed = {group for _, group in fleet.barred}
    fit = {group: _Least((name for name in able if (name, group) not in fleet.barred), load) for group in closed}
    least = _Least(able, load)
    relieved: set[str] = set()
    for owner, lane in sorted(fleet.lagging):
        takers = fit.get(lane % groups, least)
        if kept.get(lane) != owner or owner in relieved or not takers:
            continue  # who is barred from it would lose it again at once
        name = takers.name()
        kept[lane] = name
        held[name] += 1
        relieved.add(owner)


def next_token(lane: LaneRecord, now_us: int) -> int:
    """A token never issued before: above the last known one, and at the clock, should the store have lost the last ones."""
    return max(lane.token + 1, now_us)
