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
    """Yields batch n while batch n + 1, if it has come already, is being copied. No slot goes back while it is read."""
    following: Batch | None = None
    pending: Pending[T] | None = None
    current: Pending[T] | None = None
    try:
        for batch in stream:
            if pending is None or following is not batch:  # a batch that was lost with its worker has come anew
                pending = stager.begin(batch)
            current, pending = pending, None
            tensors = current.finish()
            following = stream.stage_next()
            pending = stager.begin(following) if following is not None else None
            yield tensors
            current.settle()
            current = None
    finally:
        for begun in (current, pending):
            if begun is not None:
                begun.settle()
