"""A closed row of the Grafana dashboard: the GPUs that workers may use, as NVML tells of them."""

from __future__ import annotations

from headrace.telemetry.panels import FLEET, RATE, Panel, Query, Row

_BY = "namespace, instance, gpu"
_LEGEND = "{{instance}} GPU {{gpu}}"
# Shown where no worker has a GPU, or where its GPU does not tell.
NO_GPU = "no GPU"


def _of_gpus(name: str) -> str:
    return f"max by ({_BY}) (headrace_gpu_{name}{{{FLEET}}})"


GPUS = Row(
    "GPUs",
    (
        Panel(
            "Workers by engine",
            "What decodes and augments, and on what. High `cpu` where GPUs were meant: `headrace doctor` on such a worker says "
            "what is missing.",
            "short",
            (Query(f"count by (engine, device) (headrace_worker_engine_info{{{FLEET}}})", "{{engine}} on {{device}}"),),
            width=6,
        ),
        Panel(
            "GPUs by model",
            "Those that workers may use; a GPU that several share counts once. High does not apply: this is what is there.",
            "short",
            (
                Query(
                    f"count by (name, driver) (max by (uuid, name, driver) (headrace_gpu_info{{{FLEET}}}))",
                    "{{name}}, driver {{driver}}",
                ),
            ),
            width=6,
            nothing=NO_GPU,
        ),
        Panel(
            "How busy GPUs are",
            "Share of time in which something ran on each, a trainer's work too. High while ranks wait and the engines are "
            "busy: the GPU is the limit. High beside a trainer: both take from one another; `headrace diagnose` measures how "
            "much.",
            "percentunit",
            (Query(_of_gpus("utilization_ratio"), _LEGEND),),
            most=1,
            nothing=NO_GPU,
        ),
        Panel(
            "GPU memory in use",
            "Share of each GPU's memory, by all processes. High, above 95%: the next large batch finds none, and is begun "
            "again with fewer beside it.",
            "percentunit",
            (Query(f"{_of_gpus('memory_used_bytes')} / {_of_gpus('memory_total_bytes')}", _LEGEND),),
            most=1,
            warn=0.9,
            alarm=0.95,
            nothing=NO_GPU,
        ),
        Panel(
            "Batches that found no GPU memory",
            "Each is begun again with fewer in the engine at once. High, or lasting: give workers a GPU of their own, or a job "
            "smaller batches.",
            "suffix: batches/s",
            (Query(f"sum by (instance) (rate(headrace_gpu_memory_full_total{{{FLEET}}}{RATE}))", "{{instance}}"),),
        ),
        Panel(
            "Hardware JPEG decoders",
            "Share of time in which each worked. High, near 100%: it is the limit, and what it cannot take is decoded beside "
            "it. At 0 while a GPU engine decodes: it is not used; see the runbook of HeadraceJpegDecoderUnused.",
            "percentunit",
            (Query(_of_gpus("jpeg_utilization_ratio"), _LEGEND),),
            most=1,
            nothing="no GPU with a hardware JPEG decoder",
        ),
        Panel(
            "Video decoders",
            "Share of time in which each worked. High: another program decodes video there; Headrace uses none.",
            "percentunit",
            (Query(_of_gpus("decoder_utilization_ratio"), _LEGEND),),
            most=1,
            nothing=NO_GPU,
        ),
        Panel(
            "Power",
            "What each GPU draws. High, at its limit, and throttled for `power_cap`: clocks are lowered for it.",
            "watt",
            (Query(_of_gpus("power_watts"), _LEGEND),),
            nothing=NO_GPU,
        ),
        Panel(
            "Temperature",
            "Of each GPU. High, above some 85 degrees: it slows down by itself soon; look at the node's cooling.",
            "celsius",
            (Query(_of_gpus("temperature_celsius"), _LEGEND),),
            nothing=NO_GPU,
        ),
        Panel(
            "GPUs that are slowed down, by why",
            "GPUs that run slower than they could. High `power_cap`: normal under full load; `hw_` and `sw_thermal`: too hot; "
            "`hw_slowdown`, `power_brake`: the node's power or hardware is at fault.",
            "short",
            (Query(f"sum by (reason) (max by ({_BY}, reason) (headrace_gpu_throttled{{{FLEET}}}))", "{{reason}}"),),
            nothing=NO_GPU,
        ),
    ),
)
