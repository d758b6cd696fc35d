"""The trainer's side of the fetcher process: start it, talk to it, start it again if it dies, end it."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator

from headrace.client.logs import log
from headrace.client.transports import fetch_protocol as protocol
from headrace.client.transports.mapping import Slab, create_slab
from headrace.core.errors import PeerGone, ProtocolMismatch
from headrace.telemetry.parent import PARENT_VARIABLE
from headrace.wire.tls import ClientTls

# The fetcher's largest copies go to the slab, which nobody in that process reads again: from 1 MiB on they bypass the caches,
# which halves what they cost. glibc's own limit is most of the machine's last cache, as if this process had it alone.
_TUNABLES = "glibc.cpu.x86_non_temporal_threshold=0x100000"

# A process that was silent for so long is pinged, and must answer within so long; the first answer may take its start's time:
# a cold installation is imported and a large slab populated.
PING_AFTER_S = 1.0
HUNG_S = 5.0
START_S = 60.0
# More than this between two checks is our own absence: this process may have been stopped together with the fetcher.
_LONGEST_STEP_S = 2.0

_MESSAGES_A_CALL = 64


class FetchHost:
    """One slab of the trainer and the process that fills it. Used under the intake's lock.

    The process ends with the thread that called `start`, so that must be one that lives as long: `headrace-intake`.

    The slab stays when the process dies: batches in it that were READY are good, and the next process is told of them.
    works_since_s: when the process gave its first answer; infinite before.
    """

    def __init__(self, slab_number: int, slots: int, slot_bytes: int, tls: ClientTls | None = None) -> None:
        self._tls = protocol.Tls.of(tls)
        self.slab: Slab
        self.slab, self._slab_fd = create_slab(slab_number, slots, slot_bytes)
        self.socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None  # not known to be dead
        self._unsent: deque[bytes] = deque()
        self._buffer = bytearray(protocol.MAX_BYTES)
        self._heard = self._answers = self._pinged = False
        self.works_since_s = math.inf
        self._silent_s = 0.0
        self._checked_s = 0.0

    @property
    def pid(self) -> int:
        """The process, or 0."""
        return self._process.pid if self._process else 0

    @property
    def killed_pid(self) -> int:
        """The process that was killed and is not known to be dead, or 0."""
        return self._killed.pid if self._killed else 0

    @property
    def wants_write(self) -> bool:
        """True while commands wait for room in the socket."""
        return bool(self._unsent)

    def start(self, next_index: int, have: tuple[int, ...]) -> socket.socket:
        """Start a process, once the last one is `gone`; returns our end of its socket. Raises OSError if that fails."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            ours.setblocking(False)
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [sys.executable, "-m", "headrace.client.fetcher", str(its.fileno()), str(self._slab_fd)],
                    pass_fds=(its.fileno(), self._slab_fd),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, PARENT_VARIABLE: str(os.getpid()), "GLIBC_TUNABLES": _tunables()},
                )
            except BaseException:
                ours.close()
                raise
        self.socket = ours
        self._heard = self._answers = False
        self._silent_s = self._checked_s = 0.0
        self.works_since_s = math.inf
        self.send(protocol.Config(self.slab.slots, self.slab.slot_bytes, next_index, have, self._tls))
        self.send(protocol.Ping())
        self._pinged = True
        log.info("fetcher_start", pid=self._process.pid, slots=self.slab.slots, slot_bytes=self.slab.slot_bytes)
        return ours

    def send(self, message: protocol.FetchMessage) -> None:
        """Give a command, in order."""
        if self.socket is not None:
            self._unsent.append(protocol.encode(message))
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        while self._unsent and self.socket is not None:
            try:
                self.socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()  # it is dead: reading says so, after what came before
                return
            self._unsent.popleft()

    def receive(self) -> Iterator[protocol.FetchMessage]:
        """The messages that are there. Raises PeerGone once the process is dead, ProtocolMismatch on anything malformed."""
        for _ in range(_MESSAGES_A_CALL):
            if self.socket is None:
                return
            try:
                size, _, flags, _ = self.socket.recvmsg_into([self._buffer])
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # commands it had not read; what it said before can still be read
            if size == 0:
                raise PeerGone("the fetcher process ended")
            if flags & socket.MSG_TRUNC:
                raise ProtocolMismatch("the fetcher process sent an oversize message")
            self._heard = True
            yield protocol.decode(memoryview(self._buffer)[:size])

    def check(self, now_s: float) -> None:
        """Ping a silent process; to be called each second at least. Raises PeerGone once it has not answered for too long."""
        if self.socket is None:
            return
        step_s = min(_LONGEST_STEP_S, now_s - self._checked_s) if self._checked_s else 0.0
        self._checked_s = now_s
        if self._heard:
            self._heard = self._pinged = False
            self._answers = True
            self._silent_s = 0.0
            self.works_since_s = min(self.works_since_s, now_s)
            return
        self._silent_s += step_s
        if not self._pinged and self._silent_s >= PING_AFTER_S:
            self.send(protocol.Ping())
            self._pinged = True
            self._silent_s = 0.0
        if self._pinged and self._silent_s >= (HUNG_S if self._answers else START_S):
            raise PeerGone(f"the fetcher process {self.pid} did not answer for {self._silent_s:.1f} s")

    def describe(self) -> str:
        """What is wrong with the process for a person, or empty."""
        if self.socket is None:
            return "the fetcher process ended"
        if self._pinged and self._silent_s > 0:
            state = "has not answered for" if self._answers else "starts since"
            return f"the fetcher process {self.pid} {state} {self._silent_s:.1f} s"
        return ""

    def stop(self) -> int | None:
        """End the process, if there is one; the slab stays. Returns its exit status (negative: a signal) if it was dead.

        One that lives is killed and not waited for: until it is `gone` it may still write to the slab.
        """
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        self._unsent.clear()
        self.works_since_s = math.inf
        process, self._process = self._process, None
        if process is None:
            return None
        status = process.poll()
        if status is None:  # it has nothing to save
            process.kill()
            self._killed = process
        return status

    def gone(self, wait_s: float = 0.0) -> bool:
        """Reap what was killed; False while it lives, for at most so long."""
        if self._killed is not None:
            try:
                self._killed.wait(wait_s)
            except subprocess.TimeoutExpired:
                return False
            self._killed = None
        return True

    def close(self) -> None:
        """End the process and give up the slab's descriptor; the slab's mapping is its owner's to close."""
        self.stop()
        if self._slab_fd >= 0:
            os.close(self._slab_fd)
            self._slab_fd = -1


def _tunables() -> str:
    """glibc's settings for the fetcher; the user's come last and win."""
    own = os.environ.get("GLIBC_TUNABLES")
    return f"{_TUNABLES}:{own}" if own else _TUNABLES


class RemoteLink:
    """A link by gRPC: a number that the fetcher knows."""

    rung = "grpc"

    def __init__(self, number: int, worker: str, host: FetchHost) -> None:
        self.number = number
        self.worker = worker
        self.host = host

    @property
    def slab(self) -> Slab:
        """Where its batches are."""
        return self.host.slab

    @property
    def trouble(self) -> str:
        """What is wrong on our side of the stream, or empty."""
        return self.host.describe()

    def close(self) -> None:
        """End the stream."""
        self.host.send(protocol.Disconnect(self.number))
