"""What both servers share: the check of a HELLO, the register of connected ranks, and the life of a slot.

```
acquire -> engine writes -> publish -> handed over (shm) or sent (gRPC) -> slot free again
                        `-> abandon -> slot free again
rank gone: no more acquire; the slab goes when no slot is being written or sent
```
All on the event loop thread; only the slot's memory is written elsewhere.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
from collections.abc import Callable, Sequence

import structlog

from headrace.core.credit import MAX_WINDOW, CreditWindow
from headrace.core.errors import HeadraceError, PeerGone, ProtocolMismatch, Unauthenticated
from headrace.core.job_token import MAX_TOKENS, admits, hashes
from headrace.wire import messages
from headrace.worker.pixel_places import DevicePlace
from headrace.worker.ports import PortListener, Room, SlotStates
from headrace.worker.slab import Slab

_log = structlog.get_logger()

RankKey = tuple[str, int, int]
NOT_ADMITTED = "the worker failed to admit the rank"
MAX_TEXT = 4096  # of an error's message on the wire


class RankRegister:
    """The connected ranks of one worker, over all its servers, and what every HELLO must pass.

    worker: its id, for WELCOME. tokens_of: hashes of a job's tokens (core.job_token), of which a rank must show one; none
    admit all, also where the job is not known yet.
    """

    def __init__(
        self, listener: PortListener, *, worker: str, tokens_of: Callable[[str], Sequence[str]] = lambda job: ()
    ) -> None:
        self.listener = listener
        self.worker = worker
        self.draining = False
        self._tokens_of = tokens_of
        self._ports: dict[RankKey, RankPort] = {}
        self._generations = itertools.count(1)

    async def admit(self, hello: messages.Hello) -> Room:
        """The room that the rank gets. Raises ProtocolMismatch, Unauthenticated, PeerGone (draining) or the listener's errors.

        The window is the smaller of what rank and session say, so that neither side gets more than it has slots for.
        """
        messages.check_protocol(hello.protocol, f"rank {hello.rank} of job {hello.job}")
        given = hashes(hello.job, hello.token.split("\n")[:MAX_TOKENS])
        self._check_token(hello, given)
        if not 1 <= hello.window <= MAX_WINDOW or max(len(hello.job), len(hello.nonce)) > 200:
            raise ProtocolMismatch(
                f"HELLO has an impossible window {hello.window}, or a name that is too long", rank=hello.rank
            )
        if self.draining:
            raise PeerGone("this worker is draining; ask the coordinator for another", worker=self.worker)
        room = await self.listener.admit(hello.job, hello.attempt, hello.rank, hello.nonce)
        self._check_token(hello, given)  # the job may have become known in between
        return room._replace(window=min(room.window, hello.window))

    def _check_token(self, hello: messages.Hello, given: Sequence[str]) -> None:
        if not admits(self._tokens_of(hello.job), given):
            shown = "another" if hello.token else "none"
            raise Unauthenticated(
                f"job {hello.job!r} was opened with a token, and this rank shows {shown}; set token or token_file "
                "(HEADRACE_TOKEN_FILE) to the job's",
                job=hello.job,
                rank=hello.rank,
            )

    def welcome(self, slots: int, slot_bytes: int) -> messages.Welcome:
        """A WELCOME with a fresh generation."""
        return messages.Welcome(messages.PROTOCOL, self.worker, next(self._generations), slots, slot_bytes)

    def add(self, port: RankPort) -> None:
        """Enter a port that can be written to; an earlier one of the same rank is closed first."""
        earlier = self._ports.get(port.key)
        if earlier is not None:
            earlier.close("the rank connected anew")
        self._ports[port.key] = port
        _log.info("rank_connected", job=port.job, attempt=port.attempt, rank=port.rank, transport=port.transport)
        self.listener.opened(port)

    def remove(self, port: RankPort, reason: str) -> None:
        """Drop a port that was added; called by the port once."""
        if self._ports.get(port.key) is port:
            del self._ports[port.key]
            _log.info(
                "rank_disconnected", job=port.job, attempt=port.attempt, rank=port.rank, transport=port.transport, reason=reason
            )
            self.listener.closed(port)


def refusal(error: HeadraceError) -> bytes:
    """The REFUSE message for an error."""
    return messages.encode(messages.Refuse(error.code, error.message[:MAX_TEXT], error.ids))


class RankPort(abc.ABC):
    """The half of `worker.ports.OutPort` that does not depend on the transport."""

    transport = ""

    def __init__(self, register: RankRegister, hello: messages.Hello, slab: Slab, window: int) -> None:
        self.job = hello.job
        self.attempt = hello.attempt
        self.rank = hello.rank
        self.window = window
        self._asked = hello.window
        self.slab_bytes = slab.slots * slab.slot_bytes
        self._register = register
        self._credit = CreditWindow(hello.next, window, set(hello.have))
        self._slab = slab
        self._writing: dict[int, int] = {}  # index -> slot that an engine writes to
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def key(self) -> RankKey:
        """Which rank it is."""
        return (self.job, self.attempt, self.rank)

    @property
    def next_index(self) -> int:
        """See OutPort."""
        return self._credit.next

    @property
    def closed(self) -> bool:
        """See OutPort."""
        return self._closed

    def grant(self, window: int) -> None:
        """See OutPort. A rank may hear of a larger window, and come, before its worker does."""
        if self.window < min(self._asked, window):
            self.close("the session's window grew")

    def slot_states(self) -> SlotStates:
        """See OutPort."""
        making, ready = len(self._writing), self._ready()
        return SlotStates(making, ready, max(0, self._slab.slots - making - ready))

    def wants(self, index: int) -> bool:
        """See OutPort. Stays true while the index is being written."""
        return not self._closed and self._credit.wants(index)

    def acquire(self, index: int) -> memoryview | None:
        """See OutPort. None also if the rank does not want `index`, or it is being written already."""
        if index in self._writing or not self.wants(index):
            return None
        number = self._free_slot(index)
        if number is None:
            return None
        self._writing[index] = number
        return self._slab.slot(number)

    def device_place(self, index: int) -> DevicePlace | None:
        """See OutPort."""
        return None

    def publish(self, index: int, token: int, total_bytes: int) -> None:
        """See OutPort. Dropped if the rank is gone or got the index from elsewhere meanwhile."""
        number = self._written(index)
        if self._closed or not self._credit.wants(index):
            self._slot_freed()
            return
        if total_bytes > self._slab.slot_bytes:
            self._slot_freed()
            raise ProtocolMismatch(f"{total_bytes} bytes published in a slot of {self._slab.slot_bytes}", index=index)
        self._credit.mark_made(index)
        self._hand_over(index, number, token, total_bytes)

    def abandon(self, index: int) -> None:
        """See OutPort."""
        self._written(index)
        self._slot_freed()

    def started(self, index: int, token: int) -> None:
        """See OutPort."""
        self._send(messages.Started(index, token))

    def fail(self, index: int, error: HeadraceError) -> None:
        """See OutPort. An acquired slot is given back."""
        if self._writing.pop(index, None) is not None:
            self._slot_freed()
        if self.wants(index):
            self._credit.mark_made(index)
            self._send(messages.Failed(index, error.code, error.message[:MAX_TEXT], error.ids))

    def advance_quietly(self, next_index: int) -> None:
        """A NEXT that came before the listener knew the port."""
        self._credit.advance(next_index)

    def advance(self, next_index: int) -> None:
        """A NEXT came."""
        if not self._closed and self._credit.advance(next_index):
            self._register.listener.advanced(self)

    def close(self, reason: str) -> None:
        """See OutPort. The rank is gone, or must go."""
        if self._closed:
            return
        self._closed = True
        self._register.remove(self, reason)
        self._disconnect(reason)
        self._free_slab_if_idle()

    @abc.abstractmethod
    def _free_slot(self, index: int) -> int | None:
        """The slot for `index`, or None while there is none."""

    @abc.abstractmethod
    def _hand_over(self, index: int, number: int, token: int, total_bytes: int) -> None:
        """Bring a sealed slot to the rank."""

    @abc.abstractmethod
    def _send(self, message: messages.Message) -> None:
        """Send a control message, or drop it if the rank is gone; never blocks."""

    @abc.abstractmethod
    def _disconnect(self, reason: str) -> None:
        """End the connection."""

    def _ready(self) -> int:
        """Slots that hold a batch which the rank has not released."""
        return len(self._credit.made)

    def _busy(self) -> bool:
        """True while memory of the slab is in use."""
        return bool(self._writing)

    def _written(self, index: int) -> int:
        number = self._writing.pop(index, None)
        if number is None:
            raise HeadraceError(
                f"index {index} was not acquired from this port",
                job=self.job,
                attempt=self.attempt,
                rank=self.rank,
                index=index,
            )
        return number

    def _slot_freed(self) -> None:
        """Tell the producer, but not from inside its own call."""
        if self._closed:
            self._free_slab_if_idle()
        else:
            self._loop.call_soon(self._tell_advanced)

    def _tell_advanced(self) -> None:
        if not self._closed:
            self._register.listener.advanced(self)

    def _free_slab_if_idle(self) -> None:
        if self._closed and not self._busy():
            self._slab.close()
