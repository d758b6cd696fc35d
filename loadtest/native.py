"""How fast is the native core of the `cpu` engine, and where does its time go?

Question: images per CPU second of the native core, the engine's library path, Pillow and DALI's CPU pipeline, on the same
random-resized-crops (antialiased, to 224) and flips of photos of 500x375 and 1600x1200; the core's time by stage; what scaled
decoding (libjpeg's 1/2) would cost in pixels.

    python -m venv /tmp/dali && /tmp/dali/bin/pip install nvidia-dali-cuda120
    python -m loadtest.native --dali-python /tmp/dali/bin/python > loadtest/results/native_core.md

Needs the `demo` extra; DALI is left out where it isn't given. Everything runs on one thread and is measured in CPU seconds of
its process; all take turns within a round. Medians, with the least and the most beside them. Read the ratios.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features

from headrace.core.augment import sample_params
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.image_kinds import encode
from headrace.worker.engines import native
from headrace.worker.engines.cpu import CpuEngine
from headrace.worker.engines.protocol import Sample

SIZE, SEED = 224, 1
SPEC = PipelineSpec()
Spread = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Work:
    """One set of photos, and `count` crops of them by the default pipeline."""

    title: str
    data: list[bytes]
    height: int
    width: int
    count: int

    def params(self) -> Any:
        """The crops and flips, as every contestant gets them."""
        rows = np.arange(self.count)
        return sample_params(SPEC, SEED, (rows * 0, rows), np.full((self.count, 2), (self.height, self.width)))

    def boxes(self) -> np.ndarray:
        """int64[count, 4]: y, x, height, width."""
        cut = self.params().ops[0]
        return np.stack([cut.y, cut.x, cut.height, cut.width], axis=1)


def photos() -> list[Image.Image]:
    """Six photos, of about 600x400."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    pixels = [take() for take in (data.astronaut, data.chelsea, data.coffee, data.rocket)]
    return [Image.fromarray(array) for array in (*pixels, *load_sample_images().images)]


def small() -> Work:
    """500x375, quality 90, 4:2:0."""
    files = [encode(image.resize((500, 375), Image.Resampling.LANCZOS), "JPEG", quality=90) for image in photos()]
    return Work("500x375, quality 90", files, 375, 500, 256)


def large() -> Work:
    """1600x1200: four photos of 800x600 side by side, so that they aren't blown up much."""
    parts = [image.resize((800, 600), Image.Resampling.LANCZOS) for image in photos()]
    files = []
    for first in range(3):
        whole = Image.new("RGB", (1600, 1200))
        for place in range(4):
            whole.paste(parts[(first + place) % len(parts)], (800 * (place % 2), 600 * (place // 2)))
        files.append(encode(whole, "JPEG", quality=90))
    return Work("1600x1200, quality 90", files, 1200, 1600, 48)


def engine_round(core: native.NativeCore | None, work: Work) -> tuple[Callable[[], float], np.ndarray]:
    """(does the work once and returns CPU seconds, where its pixels are)."""
    prepared = CpuEngine(1, core).prepare(SPEC, SEED)
    samples = [Sample(i, str(i), work.data[i % len(work.data)]) for i in range(work.count)]
    slot = np.empty(SPEC.shape(work.count), np.uint8)

    def once() -> float:
        began = time.process_time()
        result = prepared.run(samples, [(0, i) for i in range(work.count)], memoryview(slot.reshape(-1)))
        assert not result.reasons.any()
        return time.process_time() - began

    return once, slot


def pillow_round(work: Work) -> tuple[Callable[[], float], np.ndarray]:
    """The same with Pillow alone, as torchvision does it."""
    boxes, flips = work.boxes().tolist(), work.params().ops[1].flip.tolist()
    slot = np.empty(SPEC.shape(work.count), np.uint8)

    def once() -> float:
        began = time.process_time()
        for i, (y, x, height, width) in enumerate(boxes):
            image = Image.open(io.BytesIO(work.data[i % len(work.data)])).convert("RGB").crop((x, y, x + width, y + height))
            image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            slot[i] = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flips[i] else image
        return time.process_time() - began

    return once, slot


class Dali:
    """A child process in DALI's environment that does a round when told."""

    def __init__(self, python: str, work: Work, folder: Path) -> None:
        self._work = folder / f"{work.width}.npz"
        joined = np.frombuffer(b"".join(work.data), np.uint8)
        lengths, flips = [len(data) for data in work.data], work.params().ops[1].flip
        np.savez(self._work, bytes=joined, lengths=lengths, boxes=work.boxes(), flips=flips, size=SIZE)
        script = Path(__file__).with_name("native_dali.py")
        self._child = subprocess.Popen([python, script, self._work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(self) -> float:
        """CPU seconds of a round."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(file=self._child.stdin, flush=True)
        return float(self._child.stdout.readline())

    def pixels(self) -> np.ndarray:
        """End it; the pixels of its last round."""
        self._child.communicate(timeout=60)
        return np.load(f"{self._work}.out.npy")

    def close(self) -> None:
        """End it, whatever it does."""
        self._child.kill()
        self._child.wait()


def spread(seconds: list[float], count: int) -> Spread:
    """(median, least, most) in milliseconds an image."""
    return tuple(statistics.median(seconds) * 1e3 / count if f is None else f(seconds) * 1e3 / count for f in (None, min, max))


def compare(work: Work, core: native.NativeCore, dali: Dali | None, rounds: int) -> list[tuple[str, ...]]:
    """Rows of the first table."""
    contestants = {
        "native core": engine_round(core, work),
        "library path": engine_round(None, work),
        "Pillow throughout": pillow_round(work),
    }
    calls = {name: once for name, (once, _) in contestants.items()}
    if dali:
        calls["DALI, CPU"] = dali.once
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, once in calls.items():
            taken = once()
            if turn:
                seconds[name].append(taken)
    pixels = {name: slot for name, (_, slot) in contestants.items()}
    if dali:
        pixels["DALI, CPU"] = dali.pixels()
    exact = pixels["Pillow throughout"].astype(int)
    base = statistics.median(seconds["native core"])
    rows = []
    for name, taken in seconds.items():
        median, least, most = spread(taken, work.count)
        apart = np.abs(pixels[name] - exact)
        times = f"{statistics.median(taken) / base:.2f}"
        rows.append(
            (
                name,
                f"{1e3 / median:.0f}",
                f"{median:.3f} ({least:.3f} to {most:.3f})",
                times,
                f"{apart.max()}, {apart.mean():.3f}",
            )
        )
    return rows


def stages(work: Work, core: native.NativeCore, rounds: int) -> list[tuple[str, ...]]:
    """Rows of the table of stages. What libjpeg does within one call is told apart by decoding more and less."""
    boxes = [tuple(box) for box in work.boxes().tolist()]
    size = (work.height, work.width)
    params = work.params()
    zero = np.zeros(work.count, np.int64)
    cut = [*work.boxes().T, zero + SIZE, zero + SIZE, zero, zero, params.ops[1].flip.astype(np.int64), zero]
    lengths = np.array([len(work.data[i % len(work.data)]) for i in range(work.count)])
    numbers = np.stack([lengths, zero + work.width, zero + work.height, zero + 1, *cut, np.arange(work.count)], axis=1)
    out = np.empty(SPEC.shape(work.count), np.uint8)
    data = [work.data[i % len(work.data)] for i in range(work.count)]
    engine, _ = engine_round(core, work)
    last = (work.height - 1, 0, 1, 1)

    def decodes(region: Callable[[int], Any], strict: bool) -> float:
        began = time.process_time()
        for i in range(work.count):
            core.decode(data[i], size, region(i), strict)
        return time.process_time() - began

    seen: dict[str, list[float]] = {name: [] for name in ("engine", "entropy", "lax", "strict", "whole", "decode", "resize")}
    for turn in range(rounds + 1):
        taken = {
            "engine": engine(),
            "entropy": decodes(lambda i: last, True),
            "lax": decodes(lambda i: boxes[i], False),
            "strict": decodes(lambda i: boxes[i], True),
            "whole": decodes(lambda i: (0, 0, *size), True),
        }
        taken["decode"], taken["resize"] = core.rows(data, numbers, out)[1]
        for name, value in taken.items() if turn else ():
            seen[name].append(value)
    ms = {name: spread(values, work.count)[0] for name, values in seen.items()}
    parts = {
        "entropy decode of the whole image, header and tables": ms["entropy"],
        "inverse DCT, upsampling and colour of the region": ms["decode"] - ms["entropy"],
        "resize and flip, written into the slot": ms["resize"],
        "Python: headers, parameters, hand-over to the core": ms["engine"] - ms["decode"] - ms["resize"],
        "copies": 0.0,
    }
    rows = [(name, f"{value:.3f}", f"{100 * value / ms['engine']:.0f}%") for name, value in parts.items()]
    rows.append(("all", f"{ms['engine']:.3f}", "100%"))
    rows.append(("of it, to see damage below the region", f"{ms['strict'] - ms['lax']:.3f}", ""))
    rows.append(("(for comparison: decode of the whole image)", f"{ms['whole']:.3f}", ""))
    return rows


def scaled_decode(work: Work) -> tuple[str, ...]:
    """(photos, where it applies, largest and mean difference): a decode at half size and a resize, against the exact way."""
    worst, mean, applies = 0, 0.0, 0
    for i, (y, x, height, width) in enumerate(work.boxes().tolist()):
        if height < 2 * SIZE or width < 2 * SIZE:
            continue
        applies += 1
        data = work.data[i % len(work.data)]
        exact = (
            Image.open(io.BytesIO(data))
            .convert("RGB")
            .resize((SIZE, SIZE), Image.Resampling.BILINEAR, (x, y, x + width, y + height))
        )
        half = Image.open(io.BytesIO(data))
        half.draft("RGB", (work.width // 2, work.height // 2))
        part = (x / 2, y / 2, (x + width) / 2, (y + height) / 2)
        rough = half.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, part)
        apart = np.abs(np.asarray(exact).astype(int) - np.asarray(rough))
        worst, mean = max(worst, int(apart.max())), mean + float(apart.mean())
    return (work.title, f"{applies} of {work.count}", str(worst), f"{mean / max(applies, 1):.2f}")


def table(title: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = [title, tuple("---" for _ in title), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dali-python", default="")
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    core = native.load()
    print(f"# The native core\n\n{QUESTION}\n\n**Command.** `python -m loadtest.native --dali-python ...`\n")
    load = f"load average before: {os.getloadavg()[0]:.1f}"
    machine = f"One core of an x86-64 machine ({core.isa}), {load}, Python {platform.python_version()}"
    print(f"**Where.** {machine}, libjpeg-turbo {features.version('libjpeg_turbo')}; {args.rounds} interleaved rounds.\n")
    works = (small(), large())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for work in works:
            dali = Dali(args.dali_python, work, folder) if args.dali_python else None
            if dali:
                stack.callback(dali.close)
            bytes_each = sum(map(len, work.data)) // len(work.data)
            print(f"## {work.title}, {bytes_each // 1000} kB each\n")
            title = (
                "",
                "images a CPU second",
                "CPU ms an image: median (least to most)",
                "time, core = 1",
                "from Pillow: most, mean",
            )
            print(table(title, compare(work, core, dali, args.rounds)))
            print(table(("stage", "CPU ms an image", "share"), stages(work, core, args.rounds)), flush=True)
    print("## Decoding at half size (libjpeg's scaled DCT)\n")
    print(table(("photos", "crops of at least 2x", "most levels apart", "mean"), [scaled_decode(work) for work in works]))
    print(CAVEAT)


QUESTION = """**Question.** Images per CPU second of the native core, the engine's library path, Pillow and DALI's CPU pipeline,
on the same random-resized-crops (antialiased, to 224) and flips, into uint8 NHWC; and where the core's time goes."""

CAVEAT = """**So:** the entropy decode is the floor: it is libjpeg-turbo's and has to be done for what lies beside, above and,
so that damage is seen, below the crop. In large photos it is more of everyone's time: there DALI is nearer. Scaled decoding
is off: it is far outside the contract's one level.

**Caveat.** Few photos, made smaller from larger ones (500x375) or set side by side (1600x1200). DALI gets the same bytes, boxes
and flips by external_source; its antialiased resize is not Pillow's, see the last column, and it does not look for damage below
the crop. The stages within libjpeg's one call are told apart by decoding more and less, so their sum is rough."""


if __name__ == "__main__":
    main()
