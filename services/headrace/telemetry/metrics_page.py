"""docs/metrics.md, made from the catalogue: `python -m headrace.telemetry.metrics_page` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.core.starvation import CAUSES
from headrace.core.verdict import ACTION, MEANING, VERDICTS
from headrace.telemetry.metrics import CATALOGUE, LABELS, STAGES, Metric

PAGE = Path("docs/metrics.md")

LABEL_MEANING = {
    "job": "a training, by the name of its JobSpec; only those that ranks used lately",
    "rank": "number of a trainer of its newest attempt",
    "worker": "name of a worker that lives",
    "stage": ", ".join(STAGES),
    "cause": "why a rank waited: the list below",
    "reason": "why something was refused, failed or moved: codes of docs/errors.md, bad samples' reasons, reasons of moves",
    "transport": "cuda_ipc, shm, grpc",
    "verdict": ", ".join(VERDICTS),
    "pool": "workers that are scaled together, by their setting",
    "engine": "what decodes and augments",
    "device": "cpu, gpu",
    "state": "what a slot or a batch is in: the metric's help lists them",
    "gpu": "number of a GPU of the worker's node; MIG slices have the beginning of their UUID, too",
    "uuid": "a GPU's",
    "name": "a GPU's model",
    "driver": "version of the NVIDIA driver",
}

_HEAD = """# Metrics

Made from the catalogue in `headrace.telemetry.metrics`; change it there and run `python -m headrace.telemetry.metrics_page`.

Coordinators serve them at `/metrics` of the admin address (port 7301), workers at their metrics address (port 7311). One
process a pod serves all of its metrics. Trainers need no port: what they waited comes with their reports, and
coordinators export it.

- **Keep the label `job`.** It is a training's name. Scrape with `honor_labels: true`, as the chart's monitors do, or Prometheus
  renames it.
- **Replicas.** Each coordinator exports all jobs and ranks: take `max by (job, rank)` over replicas. What a process counts of
  its own doing (moves of lanes, errors, refused calls, batches made) is summed.
- **What a scrape costs**: [loadtest/results/scrape.md](../loadtest/results/scrape.md). Alerts and dashboard:
  [monitoring.md](monitoring.md).

"""


def main() -> None:
    """Write the page to the path given, or to docs/."""
    (Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE).write_text(text())


def text() -> str:
    """The page."""
    parts = [_HEAD]
    for by, title in (("coordinator", "Coordinators"), ("worker", "Workers")):
        parts.append(f"## {title}\n\n| metric | type | labels | what it is |\n|---|---|---|---|\n")
        parts.extend(_line(metric) for metric in CATALOGUE.values() if metric.by == by)
        parts.append("\n")
    parts.append("## Labels\n\n| label | values |\n|---|---|\n")
    parts.extend(f"| `{label}` | {LABEL_MEANING[label]} |\n" for label in sorted(LABELS))
    parts.append(
        "\n## Causes of waits\n\nThey add up to the whole wait of a rank.\n\n"
        "| cause | means | what to do first |\n|---|---|---|\n"
    )
    parts.extend(f"| `{cause}` | {MEANING[cause]} | {ACTION[cause]} |\n" for cause in CAUSES)
    return "".join(parts)


def _line(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.buckets)}." if metric.buckets else ""
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.help}{buckets} |\n"


if __name__ == "__main__":
    main()
