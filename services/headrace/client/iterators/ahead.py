"""One batch ahead on a device: what torch's iterator does, without torch's calls of CUDA, so that it runs on any machine.

Per batch one of three ways to the device, from `Batch` alone: the pixels lie there (cuda_ipc), they lie in pinned host memory
(a slab that was registered), or they are copied to a pinned buffer first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.client.batch import Batch
from headrace.client.stream import Stream

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Event(Protocol):
    """A point in a stream's work. Of torch.cuda.Event, which has both methods."""

    def synchronize(self) -> None:
        """Block until the work before it is done."""
        ...

    def query(self) -> bool:
        """True if it is done."""
        ...


class Pending(Protocol[T_co]):
    """A batch on its way. T: what the trainer gets."""

    def finish(self) -> T_co:
        """The tensors, which the trainer's stream may read after what it has queued so far."""
        ...

    def settle(self) -> None:
        """Block until nobody reads the batch's slot any more; the slot goes back after that."""
        ...


class Stager(Protocol[T_co]):
    """Brings batches to a device in two parts, so that the next one travels while this one is computed on."""

    def begin(self, batch: Batch) -> Pending[T_co]:
        """Start the copy."""
        ...


@dataclass(frozen=True, slots=True)
class Copied(Generic[T]):
    """A pending batch whose tensors are the trainer's own.

    done: the copy out of the slot; None: it is over already. source: what is copied, kept mapped until then.
    """

    tensors: Callable[[], T]
    done: Event | None
    source: object = None

    def finish(self) -> T:
        """See Pending."""
        return self.tensors()

    def settle(self) -> None:
        """See Pending."""
        if self.done is not None:
            self.done.synchronize()


def ahead(stream: Stream, stager: Stager[T]) -> Iterator[T]:
    """Gives batch n while batch n + 1, if it has come already, is being copied. No slot goes back while it is read."""
    return _Ahead(stream, stager)


class _Ahead(Iterator[T]):
    """No generator: an error ends one, and then the epoch would seem to end there, too."""

    def __init__(self, stream: Stream, stager: Stager[T]) -> None:
        self._pending: Pending[T] | None = None
        self._current: Pending[T] | None = None
        self._following: Batch | None = None
        self._stream = stream
        self._stager = stager
        self._rest = iter(stream)

    def __next__(self) -> T:
        try:
            return self._advance()
        except BaseException:
            self._settle()
            raise

    def _advance(self) -> T:
        if self._current is not None:
            self._current.settle()
            self._current = None
        batch = next(self._rest)
        if self._pending is None or self._following is not batch:  # a batch that was lost with its worker has come anew
            self._pending = self._stager.begin(batch)
        self._current, self._pending = self._pending, None
        tensors = self._current.finish()
        self._following = self._stream.stage_next()
        if self._following is not None:
            self._pending = self._stager.begin(self._following)
        return tensors

    def _settle(self) -> None:
        begun, self._current, self._pending = (self._current, self._pending), None, None
        for each in begun:
            if each is not None:
                each.settle()

    def __del__(self) -> None:
        """The loop was left early: the slots may go back any moment."""
        self._settle()
