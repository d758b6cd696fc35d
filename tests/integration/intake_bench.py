"""What the intake's tests share: workers, intakes and tables of one test, and ways to eat batches and to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.client.transports.intake import ThreadIntake
from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import HeadraceError
from headrace.core.job import Session
from headrace.wire import slot_format
from headrace.wire.batch_meta import decode_meta
from tests.integration.fake_worker import NODE, FakeWorker, Tables, pattern, small_session

DEADLINE_S = 20.0
RUNGS: list[TransportChoice] = ["shm", "grpc"]


class Bench:
    """Workers, intakes and tables of one test; all closed at its end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.session = small_session()
        self.workers: list[FakeWorker] = []
        self.intakes: list[ThreadIntake] = []
        self.tables = Tables(self.session)

    def use(self, session: Session) -> None:
        self.session = session
        self.tables = Tables(session)

    def worker(self, name: str = "w0", **options: object) -> FakeWorker:
        worker = FakeWorker(self.session, self.directory, name, **options)  # type: ignore[arg-type]
        self.workers.append(worker)
        return worker

    def intake(self, transport: TransportChoice = "shm", rank: int = 0, start_index: int = 0) -> ThreadIntake:
        intake = ThreadIntake(self.session, rank, f"nonce-{rank}", NODE, transport=transport, start_index=start_index)
        self.intakes.append(intake)
        return intake

    def close(self) -> None:
        for intake in self.intakes:
            intake.close()
        for worker in self.workers:
            worker.close()


def eat(intake: ThreadIntake, indexes: range, *, deadline_s: float = DEADLINE_S) -> list[str]:
    """Take, check and release; returns who made each."""
    workers = []
    for index in indexes:
        taken = intake.take(index, deadline_s)
        pixels = slot_format.pixels(taken.slot, taken.header.pixel_bytes)
        assert pixels.readonly
        assert bytes(pixels) == pattern(index, taken.header.pixel_bytes), index
        pixels.release()
        assert taken.index == taken.head.index == index
        workers.append(decode_meta(taken.meta).worker)
        del taken, pixels
        intake.release(index + 1)
    return workers


def take_in_vain(intake: ThreadIntake, index: int, deadline_s: float) -> threading.Thread:
    """A thread whose take must raise."""

    def run() -> None:
        with pytest.raises(HeadraceError):
            intake.take(index, deadline_s)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)
