"""Renders the chart with real Helm binaries (tools/helm.sh), and walks what comes out."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/headrace"
HELMS = ("3.19.0", "4.3.1")
SETS = tuple(sorted(path.stem for path in (CHART / "ci").glob("*.yaml")))
NAMESPACE, RELEASE = "ml", "demo"
LOWEST, HIGHEST = "1.25.0", "1.37.0"

Object = dict[str, Any]


def binary(version: str) -> str:
    """Path of a Helm; skips the test where there is none."""
    path = ROOT / ".tools" / f"helm-{version}"
    if not path.exists():
        pytest.skip(f"no Helm {version} in .tools: tools/helm.sh gets it, on Linux x86-64")
    return str(path)


def kubernetes_of(values: str) -> tuple[str, ...]:
    """Lowest and highest Kubernetes that a set of values is for."""
    return ("1.29.0" if values == "sidecar" else LOWEST, HIGHEST)


def run(version: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One call of Helm. text: what it reads from standard input, for `-f -`."""
    return subprocess.run([binary(version), *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)


@functools.cache
def rendered(values: str, version: str = HELMS[-1], kubernetes: str = HIGHEST) -> tuple[Object, ...]:
    """All objects of one of ci/*.yaml, as plain data."""
    result = run(
        version, "template", RELEASE, str(CHART), "-n", NAMESPACE, "-f", str(CHART / f"ci/{values}.yaml"),
        "--kube-version", kubernetes,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return parsed(result.stdout)


@functools.cache
def with_values(text: str) -> tuple[Object, ...]:
    """All objects for values given as YAML beside the image's name."""
    result = attempt(text)
    assert result.returncode == 0, result.stderr
    return parsed(result.stdout)


def attempt(text: str, version: str = HELMS[-1], kubernetes: str = HIGHEST) -> subprocess.CompletedProcess[str]:
    """Render with values given as YAML, whether that works or not."""
    default = str(CHART / "ci/default.yaml")
    arguments = ("template", RELEASE, str(CHART), "-n", NAMESPACE, "-f", default, "-f", "-", "--kube-version", kubernetes)
    return run(version, *arguments, text=text)


def parsed(output: str) -> tuple[Object, ...]:
    """The documents, without empty ones."""
    return tuple(document for document in yaml.load_all(output, Loader=StrictLoader) if document)


class StrictLoader(yaml.CSafeLoader):
    """Refuses a key that is there twice: Kubernetes would take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """See yaml."""
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{twice} twice at {node.start_mark}"
        return super().construct_mapping(node, deep)


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    """Those of these kinds."""
    return [item for item in objects if item["kind"] in kinds]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    """The one of this kind whose name ends so."""
    (found,) = [item for item in of_kind(objects, kind) if item["metadata"]["name"].endswith(name)]
    return found


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object, Object]]:
    """(name of its owner, labels, spec) of every pod."""
    for item in objects:
        if item["kind"] == "Pod":
            yield item["metadata"]["name"], item["metadata"]["labels"], item["spec"]
        elif item["kind"] in ("Deployment", "DaemonSet", "StatefulSet", "Job"):
            template = item["spec"]["template"]
            yield item["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def containers(spec: Object) -> list[Object]:
    """All of a pod, those before the others too."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def matches(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a pod has these labels."""
    return selector["matchLabels"].items() <= labels.items() if selector else True
