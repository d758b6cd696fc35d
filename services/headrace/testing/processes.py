"""Services as processes of their own: started, awaited, signalled, and never left behind.

Used by the demo and by every integration test. Real processes on loopback ports: what is killed here dies as it would in
a fleet.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import PeerGone, PortInUse, WaitTimeout
from headrace.telemetry.addresses import split_address
from headrace.telemetry.parent import PARENT_VARIABLE

HOST = "127.0.0.1"
_POLL_S = 0.02
_CONNECT_S = 0.5

# Below the kernel's range for outgoing connections: a port found free stays free, also while its service is down for a restart.
# Other processes on this machine run fleets too: each has blocks of its own, held by an abstract socket named after the block.
_PORTS = range(20000, 32000)
_BLOCK = 100
_ports: list[int] = []
_blocks: dict[int, socket.socket] = {}

# A child is killed when the *thread* that started it ends (telemetry.parent), so all are started by one that lives as long
# as this process.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="headrace-spawner")


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on and that no living process was given before."""
    while _ports or _take_block():
        port = _ports.pop()
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port
    raise PortInUse(f"no port between {_PORTS.start} and {_PORTS.stop} is left; end processes that run fleets here")


def _take_block() -> bool:
    blocks = _PORTS[::_BLOCK]
    for block in random.SystemRandom().sample(blocks, len(blocks)):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0headrace-ports-{block}")
        except OSError:
            name.close()
            continue
        _blocks[block] = name
        _ports.extend(range(block, block + _BLOCK))
        return True
    return False


def free_address() -> str:
    """host:port with a free port."""
    return f"{HOST}:{free_port()}"


@dataclass(slots=True)
class ServiceProcess:
    """A running service. log: file that holds what it wrote to both outputs, over restarts."""

    name: str
    command: list[str]
    log: Path
    popen: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens if it has ended."""
        self.popen.send_signal(signum)

    def wait(self, deadline_s: float) -> int:
        """Wait for its end and return the exit code (negative: the signal). Raises WaitTimeout."""
        try:
            return self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise WaitTimeout(f"{self.name} has not ended within {deadline_s:g} s; see {self.log}", process=self.pid) from None

    def stop(self, deadline_s: float = 10.0) -> int:
        """SIGTERM, and SIGKILL if it has not ended by the deadline; returns the exit code."""
        self.kill(signal.SIGTERM)
        try:
            return self.wait(deadline_s)
        except WaitTimeout:
            self.kill(signal.SIGKILL)
            return self.wait(deadline_s)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Poll `ready` until true.

        Raises PeerGone if the process ends first, WaitTimeout past the deadline; both carry the last lines of its log.
        """
        end = time.monotonic() + deadline_s
        while not ready():
            if not self.alive:
                code = self.popen.returncode
                raise PeerGone(
                    f"{self.name} ended with code {code} before it {what}; its last lines:\n{self.log_tail()}", process=self.pid
                )
            if time.monotonic() > end:
                raise WaitTimeout(
                    f"{self.name} has not {what} within {deadline_s:g} s; its last lines:\n{self.log_tail()}", process=self.pid
                )
            time.sleep(_POLL_S)

    def wait_listening(self, address: str, deadline_s: float) -> None:
        """Wait until it accepts connections on host:port."""
        self.wait_until(lambda: is_listening(address), f"listened on {address}", deadline_s)


def start_service(
    name: str, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None, *, module: str = "headrace"
) -> ServiceProcess:
    """Start `headrace <arguments> --exit-with-parent`.

    name: for messages. log: appended to. env: added to this process's environment. module: what runs in place of `headrace`.
    """
    return _start(name, [sys.executable, "-m", module, *arguments, "--exit-with-parent"], log, env)


def start_program(name: str, command: Sequence[str], log: Path) -> ServiceProcess:
    """Start another's program, such as Prometheus, that ends when this process does. Else as `start_service`."""
    return _start(name, [sys.executable, "-m", "headrace.testing.bound", *command], log, None)


def _start(name: str, command: list[str], log: Path, env: Mapping[str, str] | None) -> ServiceProcess:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {}), PARENT_VARIABLE: str(os.getpid())}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        popen = _spawner.submit(
            subprocess.Popen,
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        ).result()
    return ServiceProcess(name, command, log, popen)


def is_listening(address: str) -> bool:
    """Whether host:port accepts a connection."""
    try:
        with socket.create_connection(split_address(address), timeout=_CONNECT_S):
            return True
    except OSError:
        return False
