"""When bad samples are too many to go on with. Pure.

A few bad files in a data set of millions are substituted and told. Many of them are a fault: a shard that was overwritten, a
codec that is missing, a wrong pipeline. Then a job must not train on for a week on stand-ins.

A world of one judges its own batches, at once. With more ranks the coordinator judges the sum of their reports and names
an index ahead of all of them at which each stops, so that no rank is left waiting in an all_reduce for one that stopped. Ranks
tell the index that they know with each report, so that a store that lost it is healed; of two the lower one counts, everywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headrace.core import limits
from headrace.core.job import JobSpec, Stop
from headrace.core.records import RankRecord, SessionRecord

# Below this a share says little: three bad files among the first forty are no reason to stop.
LEAST_SAMPLES = 1000
# Reports are up to two seconds old; a rank whose replica hangs notices after two to four more and asks another.
AHEAD_S = 10.0
# A rank's speed is the highest over any such span: an average over a compilation or a pause says nothing of the rest.
SPAN_S = 0.5
# Of the first spans with a batch some began before it came, so they show less than the speed to come.
SPANS = 3
KEYS_SHOWN = 3
_KEY_CHARS = 200


def too_many(job: JobSpec, samples: int, bad: int) -> bool:
    """True where so many of the samples handed over in a session were bad that it shall stop."""
    return samples >= LEAST_SAMPLES and bad > job.max_bad_share * samples


def first_keys(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    """The first few different keys, cut where they are long."""
    return tuple(dict.fromkeys([*known, *(key[:_KEY_CHARS] for key in more)]))[:KEYS_SHOWN]


def paced(rank: RankRecord) -> RankRecord:
    """The record after a report, with the highest speed that was seen so far."""
    consumed, at_s = rank.paced_from
    span_s, batches = rank.elapsed_s - at_s, rank.consumed - consumed
    if span_s < SPAN_S:
        return rank
    spans = min(SPANS, rank.spans + (batches > 0))
    return replace(rank, paced_from=(rank.consumed, rank.elapsed_s), speed=max(rank.speed, batches / span_s), spans=spans)


def ready_to_judge(world: int, ranks: Sequence[RankRecord]) -> bool:
    """True once an index can be named: all ranks have told what they know (after a store's loss), and one how fast it is."""
    return len(ranks) == world and any(rank.spans >= SPANS for rank in ranks)


def stop_index(ranks: Sequence[RankRecord]) -> int:
    """The index at which all ranks stop: one that none has passed when it hears of it, unless it is later than AHEAD_S."""
    furthest = max(rank.consumed for rank in ranks)
    ahead = furthest + 1 + math.ceil(max(rank.speed for rank in ranks) * AHEAD_S)
    return min(ahead, limits.COUNT_BOUND - 1)  # a record with more could not be read again, whatever a rank reported


def with_stop(session: SessionRecord, known: Stop | None) -> SessionRecord:
    """The session after one of its ranks told which stop it knows."""
    if known is None or 0 <= session.stop_index <= known.index:
        return session
    return replace(session, stop_index=known.index, stop_why=known.why)


def why(job: JobSpec, samples: int, reasons: Mapping[str, int], keys: Sequence[str]) -> str:
    """What a trainer is told."""
    bad = sum(reasons.values())
    worst = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons).most_common(3))
    # Cut again: of what is not printable repr makes up to ten characters each, and a record takes limits.ADDRESS_CHARS in all.
    first = ", ".join(repr(key)[:_KEY_CHARS] for key in keys)
    return (
        f"{bad} of the {samples} samples handed over in this session were bad ({bad / samples:.1%}; the job's max_bad_share is "
        f"{job.max_bad_share:.1%}): {worst}{f'; the first: {first}' if first else ''}. See `headrace quarantine {job.name}`: "
        "mend the data or leave these samples out, index again and open a job on that; or, if so many are expected, open one "
        "of another name with a higher max_bad_share and load the last state"
    )
