"""A worker and a trainer that run as different users of one machine, as in two pods: they meet in a directory of a group's."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.client.transports.local import LocalLink
from headrace.core.errors import ConfigInvalid
from headrace.telemetry.socket_trust import VARIABLE, explained
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.processes import free_address, start_program, start_service
from headrace.wire import messages
from headrace.wire.messages import Hello
from headrace.worker import socket_dir
from headrace.worker.unix_socket import BoundSocket

WORKER, TRAINER, GROUP = 61001, 61002, 61050
HELLO = Hello(messages.PROTOCOL, "j", 1, 0, "n", 0, 4, (), "the-token")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as other users")

# Imports first: another user may not be able to read this Python.
BEFORE = """
import os, sys
from pathlib import Path
from headrace.client.transports.local import LocalLink
from headrace.core.errors import HeadraceError
from headrace.wire import messages
from headrace.worker import socket_dir
from headrace.worker.unix_socket import BoundSocket
path, user, groups = Path(sys.argv[1]), int(sys.argv[2]), [int(g) for g in sys.argv[3].split(",") if g]
os.setgroups(groups); os.setgid(user); os.setuid(user)
"""
SERVE = """
try: mode = socket_dir.prepare(path.parent, 61050)
except HeadraceError as error: sys.exit(str(error))
import select
bound = BoundSocket(path, mode=mode); print("ready", flush=True)
select.select([bound.socket], [], [], 60)
peer, _ = bound.socket.accept(); peer.setblocking(True)
print(messages.decode(peer.recv(5000)).token, flush=True)
"""
CONNECT = """
try: link = LocalLink(1, "w", str(path), messages.Hello(messages.PROTOCOL, "j", 1, 0, "n", 0, 4, (), "the-token"))
except OSError as error: sys.exit(error.strerror)
print("connected")
"""


def run_as(code: str, path: Path, user: int, groups: list[int], owners: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEFORE + code, str(path), str(user), ",".join(map(str, groups))]
    environment = {**os.environ, VARIABLE: owners}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def told(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(status, last line of whatever it said)."""
    out, err = process.communicate(timeout=90)
    return process.returncode, (out + err).strip().splitlines()[-1]


@pytest.fixture
def shared() -> Iterator[Path]:
    """What a volume looks like to both pods: emptyDir with fsGroup is root's, of that group, and all may write to it."""
    made = Path(tempfile.mkdtemp(prefix="hr-"))
    if os.geteuid() == 0:
        os.chown(made, 0, GROUP)
    made.chmod(0o2777)
    yield made
    shutil.rmtree(made)


@needs_root
def test_a_trainer_of_the_group_is_served_and_another_is_told_what_to_change(shared: Path) -> None:
    path = shared / "sockets" / "w.sock"
    with run_as(SERVE, path, WORKER, [GROUP]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", server.stderr and server.stderr.read()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2750
        assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (GROUP, 0o660)

        status, text = told(run_as(CONNECT, path, TRAINER, [TRAINER], str(WORKER)))
        assert status == 1
        assert f"user {TRAINER} with groups {TRAINER} may not enter {path.parent}" in text
        assert f"supplementalGroups: [{GROUP}]" in text

        status, text = told(run_as(CONNECT, path, TRAINER, [GROUP]))
        assert status == 1, "the group lets him in, and he trusts nobody"
        assert f"belongs to user {WORKER}, who is neither root nor us nor named in {VARIABLE}" in text

        assert told(run_as(CONNECT, path, TRAINER, [GROUP], str(WORKER))) == (0, "connected")
        assert server.stdout.readline() == "the-token\n"


@needs_root
def test_a_trainer_of_the_group_cannot_plant_a_socket(shared: Path) -> None:
    path = shared / "sockets" / "w.sock"
    with run_as(SERVE, path, WORKER, [GROUP]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        for code in ("os.unlink(path)", "path.parent.joinpath('mine').touch()", "path.rename(path.parent / 'other')"):
            status, text = told(run_as(code, path, TRAINER, [GROUP]))
            assert status == 1
            assert "PermissionError" in text
        server.kill()


@needs_root
def test_a_worker_outside_the_group_is_told_so(shared: Path) -> None:
    shared.chmod(0o777)
    status, text = told(run_as(SERVE, shared / "sockets" / "w.sock", WORKER, []))
    assert status == 1
    assert f"must be in that group (supplementalGroups in Kubernetes; its groups are {WORKER})" in text


@needs_root
def test_a_directory_that_was_made_for_the_worker_is_used(shared: Path) -> None:
    """As the chart's prepare-sockets does it on a node."""
    made = shared / "made"
    subprocess.run(["install", "-d", "-o", str(WORKER), "-g", str(GROUP), "-m", "2750", made], check=True, timeout=60)
    with run_as(SERVE, made / "w.sock", WORKER, [GROUP]) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert told(run_as(CONNECT, made / "w.sock", TRAINER, [GROUP], str(WORKER))) == (0, "connected")


# A whole worker and a whole trainer, of two users: what they load late is loaded early, see BEFORE.
WORK = """
import os, sys
from headrace.worker import app
from headrace.worker.engines import registry
registry.create("cpu", 1).close()
os.setgroups([61050]); os.setgid(61001); os.setuid(61001)
app.main(sys.argv[1:])
"""
TRAIN = """
import importlib, os, pkgutil, sys
import headrace, headrace.client
for module in pkgutil.walk_packages(headrace.client.__path__, "headrace.client."):
    if "iterators" not in module.name: importlib.import_module(module.name)
os.setgroups([int(sys.argv[1])]); os.setgid(61002); os.setuid(61002)
with headrace.connect(sys.argv[2]) as client:
    job = client.job("j" + sys.argv[1], dataset=sys.argv[3], batch_size=16)
with job.stream(epochs=1, transport="shm") as stream:
    for epoch in stream.epochs():
        seen = [int(batch.pixels.sum()) for batch in stream]
print("saw", len(seen), all(seen))
"""


@needs_root
def test_batches_pass_between_users_through_memory(shared: Path) -> None:
    """The descriptor of the worker's memory crosses to another user, who maps it; one outside the group is told why not."""
    make_demo_dataset(shared / "dataset", samples=32, shards=1)
    for path in (shared / "dataset", *(shared / "dataset").iterdir()):
        path.chmod(0o755)
    grpc, admin = free_address(), free_address()
    arguments = ["coordinator", "--store", "memory://", "--grpc-address", grpc, "--admin-address", admin]
    coordinator = start_service("coordinator", arguments, shared / "coordinator.log")
    flags = ["--coordinator", grpc, "--grpc-address", "127.0.0.1:0", "--metrics-address", ""]
    flags += ["--socket-dir", str(shared / "sockets"), "--socket-group", str(GROUP)]
    worker = start_program("worker", [sys.executable, "-c", WORK, *flags], shared / "worker.log")
    try:
        worker.wait_until(lambda: "registered" in worker.log.read_text(), "registered", 60)
        environment = {**os.environ, VARIABLE: str(WORKER)}
        for group, wanted in ((GROUP, "saw 2 True"), (TRAINER, f"supplementalGroups: [{GROUP}] in Kubernetes")):
            command = [sys.executable, "-c", TRAIN, str(group), grpc, str(shared / "dataset")]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
            assert wanted in done.stdout + done.stderr, done.stderr
            assert (done.returncode == 0) == (group == GROUP)
    finally:
        worker.stop()
        coordinator.stop()


def test_without_a_group_all_is_as_before(tmp_path: Path) -> None:
    assert socket_dir.prepare(tmp_path / "s", None) == 0o600
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_a_directory_of_our_own_is_opened_to_our_group(tmp_path: Path) -> None:
    """What the first start made for the owner alone is opened by the second."""
    socket_dir.prepare(tmp_path / "s", None)
    assert socket_dir.prepare(tmp_path / "s", os.getegid()) == 0o660
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o2750
    bound = BoundSocket(tmp_path / "s" / "w.sock", mode=0o660)
    LocalLink(1, "w", str(tmp_path / "s" / "w.sock"), HELLO).close()
    bound.close()


@needs_root
def test_a_directory_of_another_users_with_another_group_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "theirs"
    made.mkdir(mode=0o755)
    os.chown(made, WORKER, 0)
    with pytest.raises(ConfigInvalid, match="chgrp"):
        socket_dir.prepare(made, GROUP)


def test_a_directory_that_is_not_mounted_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run" / "sockets" / "w.sock"
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/run is not there: a container must mount"):
        LocalLink(1, "w", str(path), HELLO)


def test_an_error_of_another_kind_stays_what_it_is() -> None:
    error = ConnectionRefusedError(111, "Connection refused")
    assert explained("/tmp/x", error) is error
