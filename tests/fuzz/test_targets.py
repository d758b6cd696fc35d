"""A share of the fuzzing that `make fuzz` does at length; the seed is HEADRACE_TEST_SEED's, or a new one each time."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from headrace.core.errors import HeadraceError
from headrace.testing.fuzz.runner import Target, attempt, quiet, run
from headrace.testing.fuzz.targets import all_targets

# All together take some 20 s of one core.
EXECUTIONS = 1500
SLOW = {"coordinator_calls": 200, "store_records": 120, "decode": 300, "source": 600}
SEED = int(os.environ.get("HEADRACE_TEST_SEED") or random.randrange(2**32))
with quiet():
    TARGETS = all_targets()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_nothing_but_our_errors_within_bounds(name: str, tmp_path: Path) -> None:
    tally = run({name: TARGETS[name]}, SEED, executions=SLOW.get(name, EXECUTIONS))
    for finding in tally.findings:
        path = finding.save(tmp_path)
        print(f"seed {SEED}: {finding.trace}\nreplay: python -m headrace.testing.fuzz --target {name} --replay {path}")
    assert not tally.findings
    assert tally.executions[name] == SLOW.get(name, EXECUTIONS)


def broken(kind: str) -> Target:
    """A target that breaks when a byte of 0xff is met, in a way of that kind."""
    kept: list[bytes] = []

    def parse(data: bytes) -> None:
        if b"\xff" not in data:
            raise HeadraceError("no parse")
        if kind == "raises":
            raise KeyError("x")
        if kind == "loops":
            while True:
                len(kept)
        if kind == "allocates":
            kept.append(bytes(1 << 24))

    return Target("broken", [b"abc\xff", b"12345678"], parse)


@pytest.mark.parametrize(("kind", "word"), [("raises", "KeyError"), ("loops", "lines executed"), ("allocates", "allocated")])
def test_the_fuzzer_finds_planted_faults(kind: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.fuzz.measure._OURS", str(Path(__file__).parent))
    monkeypatch.setattr("headrace.testing.fuzz.runner.CPU_LIMIT_S", 0.2)
    tally = run({"broken": broken(kind)}, 1, executions=3)
    assert any(word in finding.trace for finding in tally.findings)


def test_a_regular_expression_without_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.testing.fuzz.runner.CPU_LIMIT_S", 0.2)
    target = Target("slow", [], lambda data: re.fullmatch(rb"(a|a)*b", data))
    finding = attempt(target, b"a" * 60, measure=False)
    assert finding is not None
    assert "CPU time" in finding.trace


def test_a_seed_repeats_its_inputs() -> None:
    target = TARGETS["messages"]
    assert [target.case(7, n) for n in range(50)] == [target.case(7, n) for n in range(50)]
    assert [target.case(7, n) for n in range(20, 50)] != [target.case(8, n) for n in range(20, 50)]
