"""Every gRPC channel against every fault of TLS: it does not get through, and what it says names the reason and the remedy."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import structlog
from prometheus_client import CollectorRegistry

from headrace.client.fetch_stream import Stream
from headrace.client.rpc import CoordinatorRpc
from headrace.core.errors import ConfigInvalid, CoordinatorUnavailable, HeadraceError, PeerGone, ProtocolMismatch
from headrace.core.job import Endpoint
from headrace.testing.certificates import Authority, mount
from headrace.testing.null_producer import NullProducer
from headrace.wire.calls import Calls
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.messages import PROTOCOL, Hello, Message, Ready
from headrace.wire.tls import ClientTls, ServerTls, TlsFiles, open_channel
from headrace.worker.engines import registry
from headrace.worker.lease_loop import Identity, LeaseLoop
from headrace.worker.producer import Limits, Producer
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_grpc import GrpcServer
from headrace.worker.sources.sharded import open_source
from headrace.worker.stats import WorkerStats
from headrace.worker.tools import Toolbox
from headrace.worker.work import Sessions

DEADLINE_S = 20.0
SHAPE = (4, 33, 31, 3)
OURS, OTHERS = Authority("ours"), Authority("others")
GOOD = {**OURS.issue()}


@dataclass(frozen=True, slots=True)
class Fault:
    """server, client: files of each, None without TLS. words: what the error must say; empty: it gets through."""

    words: str
    server: dict[str, bytes] | None
    client: dict[str, bytes] | None
    mutual: bool = False
    server_name: str = ""


def _ca_only(authority: Authority) -> dict[str, bytes]:
    return {"ca.crt": authority.pem}


FAULTS = {
    "none": Fault("", GOOD, _ca_only(OURS)),
    "none_mutual": Fault("", GOOD, OURS.issue(), mutual=True),
    "none_by_another_name": Fault("", OURS.issue(["worker.fleet"]), _ca_only(OURS), server_name="worker.fleet"),
    "plaintext_to_tls": Fault("the server speaks TLS and this side does not: set tls_ca", GOOD, None),
    "plaintext_to_mutual_tls": Fault("the server speaks TLS and this side does not: set tls_ca", GOOD, None, mutual=True),
    "tls_to_plaintext": Fault("does not speak TLS: leave tls_ca away", None, _ca_only(OURS)),
    "another_authority": Fault("is not signed by", GOOD, _ca_only(OTHERS)),
    "expired": Fault("is not valid now: renew it", OURS.issue(ends_in_s=-60), _ca_only(OURS)),
    "another_name": Fault("is not made out for 127.0.0.1", OURS.issue(["elsewhere.example"]), _ca_only(OURS)),
    "no_client_certificate": Fault("demands a client certificate: set tls_cert", GOOD, _ca_only(OURS), mutual=True),
    "client_of_others": Fault("refuses the client certificate in", GOOD, {**OTHERS.issue(), "ca.crt": OURS.pem}, mutual=True),
    "client_expired": Fault("expired at", GOOD, OURS.issue(ends_in_s=-60), mutual=True),
}


@contextmanager
def serving(fault: Fault) -> Iterator[str]:
    """A gRPC server that knows no call, at the address: what gets through is answered UNIMPLEMENTED."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        if fault.server is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (fault.server["tls.key"], fault.server["tls.crt"])
            root = OURS.pem if fault.mutual else None
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], root, fault.mutual))
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(DEADLINE_S)


def calls_of(fault: Fault, directory: Path) -> Calls:
    if fault.client is None:
        return Calls()
    files = mount(directory, fault.client)
    own = files if "tls.crt" in fault.client else TlsFiles(ca=files.ca)
    return Calls(ClientTls(own, fault.server_name))


def by_trainer(address: str, calls: Calls) -> HeadraceError:
    """A trainer calls a coordinator."""
    try:
        rpc = CoordinatorRpc(address, calls)
    except HeadraceError as error:
        return error
    try:
        rpc.call("OpenJob", pb.OpenJobRequest())
    except HeadraceError as error:
        return error
    finally:
        rpc.close()
    raise AssertionError("a server without calls answered one")


def by_fetcher(address: str, calls: Calls) -> HeadraceError:
    """A trainer's fetcher calls a worker."""

    async def ignore(_: Stream, message: Message) -> None:
        raise AssertionError(message)

    async def run() -> HeadraceError:
        return await Stream(1, address, "w0", Hello(PROTOCOL, "job", 1, 0, "n", 0, 3), ignore, calls=calls).run()

    return asyncio.run(run())


@asynccontextmanager
async def heartbeats(address: str, calls: Calls) -> AsyncIterator[LeaseLoop]:
    """A worker's heartbeats."""
    engine, sessions, stats = registry.create("null", 1), Sessions(), WorkerStats(CollectorRegistry())
    producer = Producer("w0", engine.fingerprint, sessions, stats, Limits(1, 1 << 20, 10.0))
    identity = Identity(Endpoint("w0", "i", "node", "127.0.0.1:1", ""), engine, 1)
    toolbox = Toolbox(engine, open_source)
    loop = LeaseLoop([address], identity, sessions=sessions, producer=producer, toolbox=toolbox, stats=stats, calls=calls)
    try:
        yield loop
    finally:
        await loop.close()
        await toolbox.close()
        producer.close()
        engine.close()


async def failure_of(loop: LeaseLoop) -> HeadraceError:
    """What a heartbeat's failure is told by, in the log; the first may time out on a slow machine."""
    for _ in range(5):
        loop._tell_from_s = 0.0
        with structlog.testing.capture_logs() as logged:
            assert not await loop.beat()
            assert loop._telling is not None
            await loop._telling
        told = next(line for line in logged if line["event"] == "heartbeat_unanswered")
        if told["error"].code != "wait_timeout":
            break
    return type(told["error"])(f"{told['error'].message}; {told['why']}")


def by_worker(address: str, calls: Calls) -> HeadraceError:
    """A worker calls a coordinator."""

    async def run() -> HeadraceError:
        async with heartbeats(address, calls) as loop:
            return await failure_of(loop)

    return asyncio.run(run())


def reached(error: HeadraceError) -> bool:
    """True where the server refused the call itself. gRPC words it its own way where that comes before the first write ends."""
    return isinstance(error, ProtocolMismatch) or "UNIMPLEMENTED" in str(error) or "Internal error from Core" in str(error)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("channel", [by_trainer, by_fetcher, by_worker], ids=lambda channel: channel.__name__)
def test_a_fault_of_tls_is_named(channel: object, fault: str, tmp_path: Path) -> None:
    given = FAULTS[fault]
    with serving(given) as address:
        error = channel(address, calls_of(given, tmp_path))  # type: ignore[operator]
    if not given.words:
        assert reached(error), error
    else:
        assert given.words in error.message, error
        assert isinstance(error, (PeerGone, ConfigInvalid) if channel is by_fetcher else HeadraceError)


def test_a_server_that_says_nothing_costs_no_more_than_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        calls = calls_of(FAULTS["none"], tmp_path)
        why = calls.explain(address, CoordinatorUnavailable("?"))
        assert "does not answer to TLS" in why
        assert Calls().explain(address, CoordinatorUnavailable("?")) == ""


def test_what_has_nothing_to_do_with_tls_is_not_explained_by_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    calls = calls_of(FAULTS["none"], tmp_path)
    assert calls.explain(address, CoordinatorUnavailable("?")) == ""
    assert calls.explain("not an address", CoordinatorUnavailable("?")) == ""
    with serving(FAULTS["another_authority"]) as up:
        assert Calls().explain(up, ProtocolMismatch("?")) == ""


def test_a_trainers_channel_follows_its_certificate(tmp_path: Path) -> None:
    """An expired certificate is seen by whoever connects anew; with a new one in its place the next call gets through."""
    server, mutual = FAULTS["none_mutual"], {**OTHERS.issue(), "ca.crt": OURS.pem}
    with serving(server) as address:
        files = mount(tmp_path, mutual)
        rpc = CoordinatorRpc(address, Calls(ClientTls(files)))
        with pytest.raises(CoordinatorUnavailable, match="refuses the client certificate"):
            rpc.call("OpenJob", pb.OpenJobRequest())
        mount(tmp_path, OURS.issue())
        with pytest.raises(ProtocolMismatch, match="no such call"):
            rpc.call("OpenJob", pb.OpenJobRequest())
        mount(tmp_path, OURS.issue(ends_in_s=-60))  # refused: the channel that is up goes on
        with pytest.raises(ProtocolMismatch, match="no such call"):
            rpc.call("OpenJob", pb.OpenJobRequest())
        rpc.close()


async def test_a_workers_channel_follows_its_certificate(tmp_path: Path) -> None:
    with serving(FAULTS["none_mutual"]) as address:
        files = mount(tmp_path, {**OTHERS.issue(), "ca.crt": OURS.pem})
        async with heartbeats(address, Calls(ClientTls(files))) as loop:
            assert "refuses the client certificate" in str(await failure_of(loop))
            mount(tmp_path, OURS.issue())
            assert (await failure_of(loop)).code == "protocol_mismatch"  # the server has no such call: it was reached


def _unusable() -> dict[str, dict[str, bytes]]:
    good = OURS.issue()
    return {
        "expired": OURS.issue(ends_in_s=-60),
        "another_key": {**good, "tls.key": OURS.issue()["tls.key"]},
        "half_written": {**good, "tls.crt": good["tls.crt"][: len(good["tls.crt"]) // 2]},
        "no_authority": {**good, "ca.crt": b"not yet"},
        "key_missing": {name: data for name, data in good.items() if name != "tls.key"},
    }


REFUSED = _unusable()


@pytest.mark.parametrize("bad", REFUSED)
@pytest.mark.parametrize("channel", [by_trainer, by_fetcher, by_worker], ids=lambda channel: channel.__name__)
def test_new_channels_go_by_the_certificate_before_while_files_are_refused(channel: object, bad: str, tmp_path: Path) -> None:
    fault = FAULTS["none_mutual"]
    with serving(fault) as address:
        calls = calls_of(fault, tmp_path)
        for files in (fault.client, REFUSED[bad], REFUSED[bad], OURS.issue()):
            assert files is not None
            mount(tmp_path, files)
            for _ in range(2):
                error = channel(address, calls)  # type: ignore[operator]
                assert reached(error), error


@pytest.mark.parametrize("bad", REFUSED)
async def test_heartbeats_go_on_while_files_are_refused(bad: str, tmp_path: Path) -> None:
    """A worker whose heartbeats end loses its lanes 3 s later: one bad file must not cost all of a fleet's."""
    fault = FAULTS["none_mutual"]
    with serving(fault) as address:
        async with heartbeats(address, calls_of(fault, tmp_path)) as loop:
            assert (await failure_of(loop)).code == "protocol_mismatch"
            mount(tmp_path, REFUSED[bad])
            for _ in range(4):
                assert (await failure_of(loop)).code == "protocol_mismatch"
            mount(tmp_path, OURS.issue())
            assert (await failure_of(loop)).code == "protocol_mismatch"


@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
async def test_streams_go_on_while_the_server_takes_a_new_certificate(tmp_path: Path, mutual: bool) -> None:
    """The authority changes, too: who still has the old one is served on, and cannot connect anew."""
    old, new = Authority("old"), Authority("new")
    told: list[str] = []
    tls = ServerTls(mount(tmp_path / "server", old.issue()), require_client=mutual, on_reload=told.append)
    register = RankRegister(NullProducer(SHAPE), worker="w0")
    server = GrpcServer(register, "127.0.0.1:0", credentials=tls.grpc_credentials())
    await server.start()
    before, after = (Calls(ClientTls(mount(tmp_path / who, ca.issue()))) for who, ca in (("old", old), ("new", new)))
    address = f"127.0.0.1:{server.port}"
    try:
        async with batches_of(address, before, rank=0) as stream:
            assert [await stream.taken(index) for index in range(5)] == [0, 1, 2, 3, 4]
            mount(tmp_path / "server", new.issue())
            async with batches_of(address, after, rank=1) as newer:
                assert await newer.taken(0) == 0
                assert [await stream.taken(index) for index in range(5, 30)] == list(range(5, 30))
                mount(tmp_path / "server", {**new.issue(), "tls.key": b"half written"})
                async with batches_of(address, after, rank=2) as third:
                    assert await third.taken(0) == 0
            async with batches_of(address, before, rank=3) as late:
                assert "is not signed by" in (await late.ended()).message
            assert await stream.taken(30) == 30
            bare = Calls(ClientTls(TlsFiles(ca=str(tmp_path / "new/ca.crt"))))
            async with batches_of(address, bare, rank=4) as without:
                if mutual:
                    assert "demands a client certificate" in (await without.ended()).message
                else:
                    assert await without.taken(0) == 0
    finally:
        await server.close(0.0)
    assert told == ["ok", "refused"]


class Batches:
    """A fetcher's stream whose READY messages are noted."""

    def __init__(self, address: str, calls: Calls, rank: int) -> None:
        hello = Hello(PROTOCOL, "job", 0, rank, "n", 0, 3)
        self._stream = Stream(1, address, "w0", hello, self._deliver, calls=calls)
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        self._task = asyncio.create_task(self._stream.run())

    async def _deliver(self, _: Stream, message: Message) -> None:
        if isinstance(message, Ready):
            await self._ready.put(message.index)

    async def taken(self, index: int) -> int:
        """The next index that came; all up to it are released."""
        async with asyncio.timeout(DEADLINE_S):
            found = await self._ready.get()
        self._stream.send_next(index + 1)
        return found

    async def ended(self) -> HeadraceError:
        """Why it ended."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._task

    async def close(self) -> None:
        """End it."""
        self._stream.cancel()
        await self._task


@asynccontextmanager
async def batches_of(address: str, calls: Calls, rank: int) -> AsyncIterator[Batches]:
    made = Batches(address, calls, rank)
    try:
        yield made
    finally:
        await made.close()


def test_a_channel_without_tls_files_is_refused_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"missing\.crt"):
        open_channel("127.0.0.1:1", (), ClientTls(TlsFiles(ca=str(tmp_path / "missing.crt"))))
