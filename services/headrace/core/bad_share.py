"""When bad samples are too many to go on with. Pure.

A few bad files in a data set of millions are substituted and told. Many of them are a fault: a shard that was overwritten, a
codec that is missing, a wrong pipeline. Then a job must not train on for a week on stand-ins.

A world of one judges its own batches, at once. With more ranks the coordinator judges the sum of their reports and names
an index ahead of all of them at which each stops, so that no rank is left waiting in an all_reduce for one that stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from headrace.core.job import JobSpec
from headrace.core.records import RankRecord

# Below this a share says little: three bad files among the first forty are no reason to stop.
LEAST_SAMPLES = 1000
# Reports are a second old, and the news takes a moment to reach all ranks.
AHEAD_S = 5.0
KEYS_SHOWN = 3
_KEY_CHARS = 200


def too_many(job: JobSpec, samples: int, bad: int) -> bool:
    """True where so many of the samples handed over in a session were bad that it shall stop."""
    return samples >= LEAST_SAMPLES and bad > job.max_bad_share * samples


def first_keys(known: tuple[str, ...], more: Iterable[str]) -> tuple[str, ...]:
    """The first few different keys, cut where they are long."""
    return (
        tuple(dict.fromkeys([*known, *(key[:_KEY_CHARS] for key in more)]))[:KEYS_SHOWN] if len(known) < KEYS_SHOWN else known
    )


def stop_index(ranks: Sequence[RankRecord]) -> int:
    """The index at which all ranks stop: one that none of them has passed when it hears of it, unless it is very late."""
    furthest = max(rank.consumed for rank in ranks)
    speed = max(rank.consumed / rank.elapsed_s if rank.elapsed_s > 0 else 0.0 for rank in ranks)
    return furthest + 1 + math.ceil(speed * AHEAD_S)


def why(job: JobSpec, samples: int, reasons: Mapping[str, int], keys: Sequence[str]) -> str:
    """What a trainer is told."""
    bad = sum(reasons.values())
    worst = ", ".join(f"{count} {reason}" for reason, count in Counter(reasons).most_common(3))
    first = ", ".join(repr(key) for key in keys)
    return (
        f"{bad} of the {samples} samples handed over in this session were bad ({bad / samples:.1%}; the job's max_bad_share is "
        f"{job.max_bad_share:.1%}): {worst}{f'; the first: {first}' if first else ''}. See `headrace quarantine {job.name}`: "
        "mend the data or leave these samples out, index again and open a job on that; or, if so many are expected, open one "
        "of another name with a higher max_bad_share and load the last state"
    )
