"""The GPU proof's own machinery, without a GPU: its script from end to end, its verdicts, its wheels in pieces, its list."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fake_nvml.driver import FakeGpu, compiled
from tests.gpu import never_ran, proof, wheels
from tests.gpu.contestants import why_no_gpu
from tests.gpu.proof import Plan, run_part
from tests.gpu.report import Part, Report, Row, exit_status, markdown, targets

ROOT = Path(__file__).parents[2]
NO_GPU = why_no_gpu()


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {"PYTHON": sys.executable}


@pytest.mark.timeout(300)
def test_the_script_runs_up_to_the_first_call_of_cuda_and_says_what_did_not_run(tmp_path: Path) -> None:
    if not NO_GPU:
        pytest.skip("there is a GPU: run tests/gpu/run.sh itself, which proves more")
    command = [str(ROOT / "tests/gpu/run.sh"), "--here", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), timeout=280, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    told = json.loads((tmp_path / "gpu_report.json").read_text())
    parts = {part["name"]: part for part in told["parts"]}
    assert list(parts) == [plan.name for plan in proof.plans(quick=True)]
    states = {name: part["status"] for name, part in parts.items()}
    assert set(states.values()) == {"passed"}, states
    rows = [row for part in told["parts"] for row in part["rows"]]
    assert all(row["reason"] for row in rows if row["status"] == "not run")
    assert all(row["status"] == "not run" for row in rows if row["name"].endswith(("by vmm", "by legacy", "mixed")))
    for table in ("decode", "decode + augment", "end to end"):
        assert any(row["figures"].get("img_s", 0) > 0 for row in rows if row["table"] == table), table
    for row in told["targets"]:
        assert (row["status"], bool(row["reason"])) == ("not run", True)
    page = (tmp_path / "gpu_report.md").read_text()
    assert "NO GPU" in page and "**NOT RUN**" in page and "**FAILED**" not in page


def test_the_script_refuses_words_that_it_does_not_know(tmp_path: Path) -> None:
    done = subprocess.run([str(ROOT / "tests/gpu/run.sh"), "--fast"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 64 and "--wheels DIR" in done.stderr
    assert not list(tmp_path.iterdir())


def part(directory: Path, code: str, *, limit_s: float = 30.0, needs: dict[str, str] | None = None) -> Part:
    plan = Plan("some", ["-c", code, "{out}"], limit_s, needs or {}, proof.read_rows)
    return run_part(plan, directory, 60.0, {"extra": "set extra did not come"}, quick=False)


WRITE = "import json, sys; from pathlib import Path;"
WRITE += "Path(sys.argv[1]).write_text(json.dumps([{'table': 't', 'name': 'n', 'status': %r}]));"


def test_whatever_a_part_does_becomes_its_verdict(tmp_path: Path) -> None:
    assert part(tmp_path, WRITE % "passed").status == "passed"
    assert part(tmp_path, WRITE % "not run").status == "not run"
    assert part(tmp_path, WRITE % "failed").status == "failed"
    died = part(tmp_path, WRITE % "passed" + "import os; os.kill(os.getpid(), 11)")
    assert (died.status, len(died.rows)) == ("failed", 1)
    silent = part(tmp_path, "raise SystemExit('no such thing')")
    assert silent.status == "failed" and "no such thing" in silent.reason
    assert part(tmp_path, "open(__import__('sys').argv[1], 'w').write('half')").status == "failed"
    lacking = part(tmp_path, WRITE % "passed", needs={"no_such_module": "extra"})
    assert (lacking.status, lacking.reason) == ("not run", "lacks no_such_module: set extra did not come")
    assert part(tmp_path, WRITE % "passed", limit_s=1.0).status == "not run", "no time was left"


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '1000']);"
    child += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid));"
    # Its row is written out before it hangs.
    found = part(tmp_path, child + WRITE % "passed" + "time.sleep(1000)", limit_s=10.0)
    assert found.status == "failed" and "limit" in found.reason and len(found.rows) == 1
    state = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")
    for _ in range(200):  # nobody waits for a grandchild's end
        if gone(state):
            return
        time.sleep(0.05)
    raise AssertionError("what it started lives on")


def gone(state: Path) -> bool:
    """Whether a process ended, as its /proc/PID/stat says."""
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def report(*rows: Row) -> Report:
    return Report({"GPU": "one"}, (Part("p", "passed", 1.0, 2.0, rows=rows),), 1.0)


def figures(ours: float, dali: float, p50_us: float, crossing: str = "passed") -> Report:
    return report(
        Row("end to end", "engine cvcuda -> second process by vmm", "passed", {"img_s": ours}),
        Row("end to end", "engine cpu -> second process by shm", "passed", {"img_s": 1e6}),
        Row("end to end", "plain DALI pipeline, mixed", "passed", {"img_s": dali}),
        Row("end to end", "plain DALI pipeline, cpu", "passed", {"img_s": 1e6}),
        Row("hand-off", "hand-over by vmm", "passed", {"p50_us": p50_us}),
        Row("hand-off", "hand-over by shm", "passed", {"p50_us": 1.0}),
        Row("PCIe", "hand-over by vmm, counted by NVML", crossing),
    )


@pytest.mark.parametrize(
    ("found", "verdicts"),
    [
        (figures(8000, 7500, 60), ["passed"] * 4),
        (figures(6000, 5000, 60), ["failed", "passed", "passed", "passed"]),
        (figures(8000, 9000, 60), ["passed", "failed", "passed", "passed"]),
        (figures(8000, 7500, 130), ["passed", "passed", "failed", "passed"]),
        (figures(8000, 7500, 60, "failed"), ["passed", "passed", "passed", "failed"]),
        (figures(8000, 7500, 60, "not run"), ["passed", "passed", "passed", "not run"]),
        (report(), ["not run"] * 4),
    ],
)
def test_targets_are_judged_by_what_ran_on_the_gpu_alone(found: Report, verdicts: list[str]) -> None:
    assert [row.status for row in targets(found)] == verdicts


def test_the_exit_status_tells_what_became_of_it() -> None:
    good, poor = figures(8000, 7500, 60), figures(8000, 9000, 60)
    assert exit_status(good, has_gpu=True) == 0
    assert exit_status(poor, has_gpu=True) == 1
    assert exit_status(good, has_gpu=False) == 2
    assert exit_status(report(Row("t", "n", "not run", reason="no wheels")), has_gpu=True) == 3
    assert exit_status(report(Row("t", "n", "failed")), has_gpu=False) == 1
    assert "a / b c" in markdown(report(Row("t", "n", "failed", reason="a | b\nc"))), "a cell stays a cell"


COUNT = """
import time
from tests.gpu.contestants import Absent
from tests.gpu.handoff import PcieCounter
try:
    with PcieCounter() as counter:
        print(counter.how, *counter.during(lambda: time.sleep(0.5) or 7), sep="|")
except Absent as absent:
    print("absent", absent, sep="|")
"""


@pytest.mark.parametrize(("counters", "least", "most"), [("counters", 2e6, 2e6), ("", 0.9e6, 1e12)])
def test_bytes_over_pcie_are_counted_by_what_the_driver_has(tmp_path: Path, counters: str, least: float, most: float) -> None:
    """A stand-in for the driver: two million bytes between two looks, or two million a second."""
    driver = compiled(tmp_path)
    done = driver.run([sys.executable, "-c", COUNT], PYTHONPATH=str(ROOT), FAKE_NVML_PCIE=counters)
    how, crossed, result = done.stdout.strip().split("|")
    assert how == ("NVML's byte counters" if counters else "NVML's rates, sampled")
    assert least <= int(crossed) <= most and result == "7"


def test_a_driver_that_counts_nothing_is_said_so(tmp_path: Path) -> None:
    driver = compiled(tmp_path)
    driver.tells(FakeGpu(broken=15))
    done = driver.run([sys.executable, "-c", COUNT], PYTHONPATH=str(ROOT))
    assert done.stdout.startswith("absent|NVML does not count PCIe here"), done.stdout + done.stderr


# --- wheels -----------------------------------------------------------------------------------------------------------------


def laid_out(directory: Path, rng: np.random.Generator) -> tuple[dict, Path, dict[str, bytes]]:
    """Files of two sets in pieces of at most 1000 bytes, in visits of 2500."""
    source, contents = directory / "source", {}
    for name, sizes in {"base": (10, 999, 1000), "ipc": (1001, 4096, 0)}.items():
        (source / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            contents[f"{name}{number}.whl"] = data = rng.bytes(size)
            (source / name / f"{name}{number}.whl").write_bytes(data)
    entries = [wheels.entry_of(path, path.parent.name, 1000) for path in sorted(source.rglob("*.whl"))]
    manifest = {"python": "3.12", "sets": {"base": ["b"], "ipc": ["i"]}, "files": entries}
    wheels.assign_visits(entries, 2500)
    wheels.lay_out(manifest, source, directory / "out")
    return manifest, directory / "out", contents


def test_pieces_of_all_visits_make_the_files_again(tmp_path: Path, rng: np.random.Generator) -> None:
    manifest, out, contents = laid_out(tmp_path, rng)
    parts = [part for entry in manifest["files"] for part in entry["parts"]]
    assert len(parts) == 3 + 2 + 5 + 1
    for folder in out.iterdir():
        assert sum(path.stat().st_size for path in folder.iterdir() if path.name != wheels.MANIFEST) <= 2500
    told = wheels.join(out, tmp_path / "into")
    assert told["lacking"] == {}
    assert {name for names in told["whole"].values() for name in names} == set(contents)
    assert all((tmp_path / "into" / name).read_bytes() == data for name, data in contents.items())
    assert f"{len(list(out.iterdir()))} visits" in wheels.plan(manifest)


def test_what_did_not_come_or_is_damaged_is_named_and_its_file_left_out(tmp_path: Path, rng: np.random.Generator) -> None:
    _, out, _ = laid_out(tmp_path, rng)
    (missing,) = out.rglob("ipc1.whl.part02")
    visit = missing.parent.name
    missing.unlink()
    (damaged,) = out.rglob("ipc0.whl.part00")
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    told = wheels.join(out, tmp_path / "into")
    assert told["whole"]["ipc"] == ["ipc2.whl"] and len(told["whole"]["base"]) == 3
    assert told["lacking"] == {"ipc": ["ipc0.whl.part00 is damaged: carry it again", f"ipc1.whl.part02 ({visit}) did not come"]}
    assert wheels.join(tmp_path / "nothing", tmp_path / "into")["lacking"]["base"]


def test_each_set_is_asked_for_as_pyproject_has_it() -> None:
    wanted = wheels.requirements()
    assert set(wanted) == set(wheels.SETS)
    assert all(wanted.values())
    named = {one for plan in proof.plans(quick=False) for one in plan.needs.values()}
    assert named <= set(wheels.SETS)


# --- the list of what never ran ---------------------------------------------------------------------------------------------


def test_the_page_lists_all_that_never_ran() -> None:
    page = never_ran.PAGE.read_text(encoding="utf-8")
    assert never_ran.renewed(page) == page, "run: python -m tests.gpu.never_ran (PYTHONPATH=.)"


def test_what_is_listed_by_hand_exists() -> None:
    for file, function, what in never_ran.BRANCHES:
        tree = never_ran.ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert what and function in {name for name, _ in never_ran.functions(tree)}, f"{file} has no {function}"
    for file in never_ran.WHOLE:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert "cuda" in text.lower()


def test_a_function_that_calls_cuda_is_found() -> None:
    code = (
        "import cvcuda\nimport torch\nfrom cuda.bindings import driver as d\n"
        "def a(): d.cuInit(0)\ndef b(): return torch.cuda.Event()\ndef c(): return torch.ones(1)\n"
        "class K:\n    def e(self):\n        def f(): cvcuda.Stream()\n        f()\n    def g(self): pass\n"
    )
    assert never_ran.calling(code) == ["a", "b", "K.e"]


def test_each_page_and_message_names_files_that_are_there() -> None:
    page = never_ran.PAGE.read_text(encoding="utf-8")
    for plan in proof.plans(quick=False):
        assert f"| `{plan.name}` | {plan.limit_s:.0f} |" in page, plan.name
    for name in wheels.SETS:
        assert f"| `{name}` |" in page
