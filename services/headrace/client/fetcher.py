"""The fetcher process: receives remote batches over gRPC and puts them into the trainer's slab.

Started by the trainer's `headrace-intake` thread as `python -m headrace.client.fetcher SOCKET_FD SLAB_FD`, so that the
trainer never touches the bytes of the network. One asyncio loop on the only thread. It ends with the trainer: when the
socket closes, or by the kernel's signal if the trainer is killed.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any

from headrace.client.fetch_slots import FetchSlots
from headrace.client.fetch_stream import Stream
from headrace.client.logs import log
from headrace.client.transports import fetch_protocol as protocol
from headrace.core.errors import HeadraceError, ProtocolMismatch
from headrace.telemetry.logging import configure
from headrace.telemetry.parent import exit_with_parent
from headrace.wire.calls import Calls
from headrace.wire.malloc import tune_malloc
from headrace.wire.messages import Chunk, Message, Next, Ready

# So long a stream may take over a batch of which another worker sends a copy. A batch takes that long on no network that can
# feed a trainer, and a worker that names a token nobody gave it must not keep a batch from coming for good.
HELD_S = 30.0


class Fetcher:
    """All streams of one rank and the pipe to the trainer."""

    def __init__(self, trainer: socket.socket, slots: FetchSlots, calls: Calls | None = None) -> None:
        self._trainer = trainer
        self._calls = calls or Calls()
        self._slots = slots
        self._streams: dict[int, Stream] = {}
        self._send_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held_since_s: dict[tuple[int, int], float] = {}

    async def run(self) -> None:
        """Serve until the trainer closes its end."""
        loop = asyncio.get_running_loop()
        self._begin(self._watch_held(HELD_S / 10), "held")
        while data := await loop.sock_recv(self._trainer, protocol.MAX_BYTES):
            message = protocol.decode(data)
            if isinstance(message, protocol.Ping):
                await self._tell(message)
            else:
                self._command(message)
        for stream in self._streams.values():
            stream.cancel()

    def _command(self, message: protocol.FetchMessage) -> None:
        match message:
            case protocol.Forward(_, Next(index)):
                self._slots.advance(index)
                for stream in self._streams.values():
                    stream.send_next(index)
            case protocol.Connect(link, target, worker, hello):
                stream = Stream(link, target, worker, hello, self._deliver, calls=self._calls)
                self._streams[link] = stream
                self._begin(self._serve(stream), f"stream-{worker}")
            case protocol.Disconnect(link) if link in self._streams:
                self._streams.pop(link).cancel()
                self._start_over(self._slots.link_gone(link))
            case protocol.Drop(link, index):
                self._start_over(self._slots.drop(link, index))
            case protocol.Disconnect():
                pass  # it had ended by itself
            case _:
                raise ProtocolMismatch(f"the trainer sent a {type(message).__name__}")

    async def _serve(self, stream: Stream) -> None:
        error = await stream.run()
        if self._streams.pop(stream.link, None) is None:
            return  # the trainer ended it and wants to hear no more
        self._start_over(self._slots.link_gone(stream.link))
        await self._tell(protocol.Down(stream.link, error.code, error.message))

    def _start_over(self, links: set[int]) -> None:
        for link in links & set(self._streams):
            self._streams[link].end(HeadraceError("started over: bytes that were thrown away are wanted after all"))

    async def _watch_held(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            self.end_held(asyncio.get_running_loop().time())

    def end_held(self, now_s: float) -> None:
        """End streams that take too long over what another one would send; to be called every few seconds."""
        contested = self._slots.contested()
        self._held_since_s = {held: self._held_since_s.get(held, now_s) for held in contested}
        for (link, index), since_s in self._held_since_s.items():
            if now_s - since_s >= HELD_S and link in self._streams:
                self._streams[link].end(
                    ProtocolMismatch(f"held for {HELD_S:g} s what another worker would have sent whole", index=index)
                )

    async def _deliver(self, stream: Stream, message: Message) -> None:
        """A message of a worker; chunks end here."""
        if stream.link not in self._streams:
            return
        if isinstance(message, Chunk):
            self._slots.chunk(stream.link, message)
        elif not isinstance(message, Ready) or self._slots.ready(stream.link, message):
            await self._tell(protocol.Forward(stream.link, message))

    async def _tell(self, message: protocol.FetchMessage) -> None:
        # The stream that says it may be ended meanwhile. Its READY must come all the same: the trainer alone says whether
        # a slot that counts as full here is full.
        await asyncio.shield(self._begin(self._send(message), "say"))

    async def _send(self, message: protocol.FetchMessage) -> None:
        async with self._send_lock:  # asyncio allows one writer a socket
            try:
                await asyncio.get_running_loop().sock_sendall(self._trainer, protocol.encode(message))
            except ConnectionError:
                return  # the trainer is gone: `run` sees that and ends the process

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task


async def _main(trainer: socket.socket, slab_fd: int) -> None:
    first = await asyncio.get_running_loop().sock_recv(trainer, protocol.MAX_BYTES)
    config = protocol.decode(first) if first else None
    if not isinstance(config, protocol.Config):
        return
    size = config.slots * config.slot_bytes
    # Populated at once: pages are then not faulted in under the first batches.
    memory = mmap.mmap(slab_fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(slab_fd)
    slots = FetchSlots(memoryview(memory), config.slots, config.slot_bytes, config.next, config.have)
    await Fetcher(trainer, slots, Calls(config.tls.client)).run()


def main(argv: list[str]) -> int:
    """Run one fetcher; the exit status is 0 when the trainer closed the socket."""
    exit_with_parent()
    configure("fetcher", level="warning")  # to stderr: stdout is the trainer's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle; its socket ends us
    tune_malloc(single_arena=True)
    trainer = socket.socket(fileno=int(argv[0]))
    trainer.setblocking(False)
    try:
        asyncio.run(_main(trainer, int(argv[1])))
    except (ConnectionError, KeyboardInterrupt):
        log.info("fetcher_end", reason="the trainer is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
