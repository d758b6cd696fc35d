"""A certificate is changed once in months: the one change that goes wrong must be an increase to Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.coordinator.instruments import Instruments
from headrace.telemetry.metrics import RELOADS
from headrace.testing.certificates import Authority, mount
from headrace.wire.tls import ServerTls
from headrace.worker.stats import WorkerStats


@pytest.mark.parametrize("service", ["coordinator", "worker"])
def test_changes_of_a_certificate_are_counted_from_zero(service: str, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    counts = Instruments(registry) if service == "coordinator" else WorkerStats(registry)

    def counted() -> dict[str, float | None]:
        name = f"headrace_{service}_tls_reloads_total"
        return {reason: registry.get_sample_value(name, {"reason": reason}) for reason in RELOADS}

    counts.certificate(None)
    assert counted() == {"ok": None, "refused": None}  # without TLS there is nothing to change
    authority = Authority()
    tls = ServerTls(mount(tmp_path, authority.issue()), on_reload=counts.tls_reloaded)
    counts.certificate(tls)
    assert counted() == {"ok": 0, "refused": 0}
    mount(tmp_path, {**authority.issue(), "tls.key": b"hello"})
    tls.newest()
    assert counted() == {"ok": 0, "refused": 1}
