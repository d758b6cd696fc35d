"""The examples really train: on photos, through a fleet of real processes, and the loss goes down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.verdict import VERDICTS
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = 480


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_demo_dataset(tmp_path_factory.mktemp("data") / "set", samples=SAMPLES, shards=2))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=1) as cluster:
        yield cluster


def run_example(name: str, fleet: Cluster, dataset: str, *more: str) -> str:
    """Run an example to its end; returns what it printed."""
    command = [sys.executable, str(EXAMPLES / name), "--coordinator", fleet.addresses, "--dataset", dataset, "--classes", "10"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=110, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"mean loss ([0-9.]+)", text)]


def test_one_process_learns_and_goes_on_from_its_checkpoint(fleet: Cluster, dataset: str, tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint.pt"), "--batch-size", "32")
    first = losses(run_example("train_torch.py", fleet, dataset, "--epochs", "2", *checkpoint))
    text = run_example("train_torch.py", fleet, dataset, "--epochs", "3", *checkpoint)
    assert "epoch 2: 15 steps" in text
    assert "epoch 0" not in text
    assert len(first) == 2
    assert losses(text)[0] < first[1] < first[0]


def test_without_a_checkpoint_a_second_run_begins_at_the_start(fleet: Cluster, dataset: str) -> None:
    for _ in range(2):
        text = run_example("train_torch.py", fleet, dataset, "--epochs", "1", "--batch-size", "32", "--job", "again")
        assert "epoch 0: 15 steps" in text


def test_the_trainer_of_the_readme_runs_as_it_stands(fleet: Cluster, dataset: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL)
    for shown, real in {"127.0.0.1:7300": fleet.addresses, "/data/imagenet/train": dataset, "epochs=90": "epochs=2"}.items():
        assert shown in code
        code = code.replace(shown, real)
    shapes: list[tuple[int, ...]] = []
    saved: list[dict[str, Any]] = []
    names = {
        "model": None,
        "load_checkpoint": lambda _model: saved[-1] if saved else None,
        "save_checkpoint": lambda _model, state: saved.append(state),
        "train_step": lambda pixels, _labels: shapes.append(pixels.shape),
    }
    exec(code, {**names})
    assert shapes == [(256, 224, 224, 3)] * 2
    assert [state["epoch"] + bool(state["step"]) for state in saved] == [1, 2]
    exec(code, {**names})
    assert len(shapes) == 2


def test_the_example_step_is_diagnosed(fleet: Cluster, dataset: str) -> None:
    command = [sys.executable, "-m", "headrace", "diagnose", dataset, "--coordinator", fleet.addresses, "--batch-size", "8"]
    done = subprocess.run(
        [*command, "--step", "diagnose_step:step", "--steps", "5", "--warmup", "1", "--json"],
        capture_output=True, text=True, timeout=110, cwd=EXAMPLES, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] in VERDICTS
    assert found["measured"]["cached_s"] > 0


def test_two_ranks_learn_together_with_equal_steps(fleet: Cluster, dataset: str) -> None:
    text = run_example("train_ddp.py", fleet, dataset, "--epochs", "2", "--batch-size", "16", "--spawn", "2")
    assert losses(text)[1] < losses(text)[0]
    assert "epoch 1: 15 steps on each of 2 ranks" in text
    assert sorted(re.findall(r"rank (\d): (\d+) images", text)) == [("0", "480"), ("1", "480")]
