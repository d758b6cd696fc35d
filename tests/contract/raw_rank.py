"""A rank reduced to its bytes, over either transport: what the servers' contract suite speaks with. Not the client."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import xxhash

from headrace.core.errors import PeerGone
from headrace.core.job_token import hashes
from headrace.testing.memfd_device import UUID, MemfdMemory, memfd_device
from headrace.testing.null_producer import NullProducer
from headrace.wire import messages, slot_format
from headrace.wire.device_memory import Block, Device, Handle, answer_ping
from headrace.worker.device_share import DeviceShare
from headrace.worker.rank_port import RankRegister
from headrace.worker.serve_grpc import METHOD, SERVICE, GrpcServer
from headrace.worker.serve_local import LocalServer

DEADLINE_S = 10.0
SHAPE = (4, 33, 31, 3)
HELLO = messages.Hello(messages.PROTOCOL, "job", 0, 0, "nonce", 0, 4)


class RawRank:
    """Sends what it is told, notes what comes. batches: index -> slot bytes by the time of READY."""

    transport = ""

    def __init__(self) -> None:
        self.welcome: messages.Welcome | None = None
        self.batches: dict[int, bytes] = {}

    async def send_raw(self, data: bytes) -> None:
        raise NotImplementedError

    async def receive_raw(self) -> bytes:
        """One message; raises PeerGone at the end."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def send(self, message: messages.Message) -> None:
        await self.send_raw(messages.encode(message))

    async def receive(self) -> messages.Message:
        async with asyncio.timeout(DEADLINE_S):
            message = messages.decode(await self.receive_raw())
        if isinstance(message, messages.Welcome):
            self.welcome = message
        elif isinstance(message, messages.Ready):
            self.batches[message.index] = self.content(message)
        return message

    async def until(self, kind: type) -> messages.Message:
        """The next message of a kind."""
        while not isinstance(message := await self.receive(), kind):
            pass
        return message

    async def until_ready(self, index: int) -> None:
        while index not in self.batches:
            await self.receive()

    async def until_gone(self) -> list[messages.Message]:
        """All messages up to the end of the connection."""
        seen: list[messages.Message] = []
        try:
            while True:
                seen.append(await self.receive())
        except PeerGone:
            return seen

    def content(self, ready: messages.Ready) -> bytes:
        raise NotImplementedError


class LocalRank(RawRank):
    transport = "shm"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self.socket.connect(os.fspath(path))
        self.fd = -1
        self.map: mmap.mmap | None = None

    async def send_raw(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        except OSError as error:
            raise PeerGone("send failed") from error

    async def receive_raw(self) -> bytes:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, messages.MAX_CONTROL_BYTES, 2)
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                raise PeerGone("receive failed") from error
        if not data:
            raise PeerGone("end of the connection")
        if fds:
            self.take_fds(fds)
        return data

    def take_fds(self, fds: list[int]) -> None:
        (self.fd,) = fds
        self.map = mmap.mmap(self.fd, 0, prot=mmap.PROT_READ)

    async def close(self) -> None:
        self.socket.close()
        if self.map is not None:
            self.map.close()
            self.map = None
            os.close(self.fd)

    def content(self, ready: messages.Ready) -> bytes:
        assert self.map is not None and self.welcome is not None
        assert ready.generation == self.welcome.generation
        start = ready.index % self.welcome.slots * self.welcome.slot_bytes
        return self.map[start : start + ready.total_bytes]


class DeviceRank(LocalRank):
    """Takes batches on the machine's memory that stands for a GPU. memory: how it imports the slab; blocks: what it mapped."""

    transport = "cuda_ipc"

    def __init__(self, path: Path, memory: MemfdMemory | None = None, uuid: str = UUID) -> None:
        super().__init__(path)
        self.memory = memory or MemfdMemory()
        self.uuid = uuid
        self.block: Block | None = None
        self.device_fd = -1

    async def send(self, message: messages.Message) -> None:
        if isinstance(message, messages.Hello) and not message.gpu:
            message = replace(message, gpu=self.uuid, memories=self.memory.kind)
        await super().send(message)

    def take_fds(self, fds: list[int]) -> None:
        super().take_fds(fds[:1])
        (self.device_fd,) = fds[1:] or [-1]

    async def receive(self) -> messages.Message:
        message = await super().receive()
        if isinstance(message, messages.Welcome) and message.memory:
            size = message.slots * message.device_slot_bytes
            self.block = self.memory.import_block(Handle(self.device_fd), size)
            answer_ping(self.memory, self.block, size, message.nonce)
            await self.send(messages.Probed())
        return message

    async def close(self) -> None:
        await super().close()
        if self.device_fd >= 0:
            os.close(self.device_fd)
            self.device_fd = -1
        if self.block is not None:
            self.memory.free(self.block)
            self.block = None

    def content(self, ready: messages.Ready) -> bytes:
        """The slot as it would be in shared memory, so that all looks at it are the same."""
        assert self.block is not None and self.welcome is not None
        host = memoryview(super().content(ready))
        header, meta = slot_format.read_slot(host)
        assert header.on_device
        whole = bytearray(slot_format.meta_offset(header.pixel_bytes) + len(meta))
        pixels = slot_format.pixels(memoryview(whole), header.pixel_bytes)
        start = ready.index % self.welcome.slots * self.welcome.device_slot_bytes
        self.memory.read(self.block.pointer + start, pixels)
        form = {name: getattr(header, name) for name in ("index", "token", "dtype", "layout", "shape", "pixel_bytes")}
        slot_format.seal(memoryview(whole), bytes(meta), **form)
        return bytes(whole)


class GrpcRank(RawRank):
    transport = "grpc"

    def __init__(self, port: int) -> None:
        super().__init__()
        self.channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 8 << 20)],
        )
        self.call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        self.chunks: dict[int, bytearray] = {}

    async def send_raw(self, data: bytes) -> None:
        try:
            await self.call.write(data)
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            raise PeerGone("send failed") from error

    async def receive_raw(self) -> bytes:
        try:
            data = await self.call.read()
        except grpc.RpcError as error:
            raise PeerGone("receive failed") from error
        if data is grpc.aio.EOF:
            raise PeerGone("end of the stream")
        message = messages.decode(data)
        if isinstance(message, messages.Chunk):
            assert len(message.data) <= messages.CHUNK_BYTES
            held = self.chunks.setdefault(message.index, bytearray())
            assert len(held) == message.offset, "chunks of an index come in order"
            held += message.data
        return data

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()

    def content(self, ready: messages.Ready) -> bytes:
        content = bytes(self.chunks.pop(ready.index))
        assert len(content) == ready.total_bytes
        assert xxhash.xxh3_64_intdigest(content) == ready.checksum
        return content


class Harness:
    """One server with its producer."""

    def __init__(
        self, server: LocalServer | GrpcServer, register: RankRegister, producer: NullProducer, path: Path, transport: str
    ) -> None:
        self.transport = transport
        self.server = server
        self.register = register
        self.producer = producer
        self.path = path

    def rank(self) -> RawRank:
        """A rank that has not said HELLO."""
        if isinstance(self.server, GrpcServer):
            return GrpcRank(self.server.port)
        return DeviceRank(self.path) if self.transport == "cuda_ipc" else LocalRank(self.path)

    async def connect(self, **changes: object) -> RawRank:
        """A rank that was welcomed and has a port."""
        opened = [event for event, _ in self.producer.events].count("opened")
        rank = self.rank()
        await rank.send(replace(HELLO, **changes))  # type: ignore[arg-type]
        first = await rank.receive()
        assert isinstance(first, messages.Welcome), first
        if self.transport == "cuda_ipc":  # only then is its answer to the probe looked at
            await eventually(lambda: [event for event, _ in self.producer.events].count("opened") > opened)
        return rank

    async def settle(self, condition: Callable[[], bool] | None = None) -> None:
        """Wait until a condition holds, or a moment."""
        await (asyncio.sleep(0.1) if condition is None else eventually(condition))


async def eventually(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition holds; TimeoutError if it does not."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    transport: str,
    path: Path,
    producer: NullProducer | None = None,
    *,
    token: str = "",
    hello_deadline_s: float = 5.0,
    device: Device | None = None,
    grace_s: float = 0.0,
) -> AsyncIterator[Harness]:
    """A started server of either kind. device, grace_s: of cuda_ipc."""
    producer = producer or NullProducer(SHAPE)
    register = RankRegister(producer, worker="w0", tokens_of=lambda job: hashes(job, [token]) if token else ())
    share = DeviceShare(lambda: device or memfd_device(), grace_s=grace_s) if transport == "cuda_ipc" else None
    server = (
        GrpcServer(register, "127.0.0.1:0", hello_deadline_s=hello_deadline_s, stall_deadline_s=5.0)
        if transport == "grpc"
        else LocalServer(register, path, hello_deadline_s=hello_deadline_s, devices=share)
    )
    await server.start()
    try:
        yield Harness(server, register, producer, path, transport)
    finally:
        await server.close(0.0)


def pixels_of(content: bytes) -> bytes:
    """The pixels of a slot's bytes, after the checks of the slot format."""
    header = slot_format.read_header(memoryview(content))
    return bytes(slot_format.pixels(memoryview(content), header.pixel_bytes))


# Memory of slabs that other tests of this process still hold, by arrays that they kept: not this one's.
_before: set[int] = set()


def _slab_maps() -> list[int]:
    """The inode of each mapping of a slab in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [int(line.split()[4]) for line in lines if "headrace-slab" in line]


def note_slabs() -> None:
    """From now on `slab_mappings` and `slab_fds` leave out what is there."""
    gc.collect()
    _before.clear()
    _before.update(_slab_maps())


def slab_mappings() -> int:
    """Mappings of slabs here that this test made."""
    return sum(inode not in _before for inode in _slab_maps())


def slab_fds() -> int:
    """Descriptors of such slabs: the slab's own and the one that its mapping keeps."""
    found = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and "headrace-slab" in str(fd.readlink())]
    return sum(fd.stat().st_ino not in _before for fd in found)
