"""Which libraries should the `cpu` engine be built of?

Question: on one core, for 500x375 q90 photos, random-resized-crop to 224, what do decoders and resizers cost, how far are
resizers from Pillow's antialiased BILINEAR, and which decoders notice damage?

    python -m loadtest.engine_choice > loadtest/results/engine_choice.md

Needs besides the `demo` extra: opencv-python-headless and nvidia-nvimgcodec-cu12, both only for this comparison; what is
missing is left out. Times are CPU seconds of this process, the best of several rounds, with every library held to one
thread; candidates take turns within a round, so that a slow spell of the machine hits all. Read the ratios.
"""

from __future__ import annotations

import io
import math
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from headrace.core.augment import sample_params
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import encode
from headrace.worker.engines.protocol import Sample
from headrace.worker.engines.registry import create
from headrace.worker.engines.resample import resize

SIZE, COUNT, ROUNDS = 224, 128, 7
WIDTH, HEIGHT = 500, 375

Box = tuple[int, int, int, int]
Decode = Callable[[bytes, Box], Any]


def photos() -> list[bytes]:
    """Four different photos, 500x375, q90, 4:2:0."""
    from skimage import data

    images = [Image.fromarray(take()) for take in (data.astronaut, data.chelsea, data.coffee, data.rocket)]
    return [encode(image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS), "JPEG", quality=90) for image in images]


def boxes() -> list[Box]:
    """The crops of a default pipeline."""
    rows = np.arange(COUNT)
    drawn = sample_params(PipelineSpec(), 1, (rows * 0, rows), np.full((COUNT, 2), (HEIGHT, WIDTH))).ops[0]
    return [tuple(int(values[row]) for values in (drawn.y, drawn.x, drawn.height, drawn.width)) for row in range(COUNT)]


def pillow_decode(data: bytes, box: Box) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def decoders() -> dict[str, Decode]:
    """Candidates that give the whole image, or, where the name says so, the crop."""
    found: dict[str, Decode] = {
        "simplejpeg, whole, strict": lambda data, box: simplejpeg.decode_jpeg(data),
        "Pillow, whole": pillow_decode,
    }
    try:
        import cv2

        cv2.setNumThreads(1)
        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        found["OpenCV, whole"] = lambda data, box: cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except ImportError:
        pass
    try:
        from nvidia import nvimgcodec as nv
    except ImportError:
        return found
    decoder = nv.Decoder(device_id=nv.NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1, backends=[nv.Backend(nv.CPU_ONLY)])

    def region(data: bytes, box: Box) -> np.ndarray:
        y, x, height, width = box
        stream = nv.CodeStream(data).get_sub_code_stream(0, region=nv.Region(y, x, y + height, x + width))
        image = decoder.decode(stream)
        if image is None:
            raise ValueError("not decoded")
        return np.asarray(image)

    found["nvImageCodec on the CPU, region of the crop"] = region
    return found


def pillow_resize(crop: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(crop).resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def resizers() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    found = {"Pillow BILINEAR": pillow_resize, "cykooz-resizer bilinear": lambda crop: resize(crop, SIZE, SIZE)}
    try:
        import cv2
    except ImportError:
        return found
    found["OpenCV INTER_AREA"] = lambda crop: cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
    found["OpenCV INTER_LINEAR (no antialias)"] = lambda crop: cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    return found


def timed(candidates: dict[str, Callable[[int], Any]]) -> dict[str, float]:
    """Best CPU milliseconds an image of each; call(i) does image i."""
    best = dict.fromkeys(candidates, math.inf)
    for _ in range(ROUNDS):
        for name, call in candidates.items():
            began = time.process_time()
            for i in range(COUNT):
                call(i)
            best[name] = min(best[name], (time.process_time() - began) / COUNT * 1e3)
    return best


def damaged(data: list[bytes], count: int) -> list[bytes]:
    """Photos with 40 bytes of the scan overwritten at random."""
    rng = np.random.default_rng(1)
    out = []
    for i in range(count):
        photo = np.frombuffer(data[i % len(data)], np.uint8).copy()
        at = int(rng.integers(len(photo) // 4, len(photo) - 100))
        photo[at : at + 40] ^= rng.integers(1, 256, 40, dtype=np.uint8)
        out.append(photo.tobytes())
    return out


def refused(decode: Decode, data: list[bytes], box: Box) -> int:
    """How many of the damaged photos the decoder refuses."""
    count = 0
    for photo in data:
        try:
            if decode(photo, box) is None:
                count += 1
        except Exception:  # noqa: BLE001 - any error counts as refusing
            count += 1
    return count


def engine_run(data: list[bytes]) -> Callable[[int], None]:
    """The engine as it is, a batch at a time; called for image 0 of each round."""
    spec = PipelineSpec()
    prepared = create("cpu-libs", 1).prepare(spec, 1)
    samples = [Sample(i, str(i), data[i % len(data)]) for i in range(COUNT)]
    keys = [(0, i) for i in range(COUNT)]
    slot = memoryview(bytearray(spec.pixel_bytes(COUNT)))

    def call(i: int) -> None:
        if i == 0:
            prepared.run(samples, keys, slot)

    return call


def plain_path(decode: Decode, data: list[bytes], cuts: list[Box], whole: bool) -> Callable[[int], Any]:
    """Decode, crop, Pillow's resize, flip every second, into an array."""
    out = np.empty((SIZE, SIZE, 3), np.uint8)

    def call(i: int) -> None:
        y, x, height, width = cuts[i]
        pixels = decode(data[i % len(data)], cuts[i])
        image = Image.fromarray(pixels[y : y + height, x : x + width] if whole else pixels)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        out[...] = np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if i % 2 else image)

    return call


def table(title: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [title, tuple("---" for _ in title), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    data, cuts = photos(), boxes()
    found = decoders()
    times = timed({name: (lambda i, f=f: f(data[i % 4], cuts[i])) for name, f in found.items()})
    base = times["Pillow, whole"]
    broken = damaged(data, 200)
    whole_box = (0, 0, HEIGHT, WIDTH)
    decoded = [
        (name, f"{ms / base:.2f}", f"{refused(found[name], broken, whole_box)} of {len(broken)}") for name, ms in times.items()
    ]
    crops = []
    for i, (y, x, height, width) in enumerate(cuts):
        crops.append(np.ascontiguousarray(simplejpeg.decode_jpeg(data[i % 4])[y : y + height, x : x + width]))
    scalers = resizers()
    scaled = timed({name: (lambda i, f=f: f(crops[i])) for name, f in scalers.items()})
    apart = {
        name: max(int(np.abs(f(crop).astype(int) - pillow_resize(crop)).max()) for crop in crops) for name, f in scalers.items()
    }
    resized = [(name, f"{ms / scaled['Pillow BILINEAR']:.2f}", str(apart[name])) for name, ms in scaled.items()]
    paths = timed(
        {
            "Pillow throughout": plain_path(pillow_decode, data, cuts, whole=True),
            "simplejpeg, Pillow's resize": plain_path(found["simplejpeg, whole, strict"], data, cuts, whole=True),
            "the engine `cpu-libs`: simplejpeg, cykooz-resizer, headers, parameters and all": engine_run(data),
        }
    )
    pillow = paths["Pillow throughout"]
    whole = [(name, f"{ms / pillow:.2f}", f"{pillow / ms:.2f}") for name, ms in paths.items()]
    print(
        __doc__.split("\n\n")[1]
        .replace("\n", " ")
        .replace("Question: on", "# Libraries of the `cpu` engine\n\n**Question.** On")
    )
    print("\n**Command.** `python -m loadtest.engine_choice`\n")
    machine = f"One core of a shared x86-64 machine with AVX2, Python {platform.python_version()}"
    print(f"**Where.** {machine}. 1.00 is Pillow's CPU time.\n")
    print(table(("decode", "time", "damaged photos refused"), decoded))
    print(table(("resize of the crop", "time", "furthest from Pillow, levels"), resized))
    print(table(("decode, crop, resize, flip, into the slot", "time", "speed"), whole))
    print(CAVEAT)


CAVEAT = """**So:** simplejpeg and cykooz-resizer. Nothing decodes whole photos faster than simplejpeg, and nothing else refuses
most damage. A region decode would save little at this size and, by the one library that offers it on the CPU, costs the
errors: libjpeg's warnings are dropped, so damaged photos would pass as good. cykooz-resizer is the only fast resize that
is Pillow's filter; OpenCV's are others.

**Caveat.** Ratios of one machine, one size of photo. For photos many times larger than the output, a region or scaled
decode gains more than it does here; this engine has neither. Damage is 40 random bytes; whole cuts are found from the
header, whatever the decoder."""


if __name__ == "__main__":
    main()
