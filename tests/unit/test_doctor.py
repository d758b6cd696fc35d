"""`headrace doctor` on many machines: as a process with its own environment, limits, user and (made up) driver."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.checks import limits, sharing
from headrace.cli.checks.finding import Finding, for_role
from headrace.telemetry.socket_trust import VARIABLE
from headrace.worker.unix_socket import BoundSocket
from tests.fake_nvml.driver import GIB, FakeDriver, FakeGpu, compiled

STRANGER, GROUP = 61002, 61050
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Not below tmp_path: others may not enter that, and a socket's path is short."""
    made = Path(tempfile.mkdtemp(prefix="hr-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return compiled(tmp_path_factory.mktemp("driver"))


class Told:
    """What it said. lines: by name."""

    def __init__(self, result: subprocess.CompletedProcess[str]) -> None:
        assert result.stdout.startswith("{"), result.stdout + result.stderr
        said = json.loads(result.stdout)
        self.code = result.returncode
        self.lines: dict[str, dict[str, str]] = {line["name"]: line for line in said["findings"]}
        assert said["can_run"] == (self.code == 0) == all(line["state"] != "bad" for line in said["findings"])
        for line in said["findings"]:
            assert line["found"]
            assert line["advice"] or line["state"] == "ok", f"{line} says not what to do"

    def bad(self) -> list[str]:
        return [name for name, line in self.lines.items() if line["state"] == "bad"]

    def text(self, name: str) -> str:
        return f"{self.lines[name]['found']} | {self.lines[name]['advice']}"


def asked(*arguments: str, before: Callable[[], None] | None = None, directory: Path | None = None, **environment: str) -> Told:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    where = ["--socket-dir", str(directory)] if directory else ["--socket-dir", ""]
    command = [sys.executable, "-m", "headrace", "doctor", "--json", *where, *arguments]
    return Told(
        subprocess.run(
            command, env={**clean, **environment}, capture_output=True, text=True, check=False, timeout=90, preexec_fn=before
        )
    )


def test_a_machine_without_a_driver_explains_itself() -> None:
    told = asked("--engine", "auto", LD_LIBRARY_PATH="/nowhere")
    if told.lines.get("driver", {}).get("found") != "none":
        pytest.skip("this machine has an NVIDIA driver")
    assert told.code == 0
    assert "no NVIDIA driver" in told.text("driver")
    assert "nvidia.com/gpu" in told.text("driver")
    assert "all runs on the CPU" in told.text("driver")
    assert told.lines["cvcuda"]["state"] == told.lines["dali-gpu"]["state"] == told.lines["cuda_ipc"]["state"] == "note"
    assert told.lines["cpu"]["state"] == "ok"
    assert re.search(r"simplejpeg=\d", told.text("cpu"))
    assert told.text("--engine auto").startswith("cpu: ")


def test_each_gpu_has_a_line(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(uuid="GPU-one"), FakeGpu(uuid="GPU-two", name="Tesla T4", jpeg=-1), FakeGpu(uuid="GPU-cut", slices=1))
    told = asked(**driver.environment)
    assert told.text("driver").startswith("570.1, runs CUDA 12.8")
    assert "NVIDIA H100, GPU-one, 72.0 of 80.0 GiB free, hardware JPEG decoder" in told.text("GPU 0")
    assert "Tesla T4" in told.text("GPU 1")
    assert "no hardware JPEG decoder" in told.text("GPU 1")
    assert told.lines["GPU 2"]["state"] == "note"
    assert "MIG" in told.text("GPU 2")
    # The stand-in has no CUDA: what would share memory says so, and what to do instead.
    assert "batches go by shm" in told.text("cuda_ipc, GPU 0")
    assert told.code == 0


def test_gpus_that_are_not_shown_or_too_full_are_named(driver: FakeDriver) -> None:
    driver.tells(FakeGpu(used=79 * GIB))
    told = asked(**driver.environment)
    assert "1.0 of 80.0 GiB free" in told.text("dali-gpu") or "not installed" in told.text("dali-gpu")
    told = asked(**driver.environment, CUDA_VISIBLE_DEVICES="5")
    assert "CUDA_VISIBLE_DEVICES='5' shows none of the 1 GPUs" in told.text("GPU")


@pytest.mark.parametrize(
    ("variable", "name", "words"),
    [
        ({"HEADRACE_WORKER_ENGIN": "cpu"}, "a worker's settings", "did you mean HEADRACE_WORKER_ENGINE?"),
        ({"HEADRACE_WORKER_THREADS": "many"}, "a worker's settings", "threads"),
        ({"HEADRACE_WORKER_ENGINE": "dali-gpu"}, "--engine dali-gpu", "cannot run here"),
    ],
)
def test_what_keeps_a_worker_from_running_is_no_affair_of_a_trainers(variable: dict[str, str], name: str, words: str) -> None:
    told = asked(LD_LIBRARY_PATH="/nowhere", **variable)
    assert (told.code, told.bad()) == (1, [name])
    assert words in told.text(name)
    assert asked("--for", "trainer", LD_LIBRARY_PATH="/nowhere", **variable).code == 0


def test_a_trainers_image_has_the_client_alone(tmp_path: Path, sockets: Path) -> None:
    for module in ("rich", "PIL", "pydantic", "pydantic_settings", "prometheus_client", "obstore", "fastapi", "simplejpeg"):
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module named {module}', name='{module}')\n")
    command = [sys.executable, "-m", "headrace", "doctor", "--for", "trainer", "--socket-dir", str(sockets)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": "/nowhere"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "note  program: a worker's settings: pydantic" in result.stdout
    assert re.search(r"^note  engines: cpu: cannot run here -- .*pip install 'headrace\[worker\]'", result.stdout, re.MULTILINE)
    assert f"ok    sharing: socket directory: {sockets}" in result.stdout
    assert result.stdout.endswith("A job can run here.\n")


def test_few_open_files() -> None:
    told = asked(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50)))
    assert told.bad() == ["open files"]
    assert "ulimit -n" in told.text("open files")
    told = asked(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    assert (told.code, told.lines["open files"]["state"]) == (0, "note")


def test_memory_against_the_slots() -> None:
    assert asked("--ranks", "1", "--batch-size", "1").lines["memory"]["state"] == "ok"
    told = asked("--ranks", "100000")
    assert (told.code, told.lines["memory"]["state"]) == (0, "note")
    assert "100000 ranks x 4 slots x 37 MiB" in told.text("memory")
    told = asked("--batch-size", "100000", "--image", "4096x4096")
    assert told.bad() == ["memory"]
    assert "Not enough for one rank" in told.text("memory")


@pytest.mark.parametrize("image", ["224", "0x224", "axb", "224x224x3"])
def test_an_impossible_image_is_refused(image: str) -> None:
    command = [sys.executable, "-m", "headrace", "doctor", "--image", image]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 2
    assert "such as 224x224" in result.stderr


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("x y", None), ("50000 100000", 0.5)]
)
def test_the_quota_of_cores(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert limits.cpu_quota(tmp_path) == quota
    found = limits._cores(tmp_path)
    few = quota is not None and quota < len(os.sched_getaffinity(0)) - 0.5
    assert (found.state == "note") == few
    assert ("--threads" in found.advice) == few
    assert limits.cpu_quota(tmp_path / "none") is None


def test_a_slow_clock_is_told(tmp_path: Path) -> None:
    for source, state in (("tsc", "ok"), ("kvm-clock", "ok"), ("hpet", "note")):
        (tmp_path / "clock").write_text(f"{source}\n")
        assert limits._clock(tmp_path / "clock").state == state
    assert limits._clock(tmp_path / "none").state == "ok"


def test_what_is_bad_for_the_other_role_is_a_note() -> None:
    findings = [Finding("s", role, "bad", "x", "Do.", of=role) for role in ("all", "worker", "trainer")]  # type: ignore[arg-type]
    for role, states in {"all": "bad bad bad", "worker": "bad bad note", "trainer": "bad note bad"}.items():
        assert " ".join(each.state for each in for_role(findings, role)) == states  # type: ignore[arg-type]


# --- the directory of sockets ----------------------------------------------------------------------------------------


def test_a_directory_that_others_may_write_to(sockets: Path) -> None:
    sockets.chmod(0o777)
    told = asked(directory=sockets)
    assert told.bad() == ["socket directory"]
    assert "others may write" in told.lines["socket directory"]["advice"].lower()
    assert f"mode {0o777:o}" in told.text("socket directory")


def test_a_directory_that_is_to_be_a_groups_and_is_not(sockets: Path) -> None:
    (finding,) = sharing.sockets(str(sockets), str(GROUP))
    assert (finding.state, finding.of) == ("bad", "worker")
    assert f"chgrp {GROUP}" in finding.advice
    if os.geteuid() == 0:
        os.chown(sockets, 0, GROUP)
        sockets.chmod(0o2750)
        (finding,) = sharing.sockets(str(sockets), str(GROUP))
        assert finding.state == "ok"


def test_no_directory_at_all_is_a_note() -> None:
    (finding,) = sharing.sockets("", "")
    assert finding.state == "note"
    assert "HEADRACE_WORKER_SOCKET_DIR" in finding.advice


def test_a_directory_that_a_worker_would_make(sockets: Path) -> None:
    (finding,) = sharing.sockets(str(sockets / "new" / "deep"), "")
    assert finding.state == "ok"
    assert not (sockets / "new").exists()


def test_sockets_of_workers_that_live_and_that_died(sockets: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(str(sockets / "dead.sock"))
    left.close()
    living = BoundSocket(sockets / "living.sock", mode=0o600)
    try:
        directory, dead, alive = sharing.sockets(str(sockets), "")
    finally:
        living.close()
    assert {directory.state, dead.state, alive.state} == {"ok"}
    assert (dead.name, dead.found) == ("dead.sock", "nobody listens")
    assert "a worker listens" in alive.found


# As that user may not be able to read this Python, all is imported before.
AS_ANOTHER = """
import json, os, sys
from dataclasses import asdict
from headrace.cli.checks import sharing
directory, user, groups = sys.argv[1], int(sys.argv[2]), [int(g) for g in sys.argv[3].split(",") if g]
sharing.sockets(directory, "")
os.setgroups(groups); os.setgid(user); os.setuid(user)
print(json.dumps([asdict(found) for found in sharing.sockets(directory, "")]))
"""


def as_another(directory: Path, groups: str = "") -> list[dict[str, Any]]:
    command = [sys.executable, "-c", AS_ANOTHER, str(directory), str(STRANGER), groups]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@needs_root
def test_another_user_is_told_whose_the_directory_is_and_what_to_put_in_the_pod(sockets: Path) -> None:
    os.chown(sockets, 0, GROUP)
    sockets.chmod(0o2750)
    bound = BoundSocket(sockets / "w.sock", mode=0o660)
    os.chown(sockets / "w.sock", 0, GROUP)
    try:
        worker, trainer = as_another(sockets)
        assert (worker["state"], worker["of"]) == ("bad", "worker")
        assert f"user 0, group {GROUP}, mode 2750" in worker["found"]
        assert f"User {STRANGER} with groups {STRANGER} may make no socket there" in worker["advice"]
        assert "runAsUser" in worker["advice"]
        assert (trainer["state"], trainer["found"]) == ("note", "permission denied (EACCES)")
        assert f"user {STRANGER} with groups {STRANGER} may not enter {sockets}" in trainer["advice"].lower().replace(
            "user", "user"
        )
        assert f"supplementalGroups: [{GROUP}]" in trainer["advice"]
        # In the group he gets in, and may still make no socket.
        worker, trainer = as_another(sockets, str(GROUP))
        assert worker["state"] == "bad"
        assert (trainer["name"], trainer["state"]) == ("w.sock", "ok")
    finally:
        bound.close()


@needs_root
def test_another_user_below_a_directory_that_he_may_not_enter(sockets: Path) -> None:
    inner = sockets / "inner"
    inner.mkdir(0o755)
    (finding,) = as_another(inner)
    assert finding["state"] == "bad"
    assert f"may not enter {sockets}" in finding["advice"]
    (missing,) = as_another(Path("/proc/1/none/sockets"))
    assert missing["state"] == "bad"


@needs_root
def test_a_trainer_that_would_not_believe_the_worker_is_told_whom_to_name(sockets: Path) -> None:
    os.chown(sockets, STRANGER, -1)
    bound = BoundSocket(sockets / "w.sock", mode=0o600)
    try:
        worker, trainer = sharing.sockets(str(sockets), "")
    finally:
        bound.close()
    assert (worker.state, trainer.state) == ("bad", "note")
    assert f"belongs to user {STRANGER}" in trainer.advice
    assert VARIABLE in trainer.advice


def test_a_list_of_owners_that_is_none(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "me,you")
    (finding,) = sharing.sockets(str(sockets), "")
    assert (finding.name, finding.state) == (VARIABLE, "bad")


def test_the_table_is_for_people() -> None:
    command = [sys.executable, "-m", "headrace", "doctor", "--socket-dir", ""]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "COLUMNS": "100"}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.rstrip().endswith("A job can run here.")
    assert max(map(len, result.stdout.splitlines())) <= 100
