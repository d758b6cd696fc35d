"""One rank of the demo: trains in name, reads the barcodes that it was handed, and tells the demo by lines of JSON.

Run as `python -m headrace.testing.demo_rank` with one JSON argument (`RankTask`); a process of its own, as a trainer is.
Writes to standard output one line a step, and at the end the ids that it saw to an .npz file. It also proves that what was
handed over is the same whatever served it: a hash over pixels, ids, labels and mask of each batch goes into that file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.client.transports.protocol import TransportChoice
from headrace.core.batch import SUBSTITUTED
from headrace.telemetry import logging
from headrace.telemetry.parent import exit_with_parent
from headrace.testing import barcode, contact_sheet
from headrace.testing.journal import JournalWriter, Taken
from headrace.testing.memfd_device import memfd_device

SHEET_IMAGES = 32


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a demo rank is told. step_s: length of the pretended training step. sheet: PNG of the first batch, or empty.
    stop_after: ends without a goodbye after that many batches (0: never), as a trainer that is killed would.
    journal: file that has each batch as it was taken, also if this process is killed; or empty. out: may be empty;
    nothing is kept then. until: file with the number of the epoch at whose begin to end, or empty: a training
    that nobody knew the length of. memfd_gpu: takes batches on memory of this machine that stands for a GPU."""

    coordinators: str
    job: dict[str, Any]
    rank: int
    world: int
    epochs: int
    transport: TransportChoice
    out: str
    step_s: float = 0.0
    sheet: str = ""
    read_barcodes: bool = True
    commit: bool = True
    state: dict[str, Any] | None = None
    stop_after: int = 0
    wait_deadline_s: float = 60.0
    join_deadline_s: float = 60.0
    journal: str = ""
    until: str = ""
    memfd_gpu: bool = False


@dataclass(slots=True)
class _Notes:
    """What the rank saw, row by row or batch by batch."""

    epoch: list[int] = field(default_factory=list)
    pixel_ids: list[np.ndarray[Any, Any]] = field(default_factory=list)
    planned_ids: list[np.ndarray[Any, Any]] = field(default_factory=list)
    status: list[np.ndarray[Any, Any]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)

    def take(self, batch: headrace.Batch, read_barcodes: bool) -> None:
        ids = barcode.read_batch(np.asarray(batch.pixels)) if read_barcodes else batch.sample_ids.copy()
        self.epoch.append(batch.epoch)
        self.batch.append(batch.batch)
        self.pixel_ids.append(np.asarray(ids, np.int64))
        self.planned_ids.append(batch.sample_ids.copy())
        self.status.append(batch.status.copy())
        digest = hashlib.blake2b(np.ascontiguousarray(batch.pixels).data, digest_size=16)
        for part in (batch.sample_ids, batch.labels, batch.mask):
            digest.update(np.ascontiguousarray(part).data)
        self.hashes.append(digest.hexdigest())

    def last(self, state: dict[str, Any]) -> Taken:
        """The newest, as a journal wants it."""
        pixel_ids, planned_ids, status = (part[-1].tolist() for part in (self.pixel_ids, self.planned_ids, self.status))
        return Taken(self.epoch[-1], self.batch[-1], pixel_ids, planned_ids, status, self.hashes[-1], state)

    def forget(self) -> None:
        """Keep nothing of what was seen so far."""
        lists: list[list[Any]] = [self.epoch, self.pixel_ids, self.planned_ids, self.status, self.hashes, self.batch]
        for part in lists:
            part.clear()


def say(**event: Any) -> None:
    """One line of JSON for the demo."""
    print(json.dumps(event), flush=True)


def main() -> None:
    """Run one rank from its JSON argument."""
    exit_with_parent()
    logging.configure("trainer")
    task = RankTask(**json.loads(sys.argv[1]))
    notes = _Notes()
    journal = JournalWriter(Path(task.journal)) if task.journal else None
    with headrace.connect(task.coordinators, deadline_s=task.join_deadline_s) as client:
        job = client.open(headrace.JobSpec.from_dict(task.job))
        with job.stream(
            rank=task.rank,
            world=task.world,
            epochs=task.epochs,
            transport=task.transport,
            device=memfd_device() if task.memfd_gpu else None,
            wait_deadline_s=task.wait_deadline_s,
            join_deadline_s=task.join_deadline_s,
        ) as stream:
            if task.state is not None:
                stream.load_state_dict(task.state)
            if journal:
                journal.begin(stream.join())
            _train(task, stream, notes, journal)
            stats, state = asdict(stream.stats()), stream.state_dict()
    if journal:
        journal.end(os.getpid())
    if task.out:
        _save(Path(task.out), notes)
    say(event="done", rank=task.rank, stats=stats, state=state)


def _save(path: Path, notes: _Notes) -> None:
    with path.open("wb") as file:
        np.savez(
            file,
            epoch=np.repeat(notes.epoch, [len(ids) for ids in notes.planned_ids]) if notes.epoch else np.empty(0, np.int64),
            pixel_ids=_joined(notes.pixel_ids),
            planned_ids=_joined(notes.planned_ids),
            status=_joined(notes.status),
            hashes=np.array(notes.hashes, dtype="S32"),
            batch=np.array(notes.batch, np.int64),
            batch_epoch=np.array(notes.epoch, np.int64),
        )


def _joined(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _train(task: RankTask, stream: headrace.Stream, notes: _Notes, journal: JournalWriter | None) -> None:
    taken = 0
    for epoch in stream.epochs():
        if task.until and _over(Path(task.until), epoch):
            return
        steps = len(stream)
        asked_s = time.monotonic()
        for step, batch in enumerate(stream):
            wait_s = time.monotonic() - asked_s
            notes.take(batch, task.read_barcodes)
            if task.sheet and taken == 0:
                _sheet(task, batch)
            if task.step_s:
                time.sleep(task.step_s)
            taken += 1
            if journal:
                journal.take(notes.last(stream.state_dict()))
            if not task.out:
                notes.forget()
            if task.commit:
                stream.commit()
            say(
                event="step",
                rank=task.rank,
                epoch=epoch,
                step=step + 1,
                steps=steps,
                rows=len(batch.sample_ids),
                substituted=int((batch.status == SUBSTITUTED).sum()),
                wait_s=wait_s,
            )
            if taken == task.stop_after:
                return
            asked_s = time.monotonic()


def _over(until: Path, epoch: int) -> bool:
    return until.exists() and epoch >= int(until.read_text() or epoch + 1)


def _sheet(task: RankTask, batch: headrace.Batch) -> None:
    count = min(SHEET_IMAGES, len(batch.sample_ids))
    labels = batch.labels if batch.labels is not None else ["-"] * count
    captions = [f"id {i} class {label}" for i, label in zip(batch.sample_ids[:count], labels[:count], strict=True)]
    where = f"job {task.job['name']} epoch {batch.epoch} batch {batch.batch} rank {task.rank}"
    title = f"{where}: first {count} of {len(batch.sample_ids)}"
    contact_sheet.save(Path(task.sheet), np.asarray(batch.pixels)[:count], captions, title)


if __name__ == "__main__":
    main()
