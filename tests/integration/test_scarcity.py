"""What happens when there is too little: open files, memory for slabs, room for the store. Never a hang or a dead service; a
named error, or a wait that ends when there is enough again, with every sample once."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.client.transports.local import LocalLink
from headrace.core.errors import OutOfDescriptors, TransportUnavailable
from headrace.testing.cluster import Cluster, Member
from headrace.wire import messages, slot_format
from headrace.wire.messages import Hello, Welcome
from headrace.worker.slab import Slab
from tests.integration.bad_input_rig import Seen, assert_no_trace, indexed, open_job, train, until, write_shards
from tests.unit.open_files import only

SAMPLES = 200
SHORT_S = 3.0  # how long there is too little

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("set")
    write_shards(directory, 2, SAMPLES // 2)
    return indexed(directory)


@contextlib.contextmanager
def limited(pid: int, kind: int, value: int) -> Iterator[None]:
    """The limit of a process that runs is `value` inside."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (value, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


def limited_for(seconds: float, pid: int, kind: int, value: int) -> threading.Timer:
    """The limit is `value` from now on, for so long."""
    stack = contextlib.ExitStack()
    stack.enter_context(limited(pid, kind, value))
    timer = threading.Timer(seconds, stack.close)
    timer.start()
    return timer


def limit_for_more(pid: int, more: int) -> int:
    """The limit of open files under which a process may open so many more."""
    taken = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    free = (number for number in range(len(taken) + more + 1) if number not in taken)
    return next(itertools.islice(free, more, None))


# --- open files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "transport", "more"),
    [
        ("worker", "shm", 0),
        ("worker", "shm", 1),  # the connection, but no slab
        ("worker", "grpc", 0),
        ("worker", "grpc", 1),
        ("coordinator", "grpc", 0),
    ],
)
def test_a_service_without_descriptors_goes_on_and_recovers(
    tmp_path: Path, dataset: str, who: str, transport: str, more: int
) -> None:
    """A rank comes while few are free, and another has all it needs: the one waits, the other goes on."""
    with Cluster(tmp_path, workers=1) as fleet:
        member = (fleet.workers if who == "worker" else fleet.coordinators)[0]
        running = open_job(fleet, "running", dataset).stream(epochs=1, transport=transport, wait_deadline_s=40)  # type: ignore[arg-type]
        with running as stream:
            batches, seen = iter(stream), Seen()
            for _ in range(5):
                seen.take(next(batches))
            timer = limited_for(SHORT_S, member.running.pid, resource.RLIMIT_NOFILE, limit_for_more(member.running.pid, more))
            try:
                coming = train(open_job(fleet, "coming", dataset), transport=transport, join_deadline_s=40.0)
                for batch in batches:
                    seen.take(batch)
            finally:
                timer.join()
        assert sorted(seen.ids) == sorted(coming.ids) == list(range(SAMPLES))
        assert member.running.alive
        assert_no_trace(fleet.logs().items())
        assert member.log.stat().st_size < 200_000, "a line now and then, not one for each try"


@pytest.mark.parametrize("more", [0, 1])
def test_a_trainer_that_cannot_take_a_workers_memory_says_why(tmp_path: Path, more: int) -> None:
    """0: its descriptor does not arrive; 1: it does and cannot be mapped. Neither is the worker's fault."""
    slab = Slab(2, slot_format.PIXEL_OFFSET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        link = LocalLink(1, "w", str(tmp_path / "s"), Hello(messages.PROTOCOL, "j", 1, 0, "n", 0, 2, (), ""))
        peer, _ = server.accept()
        with peer, contextlib.closing(link), contextlib.closing(slab):
            socket.send_fds(peer, [messages.encode(Welcome(messages.PROTOCOL, "w", 1, 2, slab.slot_bytes))], [slab.fd])
            before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted
            with only(more), pytest.raises(OutOfDescriptors, match="ulimit -n"):
                list(link.receive())
            assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


CLIENT = """
import os, resource, sys
import headrace
from tests.integration.bad_input_rig import PIPELINE

def limit(left):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + left, before[1]))

addresses, dataset, transport, left, when = sys.argv[1:]
if when == "connect":
    limit(int(left))
with headrace.connect(addresses, deadline_s=10) as client:
    job = client.job(f"{transport}-{left}-{when}", dataset=dataset, batch_size=8, pipeline=PIPELINE, tail="pad")
    if when == "join":
        limit(int(left))
    with job.stream(epochs=1, transport=transport, wait_deadline_s=5, join_deadline_s=10) as stream:
        for number, batch in enumerate(stream):
            if when == "step" and number == 3:
                limit(int(left))
    print("taken", number + 1)
"""
NAMED = ("out_of_descriptors", "transport_unavailable", "wait_timeout")


def test_a_client_without_descriptors_is_told(tmp_path: Path, dataset: str) -> None:
    """At any moment and with any number left, a trainer either gets all its batches or an error with its name."""
    outcomes = set()
    with Cluster(tmp_path, workers=1) as fleet:
        for when, left, transport in [
            ("connect", 0, "shm"), ("connect", 40, "grpc"), ("join", 0, "grpc"), ("join", 17, "grpc"), ("step", 0, "shm"),
            ("step", 0, "grpc"),
        ]:  # fmt: skip
            command = [sys.executable, "-c", CLIENT, fleet.addresses, dataset, transport, str(left), when]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            said = done.stderr.strip().splitlines()[-1:] or [""]
            named = [code for code in NAMED if f"[{code}" in said[0]]
            assert named or done.stdout == f"taken {SAMPLES // 8}\n", (when, left, transport, done.returncode, done.stderr)
            outcomes |= {*named} or {"taken"}
    assert {"taken", "out_of_descriptors"} <= outcomes


@pytest.mark.parametrize("service", ["worker", "coordinator"])
def test_services_that_start_without_descriptors_are_told_in_a_line(tmp_path: Path, service: str) -> None:
    command = ["prlimit", "--nofile=40:", sys.executable, "-m", "headrace", service]
    command += ["--socket-dir", str(tmp_path)] if service == "worker" else ["--store", "memory://"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "out_of_descriptors" in done.stderr and "ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr


# --- memory ------------------------------------------------------------------------------------------------------------


def test_a_worker_without_memory_for_a_slab_serves_when_there_is_some_again(tmp_path: Path, dataset: str) -> None:
    """RLIMIT_FSIZE bounds what a memfd may be grown to, as a small memory limit would, and nothing else that a worker does."""
    with Cluster(tmp_path, workers=1) as fleet:
        worker = fleet.workers[0].running
        timer = limited_for(SHORT_S, worker.pid, resource.RLIMIT_FSIZE, 4096)
        try:
            with capture_logs() as logs:
                seen = train(open_job(fleet, "small", dataset), transport="shm")
        finally:
            timer.join()
        assert sorted(seen.ids) == list(range(SAMPLES))
        told = [str(line["error"]) for line in logs if line["event"] == "worker_refuses"]
        assert told and "no memory for a slab" in told[0]
        assert worker.alive
        assert_no_trace(fleet.logs().items())


def test_a_worker_whose_address_space_is_full(tmp_path: Path, dataset: str) -> None:
    """Slabs of 36 MiB where only 16 are left to map: the rank waits, and is told why; then all goes on."""
    with Cluster(tmp_path, workers=1) as fleet:
        train(open_job(fleet, "warm", dataset))  # what is loaded once is loaded
        worker = fleet.workers[0].running
        status = dict(line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
        size = int(status["VmSize"].split()[0]) * 1024
        timer = limited_for(SHORT_S, worker.pid, resource.RLIMIT_AS, size + (16 << 20))
        try:
            with capture_logs() as logs:
                from headrace.core.pipeline_spec import PipelineSpec, Resize

                job = open_job(fleet, "large", dataset, pipeline=PipelineSpec(ops=(Resize((700, 700)),)))
                taken = [batch.sample_ids[batch.mask].tolist() for batch in job.stream(epochs=1, transport="shm")]
        finally:
            timer.join()
        assert sorted(each for ids in taken for each in ids) == list(range(SAMPLES))
        assert [line for line in logs if line["event"] == "worker_refuses" and "no memory for a slab" in str(line["error"])]
        assert worker.alive


def test_a_trainer_without_memory_to_receive_into_is_told(tmp_path: Path, dataset: str) -> None:
    with Cluster(tmp_path, workers=1) as fleet:
        job = open_job(fleet, "nowhere", dataset)
        with limited(os.getpid(), resource.RLIMIT_FSIZE, 4096), pytest.raises(TransportUnavailable, match="to fetch into"):
            train(job, transport="grpc")
        assert sorted(train(job, transport="grpc").ids) == list(range(SAMPLES))


# --- room for the store ------------------------------------------------------------------------------------------------


def test_a_store_whose_file_cannot_grow(tmp_path: Path, dataset: str) -> None:
    """It ends rather than answer what it has not written; training goes on, and all is well once it is back with room."""
    with Cluster(tmp_path, workers=1) as fleet:
        _fill_and_free(fleet, dataset, lambda: _limit_file(fleet.store, fleet.store_dir), lambda: None)


def test_a_store_on_a_full_file_system(tmp_path: Path, dataset: str) -> None:
    place = tmp_path / "store"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False).returncode:
        pytest.skip("not allowed to mount here: a small disk cannot be made")
    ballast = place / "ballast"
    try:
        with Cluster(tmp_path, workers=1) as fleet:

            def fill() -> None:
                with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(b"x" * 4096)

            _fill_and_free(fleet, dataset, fill, ballast.unlink)
    finally:
        subprocess.run(["umount", place], check=True)


def _limit_file(store: Member, directory: Path) -> None:
    (aof,) = (directory / "appendonlydir").glob("*.incr.aof")
    resource.prlimit(store.running.pid, resource.RLIMIT_FSIZE, (aof.stat().st_size + 100, resource.RLIM_INFINITY))


def _fill_and_free(fleet: Cluster, dataset: str, fill: object, free: object) -> None:
    assert callable(fill) and callable(free)
    job = open_job(fleet, "fills", dataset)
    seen = Seen()
    with job.stream(epochs=1, wait_deadline_s=40) as stream:
        for batch in stream:
            seen.take(batch)
            if seen.batches == 3:
                fill()
                until(lambda: not fleet.store.running.alive, "the store has ended")
            if seen.batches == 12:
                free()
                fleet.store.start()
                fleet.store.wait_ready()
                stream.commit(deadline_s=30)
    assert sorted(seen.ids) == list(range(SAMPLES))
    assert sorted(train(open_job(fleet, "after", dataset)).ids) == list(range(SAMPLES))
    assert_no_trace((name, text) for name, text in fleet.logs().items() if name != "store")
