"""Calls to the coordinator: any of its replicas, each call with a deadline, errors as core.errors. Any thread may call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from headrace.client.logs import log
from headrace.client.origin import Origin
from headrace.core import limits
from headrace.core.errors import ConfigInvalid, CoordinatorUnavailable, HeadraceError, StoreUnavailable, WaitTimeout
from headrace.telemetry.addresses import reachable_address
from headrace.wire.calls import Calls
from headrace.wire.gen.coordinator_service_pb2_grpc import CoordinatorServiceStub
from headrace.wire.status import error_from_rpc
from headrace.wire.tls import Stamp, open_channel

# One answer takes milliseconds; a replica that takes longer is hung, and the next one is asked.
CALL_DEADLINE_S = 5.0
# Each replica gets its share of a call's deadline, so that one that hangs leaves time to ask another.
LEAST_SHARE_S = 1.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
_RETIRED_S = 60.0
_EXPLAINED = 2  # failed replicas that are looked at closely, each for a second or two
# Whoever sits before a silent terminal wants to know by then what is waited for.
TELL_AFTER_S = 3.0
_OPTIONS = (
    ("grpc.max_receive_message_length", limits.ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# What another replica may do better.
_ELSEWHERE = (CoordinatorUnavailable, WaitTimeout, StoreUnavailable)

T = TypeVar("T")


class CoordinatorRpc:
    """Channels to the replicas at `addresses` ("host:port,host:port"). Calls go to the one that answered last.

    calls: TLS and token. A channel is made anew once the files of TLS have changed, since it would go on with the old ones.
    """

    def __init__(self, addresses: str, calls: Calls | None = None) -> None:
        self.addresses = addresses_of(addresses)
        self._calls = calls or Calls()
        self._origin = Origin()
        self._lock = threading.Lock()
        self._current = 0
        self._closed = False
        self._retired: list[tuple[float, grpc.Channel]] = []
        self._stamp: Stamp | None = None
        self._channels: list[grpc.Channel] = []
        self._stubs: list[Any] = []
        self._connect()

    def call(self, method: str, request: Any, deadline_s: float = CALL_DEADLINE_S) -> Any:
        """One call, tried at each replica once. Raises what the coordinator raised, CoordinatorUnavailable if none answered."""
        self._origin.check("client")
        last: HeadraceError | None = None
        reason = "no time left"
        failures: list[tuple[int, HeadraceError]] = []
        end_s = time.monotonic() + deadline_s
        share_s = max(LEAST_SHARE_S, deadline_s / len(self.addresses))
        for _ in self.addresses:
            stub_number, stub = self.current()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                return getattr(stub, method)(request, timeout=min(left_s, share_s), **self.tokens())
            except grpc.RpcError as failure:
                error = error_from_rpc(failure)
                if not isinstance(error, _ELSEWHERE):
                    raise error from None  # it says all that gRPC's own says
                last, reason = error, failure.details() or error.message
                failures.append((stub_number, error))
                self.failed(stub_number)
        if isinstance(last, StoreUnavailable):
            raise last
        # Only now: the other replicas must not wait for it.
        reason = next(filter(None, (self.explain(number, error) for number, error in failures[:_EXPLAINED])), reason)
        raise CoordinatorUnavailable(
            f"no coordinator answered {method} at {', '.join(self.addresses)}: check that one runs there and can be reached "
            f"from here ({reason})",
            addresses=",".join(self.addresses),
        )

    def current(self) -> tuple[int, Any]:
        """The replica that calls go to: its number, for `failed`, and its stub."""
        with self._lock:
            if self._calls.stamp not in (None, self._stamp) and not self._closed:
                self._reconnect()
            return self._current, self._stubs[self._current]

    def failed(self, number: int) -> None:
        """A replica did not answer: go on with the next, unless another thread has moved on already."""
        with self._lock:
            if number == self._current:
                self._current = (number + 1) % len(self._stubs)

    def close(self) -> None:
        """Close the channels; idempotent. Calls in flight end. Nothing in a forked child."""
        if not self._origin.here:
            return
        with self._lock:
            self._closed = True
            channels = [*self._channels, *(channel for _, channel in self._retired)]
        for channel in channels:
            channel.close()

    def another(self) -> CoordinatorRpc:
        """Connections of their own to the same replicas. Raises ConfigInvalid."""
        return CoordinatorRpc(",".join(self.addresses), self._calls)

    def tokens(self) -> dict[str, Any]:
        """Keyword arguments of a call by which the caller shows who it is."""
        return self._calls.tokens()

    def explain(self, number: int, error: HeadraceError) -> str:
        """What of TLS keeps a replica from being reached; empty where that is not it."""
        return self._calls.explain(self.addresses[number], error)

    def _connect(self) -> None:
        stamp = self._calls.stamp
        channels = [open_channel(address, _OPTIONS, self._calls.tls) for address in self.addresses]
        self._stamp = stamp
        self._channels = channels
        self._stubs = [CoordinatorServiceStub(channel) for channel in channels]  # type: ignore[no-untyped-call]

    def _reconnect(self) -> None:
        """The old channels are kept for the calls that are in flight; the longest is a watch."""
        now_s = time.monotonic()
        while self._retired and now_s - self._retired[0][0] > _RETIRED_S:
            self._retired.pop(0)[1].close()
        old = self._channels
        self._connect()  # with what is of use: refused files leave what was before
        self._retired += [(now_s, channel) for channel in old]


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses of a text. Raises ConfigInvalid."""
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses:
        raise ConfigInvalid("no coordinator address: give host:port, or several with commas between", addresses=text)
    for address in addresses:
        reachable_address(address)
    return addresses


def until(deadline_s: float, call: Callable[[], T | None], also_retry: tuple[type[HeadraceError], ...] = ()) -> T | None:
    """Repeat `call` with growing pauses until it gives something; retriable errors and `also_retry` are repeated, too.

    An error that is repeated for long is told once. None when the deadline passed without an error in the last try; else
    that error is raised.
    """
    begun_s = time.monotonic()
    end_s = begun_s + deadline_s
    told = False
    pause_s = FIRST_PAUSE_S
    while True:
        last: HeadraceError | None = None
        try:
            result = call()
            if result is not None:
                return result
        except HeadraceError as error:
            if not error.retriable and not isinstance(error, also_retry):
                raise
            last = error
        if last is not None and not told and time.monotonic() - begun_s >= TELL_AFTER_S:
            told = True
            log.warning("still_trying", error=str(last), give_up_after_s=deadline_s)
        if time.monotonic() + pause_s >= end_s:
            if last is not None:
                raise last
            return None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
