"""What the tests of bad input share: data sets whose pixels say which sample they are, and a training that checks each row."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import headrace
from headrace.core.job import Shuffle
from headrace.core.pipeline_spec import CenterCrop, PipelineSpec
from headrace.testing.cluster import Cluster
from headrace.testing.tars import write_tar

SIDE = 16
CLASSES = 7
BATCH = 8
PIPELINE = PipelineSpec(ops=(CenterCrop((SIDE, SIDE)),))
IN_ORDER = Shuffle(mode="none")
Members = list[tuple[str, bytes]]


def image(number: int) -> bytes:
    """A small PNG whose colour is its number."""
    out = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (number & 255, number >> 8, 77)).save(out, "PNG")
    return out.getvalue()


def sample(number: int, folder: str = "", data: bytes | None = None, label: bytes | None = None) -> Members:
    """Members of one sample; its key ends in its number."""
    name = f"{folder}s{number:05d}"
    return [(f"{name}.png", image(number) if data is None else data), (f"{name}.cls", label or b"%d" % (number % CLASSES))]


def number_of(key: str) -> int:
    """The number in a key."""
    return int(key.rpartition("s")[2])


def write_shards(directory: Path, shards: int, each: int) -> list[Path]:
    """Shards a.tar, b.tar, ... of `each` samples; numbers, ids and order agree."""
    paths = []
    for shard in range(shards):
        paths.append(directory / f"{chr(97 + shard)}.tar")
        write_tar(paths[-1], [part for i in range(each) for part in sample(shard * each + i)])
    return paths


def index(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `headrace index` as a user does."""
    command = [sys.executable, "-m", "headrace", "index", "--batch-size", str(BATCH), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def indexed(address: Path) -> str:
    """Index a directory that can be; returns the manifest's address."""
    done = index(address)
    assert done.returncode == 0, done.stderr
    return str(address)


@dataclass
class Seen:
    """What a trainer got. ids: planned samples, without padding. bad: key of each substituted sample -> reason, by id."""

    ids: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    batches: int = 0

    def take(self, batch: headrace.Batch) -> None:
        """Check a batch row by row against its keys, and count it."""
        colours = batch.pixels.reshape(len(batch), -1, 3).astype(np.int64)
        assert (colours == colours[:, :1]).all(), "an image of one colour"
        numbers = (colours[:, 0, 0] + 256 * colours[:, 0, 1]).tolist()
        assert numbers == [number_of(key) for key in batch.keys]
        assert batch.labels is not None
        assert batch.labels.tolist() == [number % CLASSES for number in numbers]
        substituted = {each.row: each for each in batch.substituted}
        for row in np.flatnonzero(batch.mask).tolist():
            assert (batch.sample_ids[row] != batch.source_ids[row]) == (row in substituted)
            assert batch.source_ids[row] in batch.sample_ids
        self.bad |= {each.sample_id: each.reason for each in substituted.values()}
        self.ids += batch.sample_ids[batch.mask].tolist()
        self.keys += [key for key, real in zip(batch.keys, batch.mask.tolist(), strict=True) if real]
        self.batches += 1


def open_job(fleet: Cluster, name: str, dataset: str, **fields: Any) -> headrace.Job:
    """Open a job; fields over those of these tests."""
    values: dict[str, Any] = {
        "batch_size": BATCH, "pipeline": PIPELINE, "tail": "pad", "shuffle": IN_ORDER, **fields,
    }  # fmt: skip
    with headrace.connect(fleet.addresses, deadline_s=20) as client:
        return client.job(name, dataset=dataset, **values)


def train(job: headrace.Job, seen: Seen | None = None, **options: Any) -> Seen:
    """One epoch; what was seen before an error is in `seen`."""
    seen = Seen() if seen is None else seen
    with job.stream(**{"epochs": 1, "wait_deadline_s": 40.0, **options}) as stream:
        for batch in stream:
            seen.take(batch)
    return seen


def admin(fleet: Cluster, path: str) -> Any:
    """GET of the admin API."""
    with urllib.request.urlopen(f"http://{fleet.coordinators[0].admin_address}{path}", timeout=10) as answer:
        return json.load(answer)


def told_bad(fleet: Cluster, job: str) -> list[tuple[str, str]]:
    """(key, reason) of each bad sample that the admin API lists."""
    return sorted((bad["key"], bad["reason"]) for bad in admin(fleet, f"/api/jobs/{job}")["bad_samples"])


def until(true: Callable[[], Any], what: str, deadline_s: float = 30.0) -> Any:
    """Wait for something to be true."""
    end_s = time.monotonic() + deadline_s
    while not (value := true()):
        assert time.monotonic() < end_s, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.05)
    return value


@contextmanager
def everything_lives(fleet: Cluster) -> Iterator[None]:
    """Inside, no service ends, is restarted or logs a trace."""
    before = [member.running.pid for member in fleet.members()]
    yield
    assert [member.running.pid for member in fleet.members() if member.running.alive] == before
    assert_no_trace(fleet.logs().items())


def assert_no_trace(logs: Iterable[tuple[str, str]]) -> None:
    """Fail with the log that holds a Python trace."""
    for name, text in logs:
        assert "Traceback" not in text, f"{name}: {text[text.index('Traceback') - 500 :][:3000]}"
