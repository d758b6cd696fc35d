"""Two minutes of soak leak nothing; and where a real process leaks, a soak fails and names the process and what it leaks.

Both soaks run at the same time, as processes of their own. What two minutes can show and what they cannot: docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.soak.dataset import BAD_IDS
from headrace.testing.soak.plan import FAULTS

PLANTS = Path(__file__).parent / "plants"
# Kind -> words of the command line of the process that leaks it, the measure that must be told, and of whom.
LASTING_RANK_0 = ["headrace.testing.demo_rank", '"name": "lasting"', '"rank": 0']
PLANTED: dict[str, tuple[list[str], str, str]] = {
    "descriptor": (["headrace worker", "worker-0"], "descriptors", "worker-0"),
    "thread": (LASTING_RANK_0, "threads", "lasting rank-0"),
    "memory": (["headrace coordinator"], "memory_bytes", "coordinator-0"),
    "shared_memory": (["headrace worker", "worker-0"], "shared_bytes", "worker-0"),
    "store_key": (["headrace coordinator"], "keys", "store"),
}
DEADLINE_S = 500.0

pytestmark = pytest.mark.timeout(600)


def start(out: Path, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace.testing.soak", "--out", str(out), *arguments]
    out.mkdir()
    with (out / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})


Soak = tuple[int, dict[str, Any], str]


def end(soak: subprocess.Popen[bytes], out: Path) -> Soak:
    """Exit status, report, log."""
    status = soak.wait(DEADLINE_S)
    log = (out / "log").read_text()
    assert (out / "soak.json").exists(), log[-4000:]
    return status, json.loads((out / "soak.json").read_text()), log


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Soak, Soak]]:
    """One as it is, and one in which processes leak."""
    sound, leaky = tmp_path_factory.mktemp("sound") / "out", tmp_path_factory.mktemp("leaky") / "out"
    plants = json.dumps([[kind, words] for kind, (words, _, _) in PLANTED.items()])
    path = os.pathsep.join(filter(None, [str(PLANTS), os.environ.get("PYTHONPATH", "")]))
    seed = str(int(os.environ["HEADRACE_TEST_SEED"]) % 2**31)
    running = [
        start(sound, "--minutes", "1.4", "--seed", seed),
        start(
            leaky, "--minutes", "0.5", "--settle-s", "1", "--seed", seed,
            environment={"HEADRACE_TEST_PLANTS": plants, "PYTHONPATH": path},
        ),
    ]  # fmt: skip
    try:
        yield end(running[0], sound), end(running[1], leaky)
    finally:
        for soak in running:
            soak.kill()
            soak.wait()


def test_two_minutes_leak_nothing_and_lose_nothing(soaks: tuple[Soak, Soak]) -> None:
    status, report, log = soaks[0]
    assert (status, report["findings"]) == (0, []), log[-4000:]
    assert report["passed"]
    assert set(report["faults"]) == set(FAULTS)  # three rounds at least, three faults a round, and none twice in those
    assert report["epochs_audited"] >= 6 and report["substituted"] == len(BAD_IDS) * report["epochs_audited"]
    assert report["levels_compared"] >= 4  # a coordinator, a worker, two ranks, once or more
    assert report["digests_compared"] > 0


def test_a_leak_fails_a_soak(soaks: tuple[Soak, Soak]) -> None:
    status, report, log = soaks[1]
    assert status == 1 and not report["passed"], log[-4000:]


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_leak_is_named(soaks: tuple[Soak, Soak], kind: str) -> None:
    _, measure, whose = PLANTED[kind]
    findings = soaks[1][1]["findings"]
    assert [finding for finding in findings if finding.startswith(f"{whose}: {measure}")], findings
    if kind == "store_key":
        assert [finding for finding in findings if "headrace:{job:lasting}:planted-" in finding], findings


def test_nothing_else_is_wrong_with_a_leaky_fleet(soaks: tuple[Soak, Soak]) -> None:
    """A process that leaks loses no sample: the leaks are what the soak failed for."""
    processes = {"worker-0", "lasting rank-0", "coordinator-0", "coordinator-1", "store", "store's contents"}
    assert {finding.partition(":")[0] for finding in soaks[1][1]["findings"]} <= processes
