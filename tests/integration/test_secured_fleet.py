"""A fleet under mutual TLS and tokens keeps its promises, while certificates are swapped and a worker is killed."""

from __future__ import annotations

import ssl
from pathlib import Path

import psutil
import pytest

from headrace.core.job import JobSpec
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.job_run import StepEvent, run_job

SAMPLES = 480
EPOCHS = 2

pytestmark = pytest.mark.timeout(200)


def served_at(address: str) -> str:
    """The certificate that a listener shows now, PEM."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=20)


def test_exactly_once_by_both_transports_with_new_certificates_and_a_worker_killed(tmp_path: Path) -> None:
    dataset = make_demo_dataset(tmp_path / "set", samples=SAMPLES, shards=2)
    job = JobSpec("secured", str(dataset), 16, seed=3, tail="pad")
    commands: set[str] = set()
    done: list[str] = []
    with Cluster(tmp_path, coordinators=2, workers=2, tls=True, tokens=True) as cluster:
        secured = cluster.secured
        assert secured is not None
        secret = [secured.token(name) for name in ("fleet", "job", "admin")]

        def on_step(event: StepEvent) -> None:
            if not done:
                done.append("looked")
                for process in psutil.Process().children(recursive=True):
                    commands.update(process.cmdline())
            if event.epoch == 0 and event.step == 6 and "swapped" not in done:
                done.append("swapped")
                for who in ("services", "trainers"):
                    secured.renew(who)
            if event.epoch == 1 and event.step == 3 and "killed" not in done:
                done.append("killed")
                cluster.kill_worker(0)
                cluster.add_worker(wait=False)
                cluster.kill_coordinator(0)
                cluster.coordinators[0].start()

        result = run_job(
            job,
            cluster.addresses,
            ["shm", "grpc"],
            tmp_path / "ranks",
            samples=SAMPLES,
            dropped=0,
            epochs=EPOCHS,
            deadline_s=120,
            on_step=on_step,
            environment=cluster.environment,
        )
        assert result.clean, result.audits
        assert {"swapped", "killed"} <= set(done)
        assert {name for stats in result.stats for name, _ in stats["transports"].values()} == {"shm", "grpc"}
        new = (secured.directory / "services/tls.crt").read_text()
        workers = [member for member in cluster.workers if member.name != "worker-0"]
        cluster.coordinators[0].wait_ready()
        for member in [*workers, *cluster.coordinators]:
            for address in (member.address, member.admin_address):
                assert served_at(address).strip() == new.strip(), member.name
        logs = cluster.logs()
    written = "".join(logs.values()) + "".join(path.read_text() for path in (tmp_path / "ranks").glob("*.log"))
    stored = b"".join(path.read_bytes() for path in cluster.store_dir.rglob("*") if path.is_file())
    for token in secret:
        assert token not in written
        assert token.encode() not in stored
        assert not any(token in word for word in commands)
    assert b"token_hashes" in stored
    assert "not_secured" not in written
    assert any("headrace.client.fetcher" in word for word in commands)
    assert '"certificate_reloaded"' in logs["worker-1"]
    assert '"certificate_refused"' not in written
