"""The bad link does to a connection what it says, to the byte, and nothing else; healed, it passes on what it held back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from headrace.telemetry.addresses import split_address
from headrace.testing.proxy import Proxy

SOON_S = 20.0
A_WHILE_S = 0.3


class Echo:
    """Sends back what it gets, and closes when its peer has; keeps its connections for a look."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 16):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def link(echo: Echo, seed: int) -> Iterator[Proxy]:
    with Proxy(echo.address, seed=seed) as made:
        yield made


def dial(link: Proxy) -> socket.socket:
    return socket.create_connection(split_address(link.address), timeout=SOON_S)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


def silent(connection: socket.socket) -> bool:
    """Whether nothing comes for a while, not even an end."""
    connection.settimeout(A_WHILE_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SOON_S)
    return False


def test_a_good_link_passes_bytes_and_the_end(link: Proxy) -> None:
    data = bytes(range(256)) * 40_000
    with dial(link) as connection:
        threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))).start()
        assert read(connection, len(data)) == data
        assert connection.recv(1) == b""
    assert (link.counts.connections, link.counts.bytes_up, link.counts.bytes_down) == (1, len(data), len(data))
    assert link.counts.torn == link.counts.cut == 0


def test_a_slow_link_is_late_and_in_order(link: Proxy) -> None:
    link.set(delay_s=0.1, jitter_s=0.2)
    with dial(link) as connection:
        begun = time.monotonic()
        for number in range(20):
            connection.sendall(b"%03d" % number)
            time.sleep(0.01)
        assert read(connection, 60) == b"".join(b"%03d" % number for number in range(20))
        assert time.monotonic() - begun > 0.2, "both ways"


def test_a_narrow_link_takes_its_time(link: Proxy) -> None:
    link.set(bytes_per_s=100_000)
    with dial(link) as connection:
        begun = time.monotonic()
        connection.sendall(b"x" * 30_000)
        assert read(connection, 30_000) == b"x" * 30_000
        assert time.monotonic() - begun > 0.3
        link.heal()
        connection.sendall(b"y" * 300_000)
        assert read(connection, 300_000) == b"y" * 300_000


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_half_open_link_holds_back_one_way_and_tells_no_end(link: Proxy, echo: Echo, way: str) -> None:
    with dial(link) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        link.half_open(way)  # type: ignore[arg-type]
        connection.sendall(b"b")
        assert silent(connection)
        passed = link.counts.bytes_up
        assert passed == (1 if way == "up" else 2)
        link.heal()
        assert read(connection, 1) == b"b"


@pytest.mark.parametrize("orderly", [True, False])
def test_a_peer_that_dies_behind_a_half_open_link_is_not_heard_of(link: Proxy, echo: Echo, orderly: bool) -> None:
    with dial(link) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        link.half_open("down")
        (peer,) = echo.connections
        if not orderly:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.shutdown(socket.SHUT_RDWR) if orderly else peer.close()
        assert silent(connection)
        connection.sendall(b"more")
        assert silent(connection)


def test_a_black_hole_takes_connections_and_answers_nothing(link: Proxy, echo: Echo) -> None:
    with dial(link) as old:
        old.sendall(b"a")
        assert read(old, 1) == b"a"
        link.blackhole()
        with dial(link) as new:
            old.sendall(b"b")
            new.sendall(b"c")
            assert silent(old) and silent(new)
            assert len(echo.connections) == 1
            link.heal()
            assert (read(old, 1), read(new, 1)) == (b"b", b"c")


def test_cut_is_an_end_and_reset_an_error(link: Proxy) -> None:
    with dial(link) as first, dial(link) as second:
        for connection in (first, second):
            connection.sendall(b"a")
            assert read(connection, 1) == b"a"
        assert link.cut() == 2
        assert first.recv(1) == second.recv(1) == b""
    with dial(link) as third:
        third.sendall(b"a")
        assert read(third, 1) == b"a"
        assert link.reset() == 1
        with pytest.raises(ConnectionResetError):
            third.recv(1)
    assert (link.counts.cut, link.counts.torn) == (2, 1)


def test_what_one_side_suffers_the_other_does(link: Proxy, echo: Echo) -> None:
    with dial(link) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        (peer,) = echo.connections
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        threading.Timer(0.2, lambda: connection.sendall(b"b")).start()  # wakes the echo's thread, which holds the socket
        peer.close()
        with pytest.raises(ConnectionResetError):
            while connection.recv(1):
                pass


def test_a_refusing_link_tears_new_connections_only(link: Proxy) -> None:
    with dial(link) as old:
        old.sendall(b"a")
        assert read(old, 1) == b"a"
        link.set(refuse=True)
        with pytest.raises(OSError), dial(link) as new:
            new.recv(1)
            raise ConnectionAbortedError
        old.sendall(b"b")
        assert read(old, 1) == b"b"


def test_a_target_that_is_down_tears_and_one_that_comes_back_is_reached(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with Proxy(address) as link:
        with pytest.raises(ConnectionResetError), dial(link) as connection:
            connection.recv(1)
        with socket.create_server(split_address(address)) as back, dial(link):
            back.settimeout(SOON_S)
            back.accept()[0].close()


def _torn_after(echo: Echo, seed: int) -> list[int]:
    """How many bytes each of five connections passed until it was torn."""
    found = []
    with Proxy(echo.address, seed=seed) as link:
        link.set(reset_after_bytes=2_000, down=False)  # one way, so that the order of events does not matter
        for _ in range(5):
            before = link.counts.bytes_up
            with dial(link) as connection, pytest.raises(OSError):
                while True:
                    connection.sendall(b"x" * 100)
                    time.sleep(0.001)
            found.append(link.counts.bytes_up - before)
        assert link.counts.torn == 5
    return found


def test_random_resets_are_those_of_the_seed(echo: Echo, seed: int) -> None:
    first = _torn_after(echo, seed)
    assert len(set(first)) > 1
    assert _torn_after(echo, seed) == first
    assert _torn_after(echo, seed + 1) != first


def test_nothing_is_left_after_close(echo: Echo) -> None:
    process = psutil.Process()
    before = process.num_fds(), threading.active_count()
    link = Proxy(echo.address)
    link.blackhole()
    with dial(link), dial(link):
        link.close()
        link.close()
    assert (process.num_fds(), threading.active_count()) == before
