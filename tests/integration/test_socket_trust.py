"""Sockets and memory of other processes: what another user could have planted, or could take away while it is read."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client.transports.local import LocalLink
from headrace.client.transports.mapping import map_slab
from headrace.core.errors import ConfigInvalid, PeerGone, ProtocolMismatch
from headrace.telemetry.socket_trust import VARIABLE, distrusted, trusted_owners
from headrace.wire import messages
from headrace.wire.messages import Hello, Welcome

HELLO = Hello(messages.PROTOCOL, "j", 1, 0, "n", 0, 4, (), "the-token")
SHRINK, FUTURE_WRITE = 2, 16
OTHER = 65534  # nobody
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(path))
    made.listen()
    return made


def test_a_directory_of_our_own_is_used(tmp_path: Path) -> None:
    with listening(tmp_path / "s") as server:
        link = LocalLink(1, "w", str(tmp_path / "s"), HELLO)
        peer, _ = server.accept()
        assert messages.decode(peer.recv(1000)) == HELLO
        link.close()
        peer.close()


def test_a_directory_that_others_may_write_to_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with listening(tmp_path / "s") as server:
        with pytest.raises(PermissionError, match="others may write"):
            LocalLink(1, "w", str(tmp_path / "s"), HELLO)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()  # nothing was told
    tmp_path.chmod(0o1777)
    assert distrusted(str(tmp_path), trusted_owners()) == "", (
        "where only owners may remove, as in /tmp, nobody can replace a socket"
    )


def test_a_directory_behind_a_link_is_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with listening(tmp_path / "real" / "s"), pytest.raises(PermissionError, match="symbolic link"):
        LocalLink(1, "w", str(tmp_path / "link" / "s"), HELLO)


@needs_root
def test_a_directory_of_another_user_is_not_unless_he_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    os.chown(planted, OTHER, OTHER)
    with listening(planted / "s"):
        with pytest.raises(PermissionError, match=str(OTHER)):
            LocalLink(1, "w", str(planted / "s"), HELLO)
        monkeypatch.setenv(VARIABLE, f"7, {OTHER}")
        LocalLink(1, "w", str(planted / "s"), HELLO).close()


SERVE_AS = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(sys.argv[1]); s.listen(); print("ready", flush=True)
peer, _ = s.accept(); print(len(peer.recv(1000)), flush=True)
"""


@needs_root
def test_a_process_of_another_user_hears_no_token(tmp_path: Path) -> None:
    """In a directory like /tmp, where anyone may put a socket."""
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        folder.chmod(0o755)
    tmp_path.chmod(0o1777)
    command = [sys.executable, "-c", SERVE_AS, str(tmp_path / "s"), str(OTHER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with pytest.raises(PermissionError, match=f"runs as user {OTHER}"):
            LocalLink(1, "w", str(tmp_path / "s"), HELLO)
        assert server.stdout.readline() == "0\n"


@pytest.mark.parametrize("value", ["x", "-1", "1;2", "9" * 30])
def test_a_malformed_list_of_owners_is_told(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ConfigInvalid, match=VARIABLE):
        trusted_owners()


def test_a_worker_does_not_start_in_a_directory_that_others_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    command = [sys.executable, "-m", "headrace", "worker", "--socket-dir", str(tmp_path), "--grpc-address", "127.0.0.1:0"]
    done = subprocess.run([*command, "--metrics-address", ""], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "others may write" in done.stderr


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(pages: int = 8, *, seals: int = SHRINK | FUTURE_WRITE, allocate: bool = True) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, pages * mmap.PAGESIZE)
    if allocate:
        os.posix_fallocate(fd, 0, pages * mmap.PAGESIZE)
    fcntl.fcntl(fd, 1033, seals)
    return fd


def mapped(fd: int, slots: int = 2, slot_bytes: int = 4 * mmap.PAGESIZE) -> None:
    slab = map_slab(fd, 1, slots=slots, slot_bytes=slot_bytes, generation=1, transport="shm", who="w", foreign=True)
    assert slab.close(0)


def test_sealed_memory_is_mapped() -> None:
    fd = memory()
    mapped(fd)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"seals": 0}, "shrinking"),
        ({"seals": FUTURE_WRITE}, "shrinking"),
        ({"seals": SHRINK}, "writing"),
        ({"allocate": False}, "memory for 0"),
        ({"pages": 7}, "bytes"),
    ],
)
def test_memory_that_could_go_while_it_is_read_is_not(options: dict[str, int], word: str) -> None:
    fd = memory(**options)  # type: ignore[arg-type]
    with pytest.raises(ProtocolMismatch, match=word):
        mapped(fd)
    os.close(fd)


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 16384), (2, 100), (2, 16385), (2**40, 2**30), (2**63, 2**63)])
def test_sizes_that_cannot_be(slots: int, slot_bytes: int) -> None:
    fd = memory()
    with pytest.raises(ProtocolMismatch):
        mapped(fd, slots, slot_bytes)
    os.close(fd)


def test_a_file_or_a_pipe_is_no_memory(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 16))
    with (tmp_path / "f").open("rb") as file, pytest.raises(ProtocolMismatch):
        mapped(file.fileno())
    read, write = os.pipe()
    with pytest.raises(ProtocolMismatch):
        mapped(read)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("count", [2, 8, 9, 250])
def test_surplus_descriptors_are_closed(tmp_path: Path, count: int) -> None:
    with listening(tmp_path / "s") as server:
        link = LocalLink(1, "w", str(tmp_path / "s"), HELLO)
        peer, _ = server.accept()
        before = len(list(Path("/proc/self/fd").iterdir()))
        fd = memory()
        welcome = messages.encode(Welcome(messages.PROTOCOL, "w", 1, 2, 4 * mmap.PAGESIZE))
        socket.send_fds(peer, [welcome], [fd] * count)
        os.close(fd)
        with pytest.raises(ProtocolMismatch):
            list(link.receive())
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        link.close()
        peer.close()


def test_a_message_that_is_too_long_ends_the_link(tmp_path: Path) -> None:
    with listening(tmp_path / "s") as server:
        link = LocalLink(1, "w", str(tmp_path / "s"), HELLO)
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            peer.send(b"\x03" + b" " * (messages.MAX_CONTROL_BYTES + 10))
        except OSError:
            pytest.skip("this kernel's buffers are smaller than the longest message")
        with pytest.raises((ProtocolMismatch, PeerGone)):
            list(link.receive())
        link.close()
        peer.close()


READ_AFTER = """
import os, sys, mmap, fcntl
fd = os.memfd_create("x", os.MFD_ALLOW_SEALING); os.ftruncate(fd, 1 << 16); os.posix_fallocate(fd, 0, 1 << 16)
own = mmap.mmap(fd, 1 << 16); view = mmap.mmap(fd, 1 << 16, prot=mmap.PROT_READ)
if sys.argv[1] == "sealed": fcntl.fcntl(fd, 1033, 2 | 16)
try: os.ftruncate(fd, 0)
except PermissionError: pass
print(view[40000])
"""


@pytest.mark.parametrize(("seal", "status"), [("unsealed", -signal.SIGBUS), ("sealed", 0)])
def test_the_seals_are_what_keeps_a_reader_alive(seal: str, status: int) -> None:
    """The danger is real: the same program dies without them."""
    done = subprocess.run([sys.executable, "-c", READ_AFTER, seal], capture_output=True, timeout=60, check=False)
    assert done.returncode == status
