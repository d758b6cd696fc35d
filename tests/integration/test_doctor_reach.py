"""`headrace doctor` against a real coordinator with TLS and tokens, and a real store: faults are named, nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from headrace.testing.cluster import Cluster
from headrace.testing.processes import free_address
from headrace.testing.secured import paths

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=0, tls=True, tokens=True) as cluster:
        yield cluster


def worker_variables(fleet: Cluster) -> dict[str, str]:
    assert fleet.secured is not None
    files = paths(fleet.secured.directory / "services")
    return {
        "HEADRACE_WORKER_TLS_CERT": files.cert,
        "HEADRACE_WORKER_TLS_KEY": files.key,
        "HEADRACE_WORKER_TLS_CA": files.ca,
        "HEADRACE_WORKER_FLEET_TOKEN_FILE": str(fleet.secured.token_file("fleet")),
    }


def asked(role: str, *arguments: str, **environment: str) -> dict[str, dict[str, str]]:
    """Its lines on what can be reached, by name."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    command = [sys.executable, "-m", "headrace", "doctor", "--json", "--for", role, "--socket-dir", "", *arguments]
    result = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=False, timeout=90)
    said = json.loads(result.stdout)
    assert said["can_run"] == (result.returncode == 0)
    return {line["name"]: line for line in said["findings"] if line["subject"] == "reach"}


def test_with_the_right_secrets_all_is_well_and_nothing_is_left_behind(fleet: Cluster) -> None:
    environment = {**fleet.environment, **worker_variables(fleet), "HEADRACE_COORDINATOR_STORE": fleet.store_url}
    lines = asked("all", "--coordinator", fleet.addresses, **environment)
    assert {name: line["state"] for name, line in lines.items()} == {
        "coordinator, as a worker": "ok",
        "coordinator, as a trainer": "ok",
        "store": "ok",
    }
    log = fleet.logs()["coordinator-0"]
    assert "worker_seen" not in log
    assert "job_opened" not in log


def test_a_store_that_may_throw_records_away_is_noted(fleet: Cluster) -> None:
    with redis.Redis.from_url(fleet.store_url) as store:
        store.config_set("maxmemory-policy", "allkeys-lru")
        try:
            line = asked("all", HEADRACE_COORDINATOR_STORE=fleet.store_url)["store"]
        finally:
            store.config_set("maxmemory-policy", "noeviction")
    assert line["state"] == "note" and "maxmemory-policy noeviction" in line["advice"]


def test_a_pods_own_variable_names_the_coordinator(fleet: Cluster) -> None:
    lines = asked("worker", **worker_variables(fleet), HEADRACE_WORKER_COORDINATOR=fleet.addresses)
    assert lines["coordinator, as a worker"]["state"] == "ok"
    assert "coordinator, as a trainer" not in lines


def test_a_wrong_token_and_none_are_named(fleet: Cluster, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("a-token-of-another-fleet")
    changed = {**worker_variables(fleet), "HEADRACE_WORKER_FLEET_TOKEN_FILE": str(wrong)}
    (line,) = [line for line in asked("worker", "--coordinator", fleet.addresses, **changed).values() if line["state"] == "bad"]
    assert "HEADRACE_WORKER_FLEET_TOKEN_FILE" in line["advice"]
    assert wrong.read_text() not in json.dumps(line)
    tokenless = {name: value for name, value in fleet.environment.items() if "TOKEN" not in name}
    line = asked("trainer", "--coordinator", fleet.addresses, **tokenless)["coordinator, as a trainer"]
    assert line["state"] == "bad"
    assert "HEADRACE_TOKEN_FILE" in line["advice"]


def test_tls_that_is_missing_on_one_side_is_named(fleet: Cluster) -> None:
    line = asked("trainer", "--coordinator", fleet.addresses)["coordinator, as a trainer"]
    assert line["state"] == "bad"
    assert "the server speaks TLS and this side does not" in line["advice"]


def test_nobody_there(fleet: Cluster) -> None:
    nobody = free_address()
    lines = asked("trainer", "--coordinator", nobody, "--store", f"redis://:secret-word@{nobody}/0")
    assert lines["coordinator, as a trainer"]["state"] == lines["store"]["state"] == "bad"
    assert nobody in lines["coordinator, as a trainer"]["found"]
    assert "secret-word" not in json.dumps(lines)


def test_addresses_that_are_none(fleet: Cluster) -> None:
    lines = asked("trainer", "--coordinator", "nowhere", "--store", "ftp://x")
    assert lines["coordinator, as a trainer"]["state"] == lines["store"]["state"] == "bad"
    assert "host:port" in lines["coordinator, as a trainer"]["advice"]
