"""A whole fleet on this machine: a store, coordinators and workers as real processes, to be broken at will.

    with Cluster(directory, coordinators=2, workers=3) as cluster:
        headrace.open(..., coordinators=cluster.addresses)
        cluster.kill_worker(0)
        cluster.restart_store(cut_last_second=True)

Any thread may call; one at a time. Logs lie in `directory/logs` and stay there; no process is left after `close`.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.core.errors import PeerGone
from headrace.testing.append_only import cut_since
from headrace.testing.processes import ServiceProcess, free_address, start_service

if TYPE_CHECKING:
    from headrace.testing.secured import Secured

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0


@dataclass(slots=True)
class Member:
    """One service with the arguments that each start uses. admin_address: may be empty. module: its program."""

    name: str
    address: str
    admin_address: str
    arguments: list[str]
    log: Path
    module: str = "headrace"
    process: ServiceProcess | None = field(default=None)

    def start(self) -> None:
        """Start it; does not wait."""
        self.process = start_service(self.name, self.arguments, self.log, module=self.module)

    def wait_ready(self) -> None:
        """Wait until it listens on all its addresses."""
        for address in filter(None, (self.address, self.admin_address)):
            self.running.wait_listening(address, START_DEADLINE_S)

    @property
    def running(self) -> ServiceProcess:
        """Its process, which may have ended since."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self.process

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal; waits for the end if it is SIGKILL."""
        self.running.kill(signum)
        if signum == signal.SIGKILL:
            self.running.wait(STOP_DEADLINE_S)

    def ended(self, how: str) -> PeerGone:
        """The error that says how its process ended, with what it said last."""
        code, tail = self.running.popen.returncode, self.running.log_tail()
        return PeerGone(f"{self.name} {how} {code}; its last lines:\n{tail}", process=self.running.pid)


Route = Callable[[str, str, str], str]


def direct(source: str, target: str, address: str) -> str:
    """The route without detours."""
    return address


class Cluster:
    """See the module. directory: for data and logs. worker_args, coordinator_args: more flags for each of them.

    route: (from, to, address of `to`) -> the address that `from` uses instead, such as a proxy's; both are members' names, or
    `rank` for all ranks. Asked once for each pair. worker_module: the workers'
    program, such as `headrace.testing.slow_worker`. tls, tokens: everything speaks TLS, mutual for gRPC, and asks for
    tokens; trainers get in by the variables `environment`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        coordinators: int = 1,
        workers: int = 2,
        threads: int = 1,
        worker_args: Sequence[str] = (),
        coordinator_args: Sequence[str] = (),
        route: Route = direct,
        worker_module: str = "headrace",
        tls: bool = False,
        tokens: bool = False,
    ) -> None:
        self.directory = directory
        self.secured: Secured | None = None
        if tls or tokens:
            from headrace.testing.secured import Secured

            self.secured = Secured.make(directory / "secrets", tls=tls, tokens=tokens)
            coordinator_args = [*self.secured.coordinator_args, *coordinator_args]
            worker_args = [*self.secured.service_args, *worker_args]
        self._threads = threads
        self._worker_args = list(worker_args)
        self._worker_module = worker_module
        self._route = route
        self.store_dir = directory / "store"  # its append-only file
        self._lock = threading.RLock()
        # Not below `directory`: a Unix socket's path has room for 107 bytes only.
        self._sockets = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.store = self._store()
        self.coordinators = [self._coordinator(i, coordinator_args) for i in range(coordinators)]
        self.addresses = self._coordinators_for("rank")  # as a client wants them: host:port, separated by commas
        self.workers = [self._worker(i) for i in range(workers)]

    # --- addresses ----------------------------------------------------------------------------------------------------

    @property
    def store_url(self) -> str:
        """redis:// address of the store."""
        return f"redis://{self.store.address}/0"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a trainer gets in; none where the fleet is open."""
        return self.secured.environment if self.secured else {}

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all and wait until all listen. Raises PeerGone or WaitTimeout with the log of the one that did not."""
        try:
            self.store.start()
            self.store.wait_ready()
            rest = [*self.coordinators, *self.workers]
            for member in rest:
                member.start()
            for member in rest:
                member.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End every process, the store last; idempotent."""
        with self._lock:
            for group in (self.workers, self.coordinators, [self.store]):
                started = [member.process for member in group if member.process is not None]
                for process in started:
                    process.kill(signal.SIGCONT)
                    process.kill(signal.SIGTERM)
                end = time.monotonic() + STOP_DEADLINE_S
                for process in started:
                    process.stop(max(0.0, end - time.monotonic()))
            shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- breaking things ----------------------------------------------------------------------------------------------

    def kill_worker(self, number: int, signum: int = signal.SIGKILL) -> str:
        """Send a signal to worker `number`; returns its name. SIGKILL: it is gone when this returns; SIGTERM: it drains."""
        with self._lock:
            self.workers[number].kill(signum)
            return self.workers[number].name

    def restart_worker(self, number: int) -> None:
        """Kill worker `number` if it runs, and start it again under its name; waits until it listens."""
        with self._lock:
            self._restart(self.workers[number])

    def add_worker(self, wait: bool = True, more: Sequence[str] = ()) -> str:
        """Start one more worker; returns its name. wait: until it listens. more: flags of this one alone."""
        with self._lock:
            member = self._worker(len(self.workers))
            member.arguments += more
            self.workers.append(member)
            member.start()
            if wait:
                member.wait_ready()
            return member.name

    def kill_coordinator(self, number: int, signum: int = signal.SIGKILL) -> None:
        """Send a signal to coordinator `number`."""
        with self._lock:
            self.coordinators[number].kill(signum)

    def restart_coordinator(self, number: int) -> None:
        """Kill coordinator `number` if it runs, and start it again on its port; waits until it listens."""
        with self._lock:
            self._restart(self.coordinators[number])

    def kill_store(self) -> None:
        """Kill the store; `restart_store` brings it back."""
        with self._lock:
            self.store.kill()

    def restart_store(self, cut_last_second: bool = False) -> int:
        """Kill the store and start it on the same data and port; waits until it listens.

        cut_last_second: forget what was written in the last one to two seconds, as a crash under `appendfsync everysec`
        may. Returns the number of bytes forgotten.
        """
        with self._lock:
            killed_s = int(time.time())
            self.store.kill()
            dropped = cut_since(self.store_dir, killed_s - 1) if cut_last_second else 0
            self._restart(self.store)
            return dropped

    @contextlib.contextmanager
    def paused_worker(self, number: int) -> Iterator[None]:
        """Worker `number` hangs (SIGSTOP) inside."""
        self.kill_worker(number, signal.SIGSTOP)
        try:
            yield
        finally:
            self.kill_worker(number, signal.SIGCONT)

    # --- looking ------------------------------------------------------------------------------------------------------

    def members(self) -> list[Member]:
        """Store, coordinators and workers."""
        return [self.store, *self.coordinators, *self.workers]

    def logs(self) -> dict[str, str]:
        """What each service wrote so far, by its name."""
        return {member.name: member.log.read_text(errors="replace") for member in self.members() if member.log.exists()}

    # --- members ------------------------------------------------------------------------------------------------------

    def _store(self) -> Member:
        address = free_address()
        arguments = ["store", "--address", address, "--data-dir", str(self.store_dir)]
        return Member("store", address, "", arguments, self._log("store"))

    def _coordinator(self, number: int, more: Sequence[str]) -> Member:
        name, address, admin = f"coordinator-{number}", free_address(), free_address()
        store = f"redis://{self._route(name, 'store', self.store.address)}/0"
        arguments = ["coordinator", "--grpc-address", address, "--admin-address", admin, "--store", store, *more]
        return Member(name, address, admin, arguments, self._log(name))

    def _worker(self, number: int) -> Member:
        name, address, metrics = f"worker-{number}", free_address(), free_address()
        arguments = [
            "worker",
            "--name",
            name,
            "--coordinator",
            self._coordinators_for(name),
            "--grpc-address",
            address,
            "--advertise",
            self._route("rank", name, address),
        ]
        arguments += ["--metrics-address", metrics, "--threads", str(self._threads)]
        arguments += ["--socket-dir", str(self._sockets), *self._worker_args]
        return Member(name, address, metrics, arguments, self._log(name), self._worker_module)

    def _coordinators_for(self, source: str) -> str:
        return ",".join(self._route(source, member.name, member.address) for member in self.coordinators)

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    @staticmethod
    def _restart(member: Member) -> None:
        if member.running.alive:
            member.kill()
        member.start()
        member.wait_ready()
