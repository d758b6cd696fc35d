"""The chart renders with both Helms, to the same objects, and Kubernetes' schemas accept every field of them."""

from __future__ import annotations

import functools
import importlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.chart.helm import (
    CHART,
    HELMS,
    HIGHEST,
    NAMESPACE,
    RELEASE,
    ROOT,
    SETS,
    attempt,
    containers,
    kubernetes_of,
    named,
    parsed,
    pods,
    rendered,
    run,
)

# Kinds of others, as packages have them.
MODELS = {
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "cert-manager.io/v1": "cloudcoil.models.cert_manager.v1",
}
every_set = pytest.mark.parametrize("values", SETS)
CASES = [(values, kubernetes) for values in SETS for kubernetes in kubernetes_of(values)]
every_case = pytest.mark.parametrize(("values", "kubernetes"), CASES)


@every_set
@pytest.mark.parametrize("version", HELMS)
def test_lint_finds_nothing(version: str, values: str) -> None:
    highest = kubernetes_of(values)[1]
    result = run(version, "lint", "--strict", str(CHART), "-f", str(CHART / f"ci/{values}.yaml"), "--kube-version", highest)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout


@every_case
def test_both_helms_make_the_same_objects(values: str, kubernetes: str) -> None:
    three, four = (rendered(values, version, kubernetes) for version in HELMS)
    assert len(three) > 5
    assert ordered(three) == ordered(four)


def ordered(objects: tuple[dict[str, Any], ...]) -> list[str]:
    """As text to compare: Helm 4 orders kinds differently."""
    return sorted(json.dumps(item, sort_keys=True) for item in objects)


@every_case
def test_kubernetes_knows_every_field(values: str, kubernetes: str) -> None:
    version = kubernetes.rpartition(".")[0]
    checked = 0
    for item in rendered(values, HELMS[0], kubernetes):
        if item["apiVersion"] not in MODELS:
            kubernetes_validate.validate(item, version, strict=True)
            checked += 1
    assert checked > 5


def test_the_schemas_would_find_a_misspelt_field() -> None:
    item = json.loads(json.dumps(next(item for item in rendered("default") if item["kind"] == "Deployment")))
    item["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(item, "1.37", strict=True)


def closed(schema: Any) -> Any:
    """The same schema, with every object refusing fields that it doesn't name, and patterns as Python writes them."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            schema = {**schema, "pattern": schema["pattern"].replace("^(?i)", "(?i)^")}
        made = {key: closed(value) for key, value in schema.items()}
        return {"additionalProperties": False, **made} if "properties" in schema else made
    return [closed(value) for value in schema] if isinstance(schema, list) else schema


@functools.cache
def validator(version: str, kind: str) -> Any:
    """Of a kind's schema; built once, since that takes a second."""
    schema = closed(getattr(importlib.import_module(MODELS[version]), kind).model_json_schema(by_alias=True))
    return jsonschema.validators.validator_for(schema)(schema)


def check_custom(item: dict[str, Any]) -> None:
    """Raises ValidationError."""
    validator(item["apiVersion"], item["kind"]).validate(item)


@every_set
def test_operators_know_every_field(values: str) -> None:
    for item in rendered(values):
        if item["apiVersion"] in MODELS:
            check_custom(item)


def test_all_kinds_of_others_were_checked() -> None:
    kinds = {item["kind"] for values in SETS for item in rendered(values) if item["apiVersion"] in MODELS}
    assert kinds == {"Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}


def test_their_schemas_would_find_a_misspelt_field() -> None:
    item = json.loads(json.dumps(next(item for item in rendered("autoscaled") if item["kind"] == "ScaledObject")))
    item["spec"]["minReplicas"] = 1
    with pytest.raises(jsonschema.ValidationError, match="minReplicas"):
        check_custom(item)


@every_set
def test_names_are_unique_and_short_enough(values: str) -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in rendered(values)]
    assert len(names) == len(set(names))
    # A pod of a StatefulSet, and what Deployments put behind a name, must stay a DNS label of 63.
    assert max(len(name) for _, name in names) <= 52
    assert {item["metadata"].get("namespace", NAMESPACE) for item in rendered(values)} == {NAMESPACE}


@pytest.mark.parametrize("version", HELMS)
def test_a_packed_chart_is_the_same(version: str, tmp_path: Path) -> None:
    """Nothing that the templates read is left out by .helmignore."""
    packed = run(version, "package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    (archive,) = tmp_path.iterdir()
    values = str(CHART / "ci/monitored.yaml")
    result = run(version, "template", RELEASE, str(archive), "-n", NAMESPACE, "-f", values, "--kube-version", HIGHEST)
    assert result.returncode == 0, result.stderr
    assert parsed(result.stdout) == rendered("monitored", version)
    with tarfile.open(archive) as files:
        assert not [name for name in files.getnames() if "/ci/" in name]


def test_long_names_are_cut() -> None:
    result = run(HELMS[1], "template", "a" * 53, str(CHART), "-f", str(CHART / "ci/default.yaml"))
    assert result.returncode == 0, result.stderr
    assert max(len(item["metadata"]["name"]) for item in yaml.safe_load_all(result.stdout) if item) <= 63


@every_set
def test_notes_say_the_next_step(values: str) -> None:
    """By Helm 4: Helm 3 asks a cluster even for a dry run."""
    arguments = ("-n", NAMESPACE, "-f", str(CHART / f"ci/{values}.yaml"), "--dry-run=client")
    result = run(HELMS[1], "install", RELEASE, str(CHART), *arguments)
    assert result.returncode == 0, result.stderr
    notes = result.stdout.partition("NOTES:")[2]
    assert f"helm -n {NAMESPACE} test {RELEASE}" in notes
    assert "charged to the TRAINER's pod" in notes
    assert "<nil>" not in notes
    assert "%!" not in notes


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    """Both ways: a key without a description, and a description of nothing, are found."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def names(part: dict[str, Any]) -> dict[str, Any]:
        part = part.get("allOf", [part])[0]
        target = schema["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        return target.get("properties", {})

    def compare(given: Any, part: dict[str, Any], path: str) -> None:
        known = names(part)
        if not known or not isinstance(given, dict):
            return
        optional = {"global", "localhostProfile", "podSelector", "namespaceSelector", "ipBlock"}
        assert set(given) ^ set(known) <= optional, f"{path}: {set(given) ^ set(known)}"
        for key, value in given.items():
            compare(value, known[key], f"{path}.{key}")

    compare(values, schema, "values")


def leading(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of every key; what is below `resources` is Kubernetes' own."""
    for key, value in values.items():
        yield (*path, key), value
        if isinstance(value, dict) and key != "resources":
            yield from leading(value, (*path, key))


def nested(paths: Iterable[tuple[str, ...]]) -> str:
    """Values in which each of these is null, as YAML."""
    values: dict[str, Any] = {}
    for *parents, key in paths:
        at = values
        for parent in parents:
            at = at.setdefault(parent, {})
        at[key] = None
    return yaml.safe_dump(values)


EMPTY = ("", {}, [])
PATHS = dict(leading(yaml.safe_load((CHART / "values.yaml").read_text())))


@every_set
@pytest.mark.parametrize("version", HELMS)
def test_null_is_empty_where_empty_is_the_default(version: str, values: str) -> None:
    """`tolerations:` with nothing behind it, as one writes it."""
    given = dict(leading(yaml.safe_load((CHART / f"ci/{values}.yaml").read_text())))
    null = nested(path for path, value in PATHS.items() if value in EMPTY and path not in given and path[0] != "workers")
    files = ("-f", str(CHART / f"ci/{values}.yaml"), "-f", "-", "--kube-version", HIGHEST)
    result = run(version, "template", RELEASE, str(CHART), "-n", NAMESPACE, *files, text=null)
    assert result.returncode == 0, result.stderr
    assert parsed(result.stdout) == rendered(values, version)


@pytest.mark.parametrize("version", HELMS)
def test_null_is_refused_by_its_name_where_it_takes_a_default_away(version: str) -> None:
    """A switch that nobody turned off would be off, or templates would stumble over it."""
    wanted = {path for path, value in PATHS.items() if value not in EMPTY and path != ("workers", "cpu")}
    found = set[tuple[str, ...]]()
    for depth in range(1, max(map(len, wanted)) + 1):
        # A section that is gone says nothing of what was in it, so sections are tried apart from what they hold.
        for sections in (True, False):
            null = {path for path in wanted if len(path) == depth and isinstance(PATHS[path], dict) is sections}
            if null:
                said = attempt(nested(null), version).stderr
                for at, keys in re.findall(r"at '([^']*)': missing propert(?:y|ies) (.*)", said):
                    found |= {(*at.split("/")[1:], key) for key in re.findall("'([^']*)'", keys)}
    assert found == wanted


@pytest.mark.parametrize("version", HELMS)
def test_limits_and_requests_may_be_taken_away(version: str) -> None:
    null = "resources: {limits: null, requests: null}"
    trainer = f"exampleTrainer: {{enabled: true, dataset: /d, tokenSecret: {{name: t}}, {null}}}"
    result = attempt(f"store: {{internal: {{{null}}}}}\ncoordinator: {{{null}}}\n{trainer}", version)
    assert result.returncode == 0, result.stderr
    objects = parsed(result.stdout)
    assert "maxmemory " not in named(objects, "ConfigMap", "-store")["data"]["store.conf"]
    limited = [name for name, _, spec in pods(objects) for c in containers(spec) if c["resources"]]
    assert {name.rpartition("headrace-")[2] for name in limited} == {"test", "worker-cpu"}


@pytest.mark.parametrize("version", HELMS)
def test_off_needs_no_quotes(version: str) -> None:
    """YAML makes a boolean of it."""
    sockets = "workerDefaults: {sockets: {mode: OFF}}\nworkers: {cpu: {sockets: {mode: OFF}}}"
    text = f"tls: {{mode: OFF}}\ntokens: {{allowPlaintext: true}}\n{sockets}"
    results = [attempt(text.replace("OFF", word), version) for word in ("'off'", "off")]
    assert all(result.returncode == 0 for result in results), [result.stderr for result in results]
    assert parsed(results[0].stdout) == parsed(results[1].stdout)
    assert "COORDINATOR_TLS_CA" not in results[1].stdout
    assert "tokens would travel without TLS" in attempt("tls: {mode: off}", version).stderr


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
