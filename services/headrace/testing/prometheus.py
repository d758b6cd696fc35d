"""A real Prometheus and a real Alertmanager on the loopback address, for the demo and the tests of rules and dashboards.

They come from the system (tools/prometheus.sh), not from Python packages. Any thread may call; one at a time.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError

from headrace.core.errors import ConfigInvalid, PeerGone, WaitTimeout
from headrace.testing.processes import ServiceProcess, free_address, start_program

START_DEADLINE_S = 60.0
_HTTP_S = 20.0
_POLL_S = 0.2


def program(name: str) -> str:
    """Where a program of Prometheus is. Raises ConfigInvalid where it is not installed."""
    found = shutil.which(name) or shutil.which(name.removeprefix("prometheus-"))
    if found is None:
        raise ConfigInvalid(f"{name} is not installed; run tools/prometheus.sh, or: apt-get install {name}", program=name)
    return found


@dataclass(slots=True)
class _Server:
    """One program that is ready when its /-/ready says so."""

    directory: Path
    address: str = field(default_factory=free_address)
    process: ServiceProcess | None = None

    @property
    def url(self) -> str:
        """http://host:port"""
        return f"http://{self.address}"

    def run(self, name: str, arguments: Sequence[str]) -> None:
        """Start it and wait until it is ready. Raises PeerGone or WaitTimeout with its log's last lines."""
        log = self.directory / "logs" / f"{name}.log"
        self.process = start_program(name, [program(name), *arguments], log)
        try:
            self.process.wait_until(lambda: _is_ready(f"{self.url}/-/ready"), "become ready", START_DEADLINE_S)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it; idempotent."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_HTTP_S):  # noqa: S310 - loopback, by http
            return True
    except (URLError, OSError):
        return False


@dataclass(slots=True)
class Prometheus(_Server):
    """Scrapes `targets` (name -> host:ports) as the chart's monitors do. A context manager.

    namespace: label of all that is scraped, as an operator puts it on. rules: files. alertmanager: host:port, or empty.
    """

    targets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    namespace: str = "local"
    interval_s: int = 1
    rules: Sequence[Path] = ()
    alertmanager: str = ""

    def __enter__(self) -> Self:
        config = self.directory / "prometheus.json"  # JSON is YAML, too
        config.write_text(json.dumps(self.configuration(), indent=1))
        data = self.directory / "prometheus-data"
        data.mkdir(parents=True, exist_ok=True)
        flags = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address={self.address}"]
        self.run("prometheus", [*flags, "--storage.tsdb.retention.time=1d", "--log.level=warn"])
        return self

    def configuration(self) -> dict[str, Any]:
        """What Prometheus reads."""
        every = f"{self.interval_s}s"
        managers = [{"static_configs": [{"targets": [self.alertmanager]}]}] if self.alertmanager else []
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(path.resolve()) for path in self.rules],
            "alerting": {"alertmanagers": managers},
            "scrape_configs": [
                {
                    "job_name": name,
                    "honor_labels": True,  # the metrics' own label job is a training's
                    "static_configs": [{"targets": list(addresses), "labels": {"namespace": self.namespace}}],
                }
                for name, addresses in self.targets.items()
            ],
        }

    def query(self, expr: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """An instant query's series. Raises ConfigInvalid for an expression that Prometheus refuses."""
        parameters = {"query": expr} | ({"time": f"{at_s:.3f}"} if at_s is not None else {})
        return list(self.get("query", parameters)["result"])

    def query_range(self, expr: str, begin_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """A range query's series."""
        parameters = {"query": expr, "start": f"{begin_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return list(self.get("query_range", parameters)["result"])

    def alerts(self) -> list[dict[str, Any]]:
        """All alerts that are pending or firing."""
        return list(self.get("alerts", {})["alerts"])

    def get(self, what: str, parameters: Mapping[str, str]) -> Any:
        """Data of one call of its HTTP API."""
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_HTTP_S) as answer:  # noqa: S310 - loopback, by http
                return json.load(answer)["data"]
        except HTTPError as error:
            raise ConfigInvalid(f"Prometheus refuses {parameters.get('query', what)}: {error.read().decode()}") from error
        except (URLError, OSError) as error:
            raise PeerGone(f"Prometheus at {self.address} does not answer: {error}") from error


@dataclass(slots=True)
class Alertmanager(_Server):
    """Sends each alert at once, and its end, to `webhook` (a URL). A context manager."""

    webhook: str = ""

    def __enter__(self) -> Self:
        config = self.directory / "alertmanager.json"
        config.write_text(json.dumps(self.configuration(), indent=1))
        data = self.directory / "alertmanager-data"
        flags = [f"--config.file={config}", f"--storage.path={data}", f"--web.listen-address={self.address}"]
        # It is alone: no gossip, and so no port for it.
        self.run("prometheus-alertmanager", [*flags, "--cluster.listen-address=", "--log.level=warn"])
        return self

    def configuration(self) -> dict[str, Any]:
        """What Alertmanager reads."""
        route = {
            "receiver": "webhook",
            "group_by": ["alertname", "namespace", "job"],
            "group_wait": "0s",
            "group_interval": "1s",
        }
        receiver = {"name": "webhook", "webhook_configs": [{"url": self.webhook, "send_resolved": True}]}
        return {"route": {**route, "repeat_interval": "1h"}, "receivers": [receiver]}


def wait_for(found: Callable[[], bool], what: str, deadline_s: float) -> None:
    """Poll until true. Raises WaitTimeout."""
    end = time.monotonic() + deadline_s
    while not found():
        if time.monotonic() > end:
            raise WaitTimeout(f"{what} did not come about within {deadline_s:g} s")
        time.sleep(_POLL_S)
