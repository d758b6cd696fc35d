"""What can decode and augment here: each engine is made for a moment, those on a GPU only where one is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.cli.checks.finding import Finding
from headrace.core.errors import HeadraceError
from headrace.core.placement import GPU_ENGINES, Machine, choose, unfit
from headrace.worker.engines import registry
from headrace.worker.placement import AUTO

_SUBJECT = "engines"
# For measuring, and for tests: nobody chooses them for what they lack.
_UNLISTED = frozenset({"null"})


def check(machine: Machine, wanted: str) -> list[Finding]:
    """The native core, each engine with its libraries' versions, and the one that a worker here would run."""
    found = [_native(machine)]
    failed = dict[str, str]()
    for name in dict.fromkeys((*GPU_ENGINES, *registry.NAMES)):
        if name in _UNLISTED and name != wanted:
            continue
        why_not = unfit(machine, name) if name in GPU_ENGINES else ""
        if why_not and why_not == machine.no_gpus:
            why_not = "it needs a GPU: see below"
        fingerprint, why_not = ("", why_not) if why_not else _made(name)
        if fingerprint:
            found.append(Finding(_SUBJECT, name, "ok", _versions(fingerprint)))
        else:
            failed[name] = why_not
            found.append(Finding(_SUBJECT, name, "note", "cannot run here", why_not))
    return [*found, _chosen(machine, wanted, failed)]


def _native(machine: Machine) -> Finding:
    if machine.without_native:
        advice = f"{machine.without_native}; JPEG is decoded by libraries until then (docs/native_core.md)"
        return Finding(_SUBJECT, "native core", "note", "missing", advice)
    from headrace.worker.engines import native

    core = native.load()
    return Finding(_SUBJECT, "native core", "ok", f"{core.versions()}, uses {core.isa}")


def _made(name: str) -> tuple[str, str]:
    """(fingerprint, why it cannot be made)."""
    try:
        engine = registry.create(name, 1)
    except HeadraceError as error:
        return "", error.message
    try:
        return engine.fingerprint, ""
    finally:
        engine.close()


def _versions(fingerprint: str) -> str:
    """What stands in a fingerprint behind the engine's own name, in words that a line can be broken between."""
    return (fingerprint.partition(";")[2] or fingerprint).replace(";", "; ").replace(",", ", ")


def _chosen(machine: Machine, wanted: str, failed: Mapping[str, str]) -> Finding:
    """What a worker with this setting would run: `auto` passes over what cannot be made after all, as the worker does."""
    on_gpu = {name: why for name, why in failed.items() if name in GPU_ENGINES}
    choice = choose(replace(machine, missing={**machine.missing, **on_gpu}))
    engine = choice.engine if wanted == AUTO else wanted
    if engine in failed or engine not in registry.NAMES:
        advice = "choose an engine that can run here, or do what its line says"
        return Finding(_SUBJECT, f"--engine {wanted}", "bad", f"{engine} cannot run here", advice, of="worker")
    return Finding(_SUBJECT, f"--engine {wanted}", "ok", f"{engine}: {choice.reason}" if wanted == AUTO else engine)
