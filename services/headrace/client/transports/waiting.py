"""Says who is awaited and since when. Pure."""

from __future__ import annotations

import math

from headrace.client.transports.peers import Peer
from headrace.core.arrivals import Awaited
from headrace.core.job import ANY_FINGERPRINT
from headrace.core.pipeline_spec import shown
from headrace.core.session_plan import Position


def milestones(awaited: Awaited, peers: list[Peer]) -> dict[str, float]:
    """What is known of a batch on its way, for core.starvation.split_wait: what has not happened yet is infinitely late.

    A lane without an owner that we are connected to counts as not leased. From STARTED on all is `transfer`: how far its
    worker is with it comes only with the batch.
    """
    links = [peer for peer in peers if peer.worker == awaited.worker]
    if awaited.started_by:
        return {"leased": awaited.owner_since_s, "started": awaited.started_since_s, "received": math.inf}
    if links and links[-1].connected:
        return {"leased": max(awaited.owner_since_s, links[-1].since_s), "started": math.inf}
    return {"leased": math.inf}


def describe(
    awaited: Awaited, position: Position | None, peers: list[Peer], table_known: bool, now_s: float, *, fingerprint: str = ""
) -> str:
    """One sentence about an index that is not here.

    peers: all incarnations of workers that are or were connected. fingerprint: that the job demands; a rank is not told which
    ones the live workers have.
    """
    if position is None:
        return f"batch index {awaited.index} lies past the session's end"
    what = (
        f"batch index {awaited.index} (epoch {position.epoch}, step {position.step}, batch {position.batch}, "
        f"lane {position.lane})"
    )
    if not table_known:
        return f"{what} is not here; the coordinator has not said yet who holds the lanes"
    held_s = now_s - awaited.owner_since_s
    if not awaited.worker:
        since = f" since {held_s:.1f} s" if awaited.owner_since_s else ""
        text = f"{what} is not here; no worker holds its lane{since}: check that workers run and reach the coordinator"
        if fingerprint in ("", ANY_FINGERPRINT):
            return text
        return (
            f"{text}, and that one of them has the fingerprint {shown(fingerprint)}, since this job takes no other "
            "(`headrace status --json` lists theirs)"
        )
    text = f"{what} is awaited from worker {awaited.worker}, which holds the lane since {held_s:.1f} s"
    if awaited.started_by:
        text += f"; worker {awaited.started_by} STARTED it {now_s - awaited.started_since_s:.1f} s ago"
    else:
        text += "; nobody has STARTED it"
    links = [peer for peer in peers if peer.worker == awaited.worker]
    # The newest incarnation counts.
    return f"{text}; {links[-1].describe(now_s) if links else 'no connection yet'}"
