"""The soak's parts without a fleet: the schedule, the keys that a store may hold, levels, slopes, latency, page and picture."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headrace.testing.leaks import Measure, ProcessMeasure
from headrace.testing.soak.judge import LIMITS, MIB, STORE_LIMITS, Levels, judge, latencies
from headrace.testing.soak.plan import FAULTS, FAULTS_A_ROUND, MAX_WORLD, TRANSPORTS, plan_round
from headrace.testing.soak.report import Report
from headrace.testing.soak.run import Soaked
from headrace.testing.soak.sampler import _KEYS, Series


def test_a_seed_is_a_schedule(seed: int) -> None:
    assert [plan_round(seed, n) for n in range(20)] == [plan_round(seed, n) for n in range(20)]
    assert plan_round(seed, 0) != plan_round(seed + 1, 0)


def test_each_kind_of_fault_comes_before_one_comes_again(seed: int) -> None:
    rounds = len(FAULTS) // FAULTS_A_ROUND
    for deck in range(5):
        kinds = [fault.kind for n in range(rounds) for fault in plan_round(seed, deck * rounds + n).faults]
        assert Counter(kinds) == Counter(FAULTS)


def test_jobs_come_with_all_worlds_and_transports_and_end_well(seed: int) -> None:
    visits = [visit for n in range(100) for visit in plan_round(seed, n).visits]
    attempts = [attempt for visit in visits for attempt in visit.attempts]
    assert {len(attempt.transports) for attempt in attempts} == set(range(1, MAX_WORLD + 1))
    assert {name for attempt in attempts for name in attempt.transports} == set(TRANSPORTS)
    assert all(visit.attempts[-1].kill_after == 0 for visit in visits)
    assert {len(visit.attempts) for visit in visits} == {1, 2}
    assert len({visit.job for visit in visits}) == 100


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("headrace:{fleet}:workers", True),
        ("headrace:{fleet}:jobs", True),
        ("headrace:{job:a.b-c}:bad", True),
        ("headrace:ping", True),
        ("headrace:{job:a}:other", False),
        ("headrace:{fleet}:bad", False),
        ("other:{job:a}:main", False),
        ("headrace:{job:a}:main:more", False),
    ],
)
def test_keys_that_no_table_has_are_told(key: str, known: bool) -> None:
    assert bool(_KEYS.fullmatch(key)) == known


# --- levels --------------------------------------------------------------------------------------------------------------


def process(pid: int = 1, **counts: int) -> ProcessMeasure:
    none = ProcessMeasure(pid, {"socket": 10}, (), {"python": 5}, 0, 0, 0, 0, ())
    more = {"descriptors": {"socket": 10 + counts.get("sockets", 0)}, "threads": {"python": 5 + counts.get("threads", 0)}}
    return replace(none, **more, shared_bytes=counts.get("shared", 0))


def quiet(levels: Levels, **counts: int) -> list[str]:
    taken = Measure({"worker-0": process(**counts)}, frozenset())
    leaks = [str(leak) for leak in levels.leaks(taken)]
    levels.note(taken)
    return leaks


def test_the_second_quiet_moment_is_the_level() -> None:
    levels = Levels()
    assert quiet(levels, sockets=0) == []
    assert quiet(levels, sockets=20) == []
    assert quiet(levels, sockets=28) == []
    (leak,) = quiet(levels, sockets=29)
    assert leak == "worker-0: descriptors 30 -> 39 (socket +9)"
    assert quiet(levels, sockets=3) == []


def test_shared_memory_must_come_back_to_the_byte() -> None:
    levels = Levels()
    for _ in range(2):
        assert quiet(levels, shared=1 << 20) == []
    (leak,) = quiet(levels, shared=(1 << 20) + 1)
    assert "shared_bytes" in leak


def test_a_process_that_was_started_again_has_a_level_of_its_own() -> None:
    levels = Levels()
    for _ in range(3):
        assert quiet(levels, pid=1) == []
    for _ in range(3):
        assert quiet(levels, pid=2, threads=50) == []
    assert quiet(levels, pid=2, threads=59)


def test_a_name_that_stays_in_dev_shm_is_told() -> None:
    levels = Levels()
    levels.note(Measure({}, frozenset({"other"})))
    (leak,) = levels.leaks(Measure({}, frozenset({"other", "headrace-slab"})))
    assert leak.kind == "shm_names" and "headrace-slab" in leak.detail


# --- slopes --------------------------------------------------------------------------------------------------------------


def series(rng: np.random.Generator, minutes: float, per_hour: dict[str, float], name: str = "worker-0") -> Series:
    made = Series(name, 7)
    for second in range(int(60 * minutes)):
        levels = {"descriptors": 20.0, "threads": 9.0, "shared_bytes": 8 * MIB}
        values = {kind: levels.get(kind, 60 * MIB) + per_hour.get(kind, 0.0) * second / 3600 for kind in LIMITS}
        values["memory_bytes"] += float(rng.normal(0, MIB / 4))
        made.add(1000.0 + second, values)
    return made


@pytest.mark.parametrize(("kind", "per_hour"), [("memory_bytes", 100 * MIB), ("descriptors", 60.0), ("threads", 60.0)])
def test_a_slope_is_a_leak_in_half_an_hour(rng: np.random.Generator, kind: str, per_hour: float) -> None:
    found = judge(series(rng, 30, {kind: per_hour}), LIMITS, warm_until_s=1060.0)
    (rising,) = [verdict for verdict in found if verdict.trend.rising]
    assert rising.kind == kind and rising.word == "leak"
    assert rising.trend.slope_per_hour == pytest.approx(per_hour, rel=0.1)
    assert rising.seen_per_hour < per_hour
    assert str(rising).startswith(f"worker-0: {kind} rises by ")


def test_a_level_is_none(rng: np.random.Generator) -> None:
    assert not [verdict for verdict in judge(series(rng, 30, {}), LIMITS, warm_until_s=1060.0) if verdict.trend.rising]


def test_two_minutes_show_a_fast_leak_and_say_what_they_cannot_show(rng: np.random.Generator) -> None:
    slow, fast = (judge(series(rng, 2, {"memory_bytes": rate * MIB}), LIMITS, 1040.0)[0] for rate in (200, 3600))
    assert not slow.trend.rising and slow.seen_per_hour > 200 * MIB
    assert fast.trend.rising and fast.seen_per_hour < 3600 * MIB


def test_one_key_that_is_nobodys_is_a_leak() -> None:
    store = Series("store's contents", 0)
    for second in range(60):
        store.add(float(second), dict.fromkeys(STORE_LIMITS, 0.0) | {"stray_keys": float(second // 7)})
    (rising,) = [verdict for verdict in judge(store, STORE_LIMITS, 0.0) if verdict.trend.rising]
    assert rising.kind == "stray_keys"


def test_latency_is_taken_by_the_minute_where_there_were_calls_enough() -> None:
    waits = [(100.0 + i, 0.001 * (i % 60 + 1)) for i in range(150)]
    found = latencies(waits, begun_s=100.0)
    assert found.times_s == [160.0, 220.0, 280.0]
    assert found.values["p50_s"][0] == pytest.approx(0.0305)
    assert found.values["p99_s"][0] > found.values["p95_s"][0]
    assert latencies(waits[:130], begun_s=100.0).times_s == [160.0, 220.0]
    assert latencies([], begun_s=0.0).times_s == []


# --- report --------------------------------------------------------------------------------------------------------------


def soaked(rng: np.random.Generator, per_hour: dict[str, float]) -> Soaked:
    seen = Soaked(3, begun_s=1000.0, warm_until_s=1060.0, seconds=1800.0, rounds=50, jobs=50)
    seen.series = [series(rng, 30, per_hour), series(rng, 2, {}, "worker-1")]
    for second in range(0, 1800, 5):
        seen.store.add(1000.0 + second, dict.fromkeys(STORE_LIMITS, 4.0) | {"keys": float(second // 100), "stray_keys": 0.0})
    seen.faults.update({"worker killed": 9})
    seen.marks = [(1000.0 + 100 * n, "worker killed") for n in range(9)]
    seen.waits = [(1000.0 + second, 0.002) for second in range(1800)]
    return seen


def test_a_good_run_passes_and_its_page_and_picture_are_whole(rng: np.random.Generator, tmp_path: Path) -> None:
    report = Report(soaked(rng, {}), 30)
    report.write(tmp_path)
    facts = json.loads((tmp_path / "soak.json").read_text())
    assert report.passed and facts["passed"] and facts["findings"] == [] and facts["faults"] == {"worker killed": 9}
    page = (tmp_path / "soak.md").read_text()
    assert "No leak was found" in page and "leak |" not in page and "nan" not in page
    with Image.open(tmp_path / "soak.png") as picture:
        assert picture.width > 800 and picture.height > 800 and len(np.unique(np.asarray(picture.convert("L")))) > 20


def test_a_leak_fails_the_run_and_is_named(rng: np.random.Generator, tmp_path: Path) -> None:
    report = Report(soaked(rng, {"descriptors": 600.0}), 30)
    report.write(tmp_path)
    assert not report.passed
    (finding,) = json.loads((tmp_path / "soak.json").read_text())["findings"]
    assert finding.startswith("worker-0: descriptors rises")
    assert "FAILED" in report.summary() and finding in (tmp_path / "soak.md").read_text()
