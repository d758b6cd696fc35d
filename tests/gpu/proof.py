"""Runs the parts of the proof, each in a process of its own with a time limit, and writes the report after each.

python -m tests.gpu.proof --out DIR [--quick]      docs/gpu.md; tests/gpu/run.sh makes the environment first
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as Xml
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.gpu.report import Part, Report, Row, exit_status

ROOT = Path(__file__).parents[2]
ALL_S, LEAST_S = 460.0, 5.0
# To try the script is no race: machines that build and test are slow and shared.
QUICK_SLOWER = 5
CONTRACT = ["test_engines.py", "test_image_kinds.py", "test_checksums.py", "test_cvcuda_plan.py", "test_dali.py",
            "test_engine_parity.py"]  # fmt: skip
PACKAGES = (
    "numpy", "pillow", "simplejpeg", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "cvcuda-cu12", "nvidia-nvimgcodec-cu12",
    "nvidia-nvjpeg-cu12", "cuda-bindings", "nvidia-ml-py", "torch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """One part. needs: modules without which none of it can run, and the set of wheels that brings each. read: makes rows of
    what its command left (out file, standard output)."""

    name: str
    command: list[str]
    limit_s: float
    needs: dict[str, str]
    read: Callable[[Path, str], list[Row]]


BASE = {"numpy": "base", "structlog": "base", "simplejpeg": "base", "PIL": "base", "obstore": "base"}
PYTEST = {**BASE, "pytest": "base", "hypothesis": "base", "pytest_timeout": "base", "pytest_asyncio": "base"}


def plans(quick: bool) -> list[Plan]:
    """All parts, in the order in which they are worth having; {out} stands for a file of their own."""
    small = ["--quick"] if quick else []
    slots = ["-k", "substitute or in_flight"] if quick else []
    cvcuda = ["-k", "near_libjpegs"] if quick else []
    ipc = ["-k", "(arrives_whole or worker_is_killed) and not played"] if quick else []
    contract = ["-k", "test_each_operation_is_its_rule and (resize_pair or horizontal)"] if quick else []
    files = [f"tests/contract/{name}" for name in (CONTRACT[:1] if quick else CONTRACT)]
    images = {**PYTEST, "skimage": "photos"}
    return [
        Plan("doctor", ["-m", "headrace", "doctor", "--json", "--for", "worker"], 30, BASE, read_doctor),
        _bench("engines", small, 45, BASE),
        _bench("handoff", small, 30, BASE),
        _bench("throughput", small, 140, BASE),
        _pytest("slots", ["tests/gpu/test_slot.py", *slots], 35, {**PYTEST, "nvidia.nvimgcodec": "decode"}, read_tests),
        _pytest("cvcuda", ["tests/gpu/test_cvcuda.py", *cvcuda], 40, images, read_tests),
        _pytest("ipc", ["tests/gpu/test_ipc.py", *ipc], 140, PYTEST, read_tests),
        _bench("pcie", small, 30, BASE),
        _bench("parity", small, 30, BASE),
        _pytest("contract", [*_workers(quick), *files, *contract], 120, images, read_contract),
    ]


def _bench(name: str, small: list[str], limit_s: float, needs: dict[str, str]) -> Plan:
    return Plan(name, ["-m", "tests.gpu.bench", name, "--out", "{out}", *small], limit_s, needs, read_rows)


def _pytest(name: str, words: list[str], limit_s: float, needs: dict[str, str], read: Callable[[Path, str], list[Row]]) -> Plan:
    command = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--junitxml", "{out}", *words]
    return Plan(name, command, limit_s, needs, read)


def _workers(quick: bool) -> list[str]:
    """A GPU has room for a few processes, and the suite is all small batches."""
    cores = len(os.sched_getaffinity(0))
    return [] if quick or cores < 4 or not _there("xdist") else ["-n", str(min(6, cores // 2)), "--dist", "worksteal"]


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


# --- what a part left -------------------------------------------------------------------------------------------------------


def read_rows(out: Path, _: str) -> list[Row]:
    """Of tests.gpu.bench; those that were done, where it was ended."""
    return [Row(**row) for row in json.loads(out.read_text())] if out.exists() else []


def read_doctor(_: Path, said: str) -> list[Row]:
    """What `headrace doctor` finds."""
    findings = json.loads(said[said.index("{") :])["findings"]
    status = {"ok": "passed", "note": "passed", "bad": "failed"}
    return [
        Row(
            "doctor", f"{one['subject']}: {one['name']}", status[one["state"]], reason=f"{one['found']} {one['advice']}".strip()
        )
        for one in findings
    ]


def read_tests(out: Path, _: str) -> list[Row]:
    """A row for each test that failed, was skipped, or tells a figure; one for all others."""
    rows, passed = [], 0
    for case in _cases(out):
        figures = [one.get("value") or "" for one in case.iter("property")]
        status, reason = _outcome(case)
        if status == "passed" and not figures:
            passed += 1
        else:
            rows.append(Row("tests", case.get("name") or "", status, reason="; ".join(filter(None, [reason, *figures]))))
    skipped: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.status == "not run":
            skipped[row.status, row.reason] = skipped.get((row.status, row.reason), 0) + 1
    found = [row for row in rows if row.status != "not run"]
    found += [Row("tests", f"{count} tests", status, reason=reason) for (status, reason), count in skipped.items()]
    return [*found, Row("tests", f"{passed} other tests", "passed")] if passed else found


def read_contract(out: Path, _: str) -> list[Row]:
    """Tests passed and failed by engine, which is the first word of a test's parameters."""
    from tests.contract import engine_entries

    counts: dict[str, dict[str, float]] = {}
    reasons: dict[str, str] = {}
    names = sorted((entry.name for entry in engine_entries.ENTRIES), key=len, reverse=True)
    for case in _cases(out):
        test = case.get("name") or ""
        words = test.partition("[")[2].rstrip("]")
        engine = next((name for name in names if words == name or words.startswith(f"{name}-")), "of one engine alone")
        status, reason = _outcome(case)
        count = counts.setdefault(engine, {"passed": 0, "failed": 0, "skipped": 0})
        count["skipped" if status == "not run" else status] += 1
        if status == "failed":
            reasons.setdefault(engine, f"{test}: {reason}")
    rows = [
        Row("contract", name, "failed" if count["failed"] else "passed", count, reasons.get(name, ""))
        for name, count in counts.items()
    ]
    without = [name for name in engine_entries.DESIGNED if name not in counts]
    return rows + [Row("contract", name, "not run", reason="see the part `engines`") for name in without]


def _cases(out: Path) -> list[Xml.Element]:
    return list(Xml.parse(out).iter("testcase")) if out.exists() else []


def _outcome(case: Xml.Element) -> tuple[str, str]:
    for kind, status in (("failure", "failed"), ("error", "failed"), ("skipped", "not run")):
        if (found := case.find(kind)) is not None:
            return status, (found.get("message") or "").splitlines()[0][:400]
    return "passed", ""


# --- running ----------------------------------------------------------------------------------------------------------------


def run_part(plan: Plan, directory: Path, left_s: float, lacking: dict[str, str], quick: bool) -> Part:
    """Run one part to its end or its limit; whatever happens becomes its verdict."""
    limit_s = min(plan.limit_s * (QUICK_SLOWER if quick else 1), left_s)
    missing = {module: brings for module, brings in plan.needs.items() if not _there(module)}
    if missing:
        why = dict.fromkeys(lacking.get(brings, f"the wheels of set {brings}") for brings in missing.values())
        return Part(plan.name, "not run", 0.0, limit_s, f"lacks {', '.join(missing)}: {'; '.join(why)}")
    if limit_s < LEAST_S:
        return Part(plan.name, "not run", 0.0, limit_s, "no time was left")
    out = directory / f"{plan.name}.out"
    out.unlink(missing_ok=True)
    command = [sys.executable, *(word.replace("{out}", str(out)) for word in plan.command)]
    begun = time.monotonic()
    with (directory / f"{plan.name}.log").open("w") as log, (directory / f"{plan.name}.txt").open("w+") as said:
        environment = {**os.environ, **({"HEADRACE_GPU_PROOF_QUICK": "1"} if quick else {})}
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=log, env=environment, start_new_session=True)
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_all(process)
        seconds = time.monotonic() - begun
        said.seek(0)
        rows, trouble = _rows(plan, out, said.read())
    status, reason = verdict(code, rows, trouble, limit_s)
    if status == "failed" and not rows:
        tail = (directory / f"{plan.name}.log").read_text().strip().splitlines()[-3:]
        reason = f"{reason} {' / '.join(tail)}"[:600]
    return Part(plan.name, status, seconds, limit_s, reason, tuple(rows))


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started: they are one session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _rows(plan: Plan, out: Path, said: str) -> tuple[list[Row], str]:
    try:
        return plan.read(out, said), ""
    except Exception as error:  # noqa: BLE001 - half a file of a part that was ended, or whatever a broken part wrote
        return [], f"it left nothing that can be read: {error!r}"


def verdict(code: int | None, rows: list[Row], trouble: str, limit_s: float) -> tuple[str, str]:
    """(status, reason) of a part that ended with that exit code, None at its limit."""
    states = {row.status for row in rows}
    if code is None:
        return "failed", f"ended at its limit of {limit_s:.0f} s; {len(rows)} rows were done"
    if trouble or not rows:
        return "failed", f"exit code {code}; {trouble}"
    if "failed" in states or code:
        failed = "; ".join(row.name for row in rows if row.status == "failed")
        return "failed", failed[:400] or f"exit code {code}"
    if states == {"not run"}:
        return "not run", rows[0].reason
    waits = sum(row.status == "not run" for row in rows)
    return "passed", f"{waits} of {len(rows)} rows were not run" if waits else ""


def about() -> dict[str, str]:
    """The machine and what is installed."""
    from tests.gpu import photos

    found = {"when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "Python": platform.python_version()}
    found["machine"] = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    found["commit"] = commit.stdout.strip() or "unknown"
    found["GPU"] = _gpus()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "-"
    found["photos"] = photos.source() if not [module for module in BASE if not _there(module)] else "none"
    return found


def _gpus() -> str:
    try:
        from headrace.telemetry.nvml import Nvml

        with Nvml() as nvml:
            gpus = [f"{gpu.name}, {gpu.total_bytes >> 30} GiB, JPEG engine {gpu.jpeg}" for gpu in nvml.gpus()]
            return f"{'; '.join(gpus)}; driver {nvml.driver}"
    except Exception as error:  # noqa: BLE001 - the report is written without one
        return f"none that NVML tells of ({error})"


def why_no_gpu() -> str:
    """See tests.gpu.contestants, in a process of its own: what has to do with a driver may hang or die."""
    code = "from tests.gpu.contestants import why_no_gpu; print(why_no_gpu())"
    try:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "the driver did not answer within a minute"
    return done.stdout.strip() if done.returncode == 0 else f"it cannot be asked: {done.stderr.strip().splitlines()[-1:]}"


def main() -> int:
    """Run all; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lacking", type=Path)
    parser.add_argument("--started", type=float, default=time.time())
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lacking = json.loads(options.lacking.read_text()) if options.lacking and options.lacking.exists() else {}
    no_gpu = why_no_gpu()
    told = {**about(), **({"NO GPU": no_gpu} if no_gpu else {}), **lacking}
    parts: list[Part] = []
    report = Report(told, (), 0.0)
    for plan in plans(options.quick):
        left_s = ALL_S * (QUICK_SLOWER if options.quick else 1) - (time.time() - options.started)
        parts.append(run_part(plan, options.out, left_s, lacking, options.quick))
        part = parts[-1]
        print(f"{part.name:11} {part.status:8} {part.seconds:6.1f} s  {part.reason[:150]}", flush=True)
        report = Report(told, tuple(parts), time.time() - options.started)
        report.write(options.out)
    print(f"report: {options.out / 'gpu_report.md'}")
    return exit_status(report, has_gpu=not no_gpu)


if __name__ == "__main__":
    sys.exit(main())
