"""A worker that does as it is told, also wrong: real sockets, the real protocol, batches of a known pattern, no engine.

Everything is held by threads of this process; `kill` cuts all connections at once, as SIGKILL would.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import xxhash

from headrace.core.batch import BatchMeta
from headrace.core.credit import CreditWindow
from headrace.core.epoch_plan import lane_count
from headrace.core.errors import ProtocolMismatch
from headrace.core.job import Endpoint, JobSpec, LaneTable, Session
from headrace.core.pipeline_spec import PipelineSpec, RandomResizedCrop
from headrace.core.session_plan import SessionPlan
from headrace.wire import messages, slot_format
from headrace.wire.batch_meta import encode_meta

NODE = "node-a"
SEAL_FUTURE_WRITE = 0x10
SEAL_SHRINK = 2
MOST_META = 16384


def small_session(*, batches: int = 400, world: int = 1, window: int = 3, side: int = 16, batch_size: int = 2) -> Session:
    """A session of tiny images with a dozen lanes."""
    spec = PipelineSpec(ops=(RandomResizedCrop((side, side)),))
    job = JobSpec("job", "file:///data", batch_size, spec, samples=batches * batch_size, manifest_hash="m", max_key_bytes=32)
    return Session(job, 0, world, 0, 0, 1, window, lane_count(job.samples, job.batch_size))


def pattern(index: int, size: int) -> bytes:
    """Pixels that name their index."""
    return (np.arange(-(-size // 8), dtype=np.uint64) * np.uint64(2654435761) + np.uint64(index)).tobytes()[:size]


class Connection:
    """One rank's connection; the subclass moves the bytes."""

    transport = ""

    def __init__(self, worker: FakeWorker, hello: messages.Hello) -> None:
        self.worker = worker
        self.hello = hello
        self.generation = worker.next_generation()
        self.slots = hello.window
        self.credit = CreditWindow(hello.next, hello.window, set(hello.have))

    def send(self, message: messages.Message) -> None:
        raise NotImplementedError

    def write(self, index: int, token: int, content: bytes) -> None:
        """Bring a batch's bytes to the slot and say READY."""
        raise NotImplementedError

    def cut(self) -> None:
        raise NotImplementedError

    def batch(self, index: int, token: int) -> bytes:
        return self.worker.batch(self.hello.rank, index, token)

    def pump(self) -> None:
        """Make what is wanted, in ascending order."""
        for index in range(self.credit.next, self.credit.next + self.credit.window):
            if not self.credit.wants(index) or not self.worker.makes(self.hello.rank, index):
                continue
            token = self.worker.token_of(self.hello.rank, index)
            hook = self.worker.on_make
            if hook is not None and hook(self, index, token):
                continue
            self.credit.mark_made(index)
            self.send(messages.Started(index, token))
            self.write(index, token, self.batch(index, token))
            self.worker.made.append((self.hello.rank, index, token))


class LocalConnection(Connection):
    transport = "shm"

    def __init__(self, worker: FakeWorker, hello: messages.Hello, peer: socket.socket) -> None:
        super().__init__(worker, hello)
        self.peer = peer
        self.fd = os.memfd_create("fake-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        size = self.slots * worker.slot_bytes
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        os.posix_fallocate(self.fd, 0, size)
        if worker.seal:
            fcntl.fcntl(self.fd, 1033, SEAL_SHRINK | SEAL_FUTURE_WRITE)
        if worker.truncate_to is not None:
            os.ftruncate(self.fd, worker.truncate_to)

    def welcome(self) -> None:
        message = messages.Welcome(self.worker.protocol, self.worker.name, self.generation, self.slots, self.worker.slot_bytes)
        socket.send_fds(self.peer, [messages.encode(message)], [self.fd])

    def send(self, message: messages.Message) -> None:
        self.peer.send(messages.encode(message))

    def fill(self, index: int, content: bytes) -> None:
        start = (index % self.slots) * self.worker.slot_bytes
        self.map[start : start + len(content)] = content

    def write(self, index: int, token: int, content: bytes) -> None:
        self.fill(index, content)
        self.send(messages.Ready(index, token, self.generation, len(content)))

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self.peer.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        try:
            self.welcome()
            while not self.worker.stopping:
                self.pump()
                if select.select([self.peer], [], [], 0.01)[0]:
                    data = self.peer.recv(messages.MAX_CONTROL_BYTES)
                    if not data:
                        return
                    message = messages.decode(data)
                    assert isinstance(message, messages.Next)
                    self.credit.advance(message.index)
        except OSError:
            return
        finally:
            self.peer.close()
            os.close(self.fd)
            self.map.close()


class RemoteConnection(Connection):
    transport = "grpc"

    def __init__(self, worker: FakeWorker, hello: messages.Hello) -> None:
        super().__init__(worker, hello)
        self.outbox: queue.Queue[bytes | None] = queue.Queue(maxsize=4)
        self.over = threading.Event()

    def put(self, data: bytes | None) -> None:
        while not self.over.is_set():
            try:
                self.outbox.put(data, timeout=0.1)
                return
            except queue.Full:
                continue
        raise OSError("the stream is over")

    def send(self, message: messages.Message) -> None:
        self.put(messages.encode(message))

    def chunks(self, index: int, token: int, content: bytes) -> Iterator[bytes]:
        step = self.worker.chunk_bytes
        for offset in range(0, len(content), step):
            data = content[offset : offset + step]
            yield messages.chunk_header(index, token, offset, len(data)) + data

    def write(self, index: int, token: int, content: bytes) -> None:
        for number, data in enumerate(self.chunks(index, token, content)):
            if self.worker.on_chunk is not None:
                self.worker.on_chunk(self, index, number)
            self.put(data)
        self.send(messages.Ready(index, token, self.generation, len(content), xxhash.xxh3_64_intdigest(content)))

    def cut(self) -> None:
        self.over.set()

    def serve(self) -> None:
        """Thread that makes batches."""
        try:
            self.send(
                messages.Welcome(self.worker.protocol, self.worker.name, self.generation, self.slots, self.worker.slot_bytes)
            )
            while not self.over.is_set() and not self.worker.stopping:
                self.pump()
                self.over.wait(0.01)
        except OSError:
            return


class FakeWorker:
    """lanes: lane -> token of those it makes (None: all, token 1). on_make(connection, index, token): True to take over.

    refuse: what HELLO is answered with instead. held: indexes not made. seal, truncate_to, protocol: of WELCOME and slab.
    """

    def __init__(self, session: Session, directory: Path, name: str, *, node: str = NODE, grpc_too: bool = True) -> None:
        self.session = session
        self.plan = SessionPlan(session)
        self.name = name
        self.lanes: dict[int, int] | None = None
        self.held: set[int] = set()
        self.on_make: Callable[[Connection, int, int], bool] | None = None
        self.on_chunk: Callable[[RemoteConnection, int, int], None] | None = None
        self.refuse: list[messages.Refuse] = []
        self.seal = True
        self.truncate_to: int | None = None
        self.protocol = messages.PROTOCOL
        self.chunk_bytes = messages.CHUNK_BYTES
        self.hellos: list[messages.Hello] = []
        self.made: list[tuple[int, int, int]] = []
        self.connections: list[Connection] = []
        self.stopping = False
        self.pixel_bytes = session.job.pipeline.pixel_bytes(session.job.batch_size)
        self.slot_bytes = slot_format.slot_bytes(self.pixel_bytes, MOST_META)
        self._generations = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.path = directory / f"{name}.sock"
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(os.fspath(self.path))
        self._listener.listen(16)
        self._start(self._accept)
        self._server: grpc.Server | None = None
        port = self._serve_grpc() if grpc_too else 0
        self.endpoint = Endpoint(name, "1", node, f"127.0.0.1:{port}" if port else "", os.fspath(self.path))

    def next_generation(self) -> int:
        with self._lock:
            self._generations += 1
            return self._generations

    def makes(self, rank: int, index: int) -> bool:
        position = self.plan.locate(rank, index)
        if position is None or index in self.held:
            return False
        return self.lanes is None or position.lane in self.lanes

    def token_of(self, rank: int, index: int) -> int:
        position = self.plan.locate(rank, index)
        assert position is not None
        return 1 if self.lanes is None else self.lanes.get(position.lane, 1)

    def batch(self, rank: int, index: int, token: int, **changes: object) -> bytes:
        """A sealed batch's bytes."""
        job = self.session.job
        position = self.plan.locate(rank, index)
        assert position is not None
        ids = np.arange(job.batch_size, dtype=np.int64) + position.batch * job.batch_size
        zeros = np.zeros(job.batch_size, np.uint8)
        meta = BatchMeta(
            job=job.name, attempt=self.session.attempt, rank=rank, index=index, epoch=position.epoch, step=position.step,
            batch=position.batch, lane=position.lane, token=token, worker=self.name, plan_hash=job.plan_hash,
            fingerprint="fake",
            sample_ids=ids, source_ids=ids, status=zeros, reasons=zeros, keys=[str(i) for i in ids], labels=ids,
        )  # fmt: skip
        for field, value in changes.items():
            setattr(meta, field, value)
        slot = bytearray(self.slot_bytes)
        slot_format.pixels(memoryview(slot), self.pixel_bytes)[:] = pattern(index, self.pixel_bytes)
        total = slot_format.seal(
            memoryview(slot), encode_meta(meta), index=meta.index, token=token, dtype="uint8", layout="NHWC",
            shape=job.pipeline.shape(job.batch_size), pixel_bytes=self.pixel_bytes,
        )  # fmt: skip
        return bytes(slot[:total])

    def kill(self) -> None:
        """Cut everything at once; nothing more is accepted."""
        self.stopping = True
        for connection in list(self.connections):
            connection.cut()
        self._listener.close()
        if self._server is not None:
            self._server.stop(0)

    def close(self) -> None:
        self.kill()
        if self._server is not None:
            self._server.stop(0).wait(5)
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True, name=f"fake-{self.name}")
        self._threads.append(thread)
        thread.start()

    def _answer(self, hello: messages.Hello) -> messages.Refuse | None:
        self.hellos.append(hello)
        return self.refuse.pop(0) if self.refuse else None

    def _accept(self) -> None:
        while not self.stopping:
            try:
                if not select.select([self._listener], [], [], 0.05)[0]:
                    continue
                peer, _ = self._listener.accept()
            except (OSError, ValueError):
                return
            hello = messages.decode(peer.recv(messages.MAX_CONTROL_BYTES) or b"\0")
            assert isinstance(hello, messages.Hello)
            refusal = self._answer(hello)
            if refusal is not None:
                peer.send(messages.encode(refusal))
                peer.close()
                continue
            connection = LocalConnection(self, hello, peer)
            self.connections.append(connection)
            self._start(connection.serve)

    def _serve_grpc(self) -> int:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8),
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", 500),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        services = grpc.method_handlers_generic_handler("headrace.v1.WorkerService", {"StreamBatches": handler})
        self._server.add_generic_rpc_handlers((services,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return port

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        hello = messages.decode(next(requests))
        assert isinstance(hello, messages.Hello)
        refusal = self._answer(hello)
        if refusal is not None:
            yield messages.encode(refusal)
            return
        connection = RemoteConnection(self, hello)
        self.connections.append(connection)
        context.add_callback(connection.over.set)

        def read() -> None:
            try:
                for data in requests:
                    message = messages.decode(data)
                    assert isinstance(message, messages.Next)
                    connection.credit.advance(message.index)
            except (grpc.RpcError, ProtocolMismatch, ValueError):
                pass
            finally:
                connection.over.set()

        self._start(read)
        self._start(connection.serve)
        while not connection.over.is_set():
            try:
                data = connection.outbox.get(timeout=0.05)
            except queue.Empty:
                continue
            if data is None:
                return
            yield data


class Tables:
    """Makes lane tables: who owns which lane under which token."""

    def __init__(self, session: Session, *workers: FakeWorker) -> None:
        self.session = session
        self.version = 0
        self.window = session.window
        self.workers = {worker.name: worker for worker in workers}
        self.owners = [""] * session.lanes
        self.tokens = [0] * session.lanes

    def give(self, *shares: FakeWorker | None) -> LaneTable:
        """Deal all lanes in turn to these (None: nobody), under new tokens; the workers hear of it at once."""
        for lane in range(self.session.lanes):
            worker = shares[lane % len(shares)]
            self.move(lane, worker)
        return self.table()

    def move(self, lane: int, worker: FakeWorker | None, *, tell: bool = True) -> None:
        previous = self.workers.get(self.owners[lane])
        if tell and previous is not None and previous.lanes is not None:
            previous.lanes.pop(lane, None)
        self.owners[lane] = worker.name if worker else ""
        if worker is not None:
            self.workers[worker.name] = worker
            self.tokens[lane] += 1
            if tell:
                worker.lanes = {**(worker.lanes or {}), lane: self.tokens[lane]}

    def table(self) -> LaneTable:
        self.version += 1
        endpoints = {name: worker.endpoint for name, worker in self.workers.items()}
        return LaneTable(self.version, self.window, tuple(self.owners), tuple(self.tokens), endpoints)
