"""What a worker exports as of the moment of a scrape: its ranks' slots, the batches that it has begun, and its GPUs.

`collect` runs on the threads of the metrics server.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.core.placement import Gpu
from headrace.telemetry import metrics
from headrace.telemetry.nvml import THROTTLE_REASONS, Figures, Nvml, NvmlFailed, NvmlMissing
from headrace.worker.placement import own_gpus

log = structlog.get_logger()

BATCH_STATES = ("reading", "engine")


class Occupancy(Collector):
    """slots: how many by (job, transport, state). batches: how many that are begun, by state."""

    def __init__(self, slots: Callable[[], Counter[tuple[str, str, str]]], batches: Callable[[], Counter[str]]) -> None:
        self._slots = slots
        self._batches = batches

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: labels come with the jobs."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """As it is now."""
        slots, batches = metrics.gauge_family("headrace_slots"), metrics.gauge_family("headrace_batches_in_flight")
        for labels, count in sorted(self._slots().items()):
            slots.add_metric(labels, count)
        begun = self._batches()
        for state in BATCH_STATES:
            batches.add_metric([state], begun[state])
        return slots, batches


class GpuFigures(Collector):
    """The GPUs of this process. A GPU that fails to answer is told once, and is not exported while it fails."""

    def __init__(self, nvml: Nvml, gpus: Iterable[Gpu]) -> None:
        self._nvml = nvml
        self._gpus = tuple(gpus)
        self._lock = threading.Lock()
        self._failed: set[str] = set()

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """As NVML tells now."""
        info = metrics.gauge_family("headrace_gpu_info")
        throttled = metrics.gauge_family("headrace_gpu_throttled")
        gauges = {name: metrics.gauge_family(f"headrace_gpu_{name}") for name in _GAUGES}
        for gpu in self._gpus:
            found = self._figures(gpu)
            if found is None:
                continue
            labels = [_label(gpu)]
            info.add_metric([*labels, gpu.uuid, gpu.name, self._nvml.driver], 1)
            for name, of in _GAUGES.items():
                value = of(found)
                if value is not None:
                    gauges[name].add_metric(labels, value)
            for reason in THROTTLE_REASONS if found.throttled is not None else ():
                throttled.add_metric([*labels, reason], reason in (found.throttled or ()))
        return info, throttled, *gauges.values()

    def _figures(self, gpu: Gpu) -> Figures | None:
        try:
            found = self._nvml.figures(gpu)
        except NvmlFailed as error:
            with self._lock:
                news = gpu.uuid not in self._failed
                self._failed.add(gpu.uuid)
            if news:
                log.warning("gpu_figures_failed", gpu=gpu.uuid, why=str(error), note="look at `nvidia-smi` on the node")
            return None
        with self._lock:
            self._failed.discard(gpu.uuid)
        return found


def export_gpus(registry: CollectorRegistry, needed: bool) -> Callable[[], None]:
    """Export what NVML tells of this process's GPUs. needed: the engine runs on one: silence is told. Returns what ends it."""
    try:
        nvml = Nvml()
        gpus = own_gpus(nvml)
    except (NvmlMissing, NvmlFailed) as error:
        (log.warning if needed else log.debug)("no_gpu_figures", why=str(error))
        return lambda: None
    if gpus:
        registry.register(GpuFigures(nvml, gpus))
    return nvml.close


_GAUGES: dict[str, Callable[[Figures], float | None]] = {
    "utilization_ratio": lambda found: found.utilization,
    "memory_used_bytes": lambda found: found.memory_used_bytes,
    "memory_total_bytes": lambda found: found.memory_total_bytes,
    "jpeg_utilization_ratio": lambda found: found.jpeg_utilization,
    "decoder_utilization_ratio": lambda found: found.decoder_utilization,
    "power_watts": lambda found: found.power_watts,
    "temperature_celsius": lambda found: found.temperature_celsius,
}


def _label(gpu: Gpu) -> str:
    """NVML's number, with the slice's name where it is one: as many as a machine has."""
    return f"{gpu.index}/{gpu.uuid[:12]}" if gpu.mig else str(gpu.index)
