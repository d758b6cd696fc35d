"""Who holds a job's token: what is kept of it, and what follows from what a caller shows. Pure.

Of a token only a hash is kept, in the job's record, and workers are told it with the job's sessions. It is keyed by the job's
name, so that equal tokens of two jobs cannot be told. Tokens are long and random, so that a plain hash cannot be turned back.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from headrace.core.errors import Unauthenticated

# As many tokens are accepted at a time: the newest, and those that it replaces.
MAX_TOKENS = 4
_KEY = b"headrace job token 1\0"


def hashes(job: str, tokens: Iterable[str]) -> tuple[str, ...]:
    """The hash of each token for a job, hex, in order."""
    key = _KEY + job.encode()
    return tuple(hmac.new(key, token.encode(errors="replace"), hashlib.sha256).hexdigest() for token in tokens)


def admits(recorded: Sequence[str], given: Sequence[str]) -> bool:
    """True if a caller that shows tokens of these hashes may speak for a job of those. A job without a token admits all."""
    return not recorded or any_equal(recorded, given)


def any_equal(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """True if one of theirs is one of ours; takes as long for a wrong one as for a right one of its length."""
    known, shown = ([text.encode(errors="replace") for text in texts] for texts in (ours, theirs))
    return sum(hmac.compare_digest(mine, other) for mine in known for other in shown) > 0


def renewed(job: str, recorded: Sequence[str], given: Sequence[str], *, begins: bool) -> tuple[str, ...]:
    """The hashes to record after a caller showed these. Raises Unauthenticated.

    Who holds the newest recorded token decides: a newer one before it replaces it, and the old one is accepted beside it
    until someone begins (opens or joins) without it. Who only holds an older one is admitted and changes nothing.
    """
    if given and not recorded:
        raise Unauthenticated(
            f"job {job} is open without a token, so that anyone may join it, and this caller shows one; open another job name "
            "with the token, or leave the token away",
            job=job,
        )
    if not admits(recorded, given):
        have = "shows another token" if given else "shows no token"
        raise Unauthenticated(
            f"job {job} was opened with a token, and this caller {have}; set token or token_file (HEADRACE_TOKEN_FILE) to the "
            "job's",
            job=job,
        )
    kept = tuple(recorded)
    newest_held = bool(kept) and kept[0] in given
    if newest_held and (begins or given[0] not in kept):
        return tuple(given)
    return kept
