"""Whether nvImageCodec decodes a part of an image as it should: asked in a process of its own, since on some GPUs it crashes.

Known of 0.9 (nvImageCodec issue 55): INTERNAL_ERROR on A100, SIGSEGV on H100 and B200.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from headrace.worker.engines.codec import Codec, Cut, Device
from headrace.worker.engines.codec_plan import Route
from headrace.worker.engines.pixels import Pixels

DEADLINE_S = 60.0
_SIZE = (375, 500)
_CUTS: tuple[Cut, ...] = ((0, 0, 64, 64), (17, 33, 101, 203), (1, 1, 3, 5), (200, 300, 175, 200))


def why_not(device: Device, deadline_s: float = DEADLINE_S) -> str:
    """What goes wrong where parts of images are decoded on this device; empty if nothing does."""
    told = [str(-1 if device.gpu is None else device.gpu), str(int(device.hardware))]
    command = [sys.executable, "-m", "headrace.worker.engines.region_probe", *told]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"it did not end within {deadline_s:g} s"
    if done.returncode < 0:
        return f"it was ended by signal {-done.returncode}"
    if done.returncode == 0:
        return ""
    return (done.stdout.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]


def main() -> int:
    """Decode parts, compare them with the whole, and say what differs; exit status."""
    gpu, hardware = int(sys.argv[1]), sys.argv[2] == "1"
    codec = Codec(Device(None if gpu < 0 else gpu, hardware), 1)
    data = _photo()
    for route in (Route.HARDWARE, Route.CUDA) if hardware else (Route.CUDA,):
        (whole,) = codec.decode(route, [data])
        parts = codec.decode(route, [data] * len(_CUTS), cuts=_CUTS)
        if whole is None or None in parts:
            print(f"{route.name.lower()} refuses {'the whole' if whole is None else 'a part'}")
            return 1
        pixels = np.asarray(whole.cpu())
        for (y, x, height, width), part in zip(_CUTS, parts, strict=True):
            assert part is not None
            if not np.array_equal(np.asarray(part.cpu()), pixels[y : y + height, x : x + width]):
                print(f"{route.name.lower()} decodes the part {height} by {width} at {y}, {x} otherwise than the whole")
                return 1
    return 0


def _photo() -> bytes:
    """A JPEG with detail everywhere."""
    y, x = np.mgrid[0 : _SIZE[0], 0 : _SIZE[1]]
    pixels: Pixels = np.stack([x * y // 7 % 256, (x + 2 * y) % 256, (x ^ y) % 256], axis=2).astype(np.uint8)
    data: bytes = simplejpeg.encode_jpeg(pixels, 90, "RGB", "420")
    return data


if __name__ == "__main__":
    sys.exit(main())
