"""Where the CPU time of Headrace's engine goes, on the photos of this benchmark: one thread, CPU seconds of this process."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

from headrace.core.augment import sample_params
from headrace.core.image_header import read_header
from headrace.core.pipeline_spec import PipelineSpec
from headrace.worker.engines import native
from headrace.worker.engines.cpu import CpuEngine
from headrace.worker.engines.protocol import Sample
from loadtest.peers.dataset import Photos

SIZE, SEED = 224, 1
SPEC = PipelineSpec()
ENTROPY = "entropy decode of the whole photo, tables"
COLOUR = "inverse DCT, upsampling, colour of the region"
RESIZE = "resize, flip, into the slot"
PYTHON = "engine's Python: headers, parameters, the call"


def stages(photos: Photos, count: int, rounds: int) -> dict[str, float]:
    """CPU milliseconds an image by stage, medians of `rounds` after one that warms up.

    What libjpeg does within one call is told apart by decoding a photo's last row alone, which is the entropy decode of all.
    Raises NativeMissing where the core was not built.
    """
    core = native.load()
    rows = np.arange(min(count, photos.count))
    data = [(photos.files / f"{row:07d}.jpg").read_bytes() for row in rows]
    sizes = np.array([read_header(one).oriented_size for one in data], np.int64)
    params = sample_params(SPEC, SEED, (rows * 0, rows), sizes)
    box, flip = params.ops
    zero = rows * 0
    cut = [box.y, box.x, box.height, box.width, zero + SIZE, zero + SIZE, zero, zero, flip.flip.astype(np.int64), zero]  # type: ignore[union-attr]
    lengths = np.array([len(one) for one in data])
    numbers = np.stack([lengths, sizes[:, 1], sizes[:, 0], zero + 1, *cut, rows], axis=1)
    out = np.empty(SPEC.shape(len(rows)), np.uint8)
    prepared = CpuEngine(1, core).prepare(SPEC, SEED)
    samples = [Sample(int(row), str(row), data[row]) for row in rows]
    keys = [(0, int(row)) for row in rows]
    pairs = [tuple(size) for size in sizes.tolist()]

    def entropy() -> None:
        for one, size in zip(data, pairs, strict=True):
            core.decode(one, size, (size[0] - 1, 0, 1, 1), True)

    seen: dict[str, list[float]] = {"engine": [], "entropy": [], "decode": [], "resize": []}
    for turn in range(rounds + 1):
        engine_s = _cpu_s(lambda: prepared.run(samples, keys, memoryview(out.reshape(-1))))
        entropy_s = _cpu_s(entropy)
        decode_s, resize_s = core.rows(data, numbers, out)[1]
        if turn:
            for name, value in zip(seen, (engine_s, entropy_s, decode_s, resize_s), strict=True):
                seen[name].append(value)
    ms = {name: statistics.median(values) / len(rows) * 1e3 for name, values in seen.items()}
    return {
        ENTROPY: ms["entropy"],
        COLOUR: ms["decode"] - ms["entropy"],
        RESIZE: ms["resize"],
        PYTHON: ms["engine"] - ms["decode"] - ms["resize"],
    }


def tcp_ms(images: int = 2048) -> float:
    """CPU milliseconds that an image's bytes take through raw TCP on loopback, both ends together, in 1 MiB calls."""
    block, total = 1 << 20, SPEC.pixel_bytes(images)
    buffer, data = bytearray(block), bytes(block)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()

        def receive() -> None:
            with receiver:
                while receiver.recv_into(buffer):
                    pass

        thread = threading.Thread(target=receive)
        thread.start()

        def send() -> None:
            for _ in range(total // block):
                sender.sendall(data)
            sender.shutdown(socket.SHUT_WR)
            thread.join()

        return _cpu_s(send) / images * 1e3


def _cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began
