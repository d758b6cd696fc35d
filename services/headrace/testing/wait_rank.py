"""A rank that takes its own time of each next() and asks for the reasons: what `testing.causes` compares.

Run as `python -m headrace.testing.wait_rank` with one JSON argument (`WaitTask`). Says one line of JSON a batch: its index,
the seconds that next() took by this process's own clock, and the stream's seconds by cause that came with it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import headrace
from headrace.client import handover
from headrace.client.transports.protocol import TransportChoice
from headrace.telemetry import logging
from headrace.telemetry.parent import exit_with_parent


@dataclass(frozen=True, slots=True)
class WaitTask:
    """What a rank is told. steps: batches to take. step_s: what a step takes besides. copy_s: how much longer a hand-over
    takes from index `copy_since` on and before `copy_until`. After each step it waits for a line of its standard input, as
    all_reduce waits for the other ranks."""

    coordinators: str
    job: dict[str, Any]
    rank: int
    world: int
    steps: int
    step_s: float
    transport: TransportChoice
    copy_s: float = 0.0
    copy_since: int = 0
    copy_until: int = 0


def main() -> None:
    """Run one rank from its JSON argument."""
    exit_with_parent()
    logging.configure("trainer", level="warning")
    task = WaitTask(**json.loads(sys.argv[1]))
    _slow_hand_over(task)
    with (
        headrace.connect(task.coordinators) as client,
        client.open(headrace.JobSpec.from_dict(task.job)).stream(
            rank=task.rank, world=task.world, transport=task.transport, wait_deadline_s=60.0
        ) as stream,
    ):
        stream.join()
        before = dict.fromkeys(stream.stats().wait_s_by_cause, 0.0)
        batches = (taken for _ in stream.epochs() for taken in stream)
        for _ in range(task.steps):
            asked_s = time.monotonic()
            index = next(batches).index
            wait_s = time.monotonic() - asked_s
            causes = stream.stats().wait_s_by_cause
            parts = {cause: seconds - before[cause] for cause, seconds in causes.items()}
            before = causes
            print(json.dumps({"rank": task.rank, "index": index, "wait_s": wait_s, "causes": parts}), flush=True)
            time.sleep(task.step_s)
            if not sys.stdin.readline():
                return


def _slow_hand_over(task: WaitTask) -> None:
    view: Any = handover.__dict__["pixel_view"]

    def view_slowly(slot: memoryview, header: Any) -> Any:
        if task.copy_s and task.copy_since <= header.index < task.copy_until:
            time.sleep(task.copy_s)
        return view(slot, header)

    handover.pixel_view = view_slowly  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
