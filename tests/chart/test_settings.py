"""Every flag, variable, port and path in the chart exists in the programs, and says there what the chart means by it."""

from __future__ import annotations

import json
import os
import re
from typing import Any, get_args

import pytest
import yaml
from pydantic_settings import BaseSettings

from headrace.cli.main import COMMANDS
from headrace.client.security import SecurityOptions
from headrace.coordinator.settings import CoordinatorSettings
from headrace.core import placement
from headrace.core.errors import ConfigInvalid
from headrace.telemetry.metrics import CATALOGUE
from headrace.telemetry.settings import load
from headrace.wire import slot_format
from headrace.worker.engines import registry
from headrace.worker.settings import WorkerSettings
from tests.chart.helm import CHART, HELMS, SETS, attempt, containers, named, of_kind, pods, rendered, with_values

PROGRAMS: dict[str, type[BaseSettings]] = {"coordinator": CoordinatorSettings, "worker": WorkerSettings}
every_set = pytest.mark.parametrize("values", SETS)
# What a trainer reads; each is named in the client's own source.
CLIENT = {f"HEADRACE_{name.upper()}" for name in SecurityOptions.__slots__} | {
    "HEADRACE_LOG_LEVEL", "HEADRACE_SOCKET_OWNERS", "HEADRACE_ADMIN_TOKEN_FILE",
}  # fmt: skip


def env_of(container: dict[str, Any]) -> dict[str, str]:
    """Variables, with those of the pod filled in as a kubelet does."""
    pod = {"POD_NAME": "pod-1", "POD_IP": "10.1.2.3"}
    plain = {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
    return {name: re.sub(r"\$\((\w+)\)", lambda found: pod[found[1]], value) for name, value in plain.items()}


def settings_of(container: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the program makes of a container's arguments and variables; ConfigInvalid for any that it doesn't know."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    for name, value in env_of(container).items():
        monkeypatch.setenv(name, value)
    command, *arguments = container["args"]
    assert command in COMMANDS
    return load(PROGRAMS[command], list(arguments), f"headrace {command}")


def services(values: str) -> list[dict[str, Any]]:
    """Containers that run our programs."""
    found = [c for _, _, spec in pods(rendered(values)) for c in containers(spec) if c.get("args", [""])[0] in PROGRAMS]
    assert len(found) >= 2
    return found


@every_set
def test_programs_accept_all_that_they_are_given(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for container in services(values):
        settings = settings_of(container, monkeypatch)
        prefix = settings.model_config["env_prefix"]
        for name in env_of(container):
            if name.startswith("HEADRACE_"):
                assert name.startswith(prefix), f"{name} is of another program"


def test_a_variable_that_is_not_there_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = [c for c in services("default") if c["args"] == ["worker"]]
    changed = {**container, "env": [*container["env"], {"name": "HEADRACE_WORKER_THREAD", "value": "1"}]}
    with pytest.raises(ConfigInvalid, match="HEADRACE_WORKER_THREADS"):
        settings_of(changed, monkeypatch)


# Everything that the chart gives to its programs under one set of values or another, as each is given by one of these at least.
ALL_ON = """
data: {roots: /data}
tokens: {allowPlaintext: true}
store: {mode: external, external: {url: 'rediss://h', passwordSecret: {name: p}, caSecret: {name: c}}}
workers: {cpu: {sockets: {mode: hostPath}}}
"""
# Not given, and refused: secrets in the open, and what a kubelet's probes could not meet.
NEVER = {
    f"HEADRACE_{program}_{name}"
    for program in ("COORDINATOR", "WORKER")
    for name in ("FLEET_TOKEN", "REQUIRE_CLIENT_CERT_HTTP")
} | {"HEADRACE_ADMIN_TOKEN", "HEADRACE_COORDINATOR_ADMIN_TOKEN"}


def own_variables() -> dict[str, set[str]]:
    """Names of the variables that the chart gives, by program; the checks' sets are in it as well."""
    given: dict[str, set[str]] = {"coordinator": set(), "worker": set()}
    for objects in (with_values(ALL_ON), *map(rendered, SETS)):
        for container in (c for _, _, spec in pods(objects) for c in containers(spec)):
            command = container.get("args", [""])[0]
            if command in given:
                given[command] |= {item["name"] for item in container["env"]}
    chosen = {"AWS_REGION", "HEADRACE_COORDINATOR_LAG_S", "HEADRACE_WORKER_READ_DEADLINE_S"}
    return {command: names - chosen for command, names in given.items()}


@pytest.mark.parametrize("version", HELMS)
def test_what_the_chart_gives_cannot_be_given_twice(version: str) -> None:
    """Each name is refused in `env`, under the values as they come, and the value that is named instead exists."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values["workers"]["cpu"] = values["workerDefaults"]
    own = own_variables()
    assert len(own["coordinator"]) > 15
    assert len(own["worker"]) > 20
    for command, holder in (("coordinator", "coordinator"), ("worker", "workers.cpu")):
        never = {name for name in NEVER if command.upper() in name}
        # With one Helm all; with the other, which has the same template, some.
        for name in sorted(own[command] | never)[:: 1 if version == HELMS[-1] else 6]:
            first, _, second = holder.partition(".")
            env = {"env": {name: "1"}}
            said = attempt(yaml.safe_dump({first: {second: env} if second else env}), version).stderr
            found = re.search(
                rf"{holder}\.env has {name}, which (?:.*: set ([\w.]+)|is the chart's own: no value changes it)", said
            )
            assert found, f"{name}: {said}"
            if found[1]:
                at = values
                for key in found[1].split("."):
                    at = at[key]


def test_checks_of_variables_name_only_what_there_is() -> None:
    """A setting that is renamed in a program is found here."""
    checks = (CHART / "templates/_checks.tpl").read_text()
    (block,) = re.findall(r'define "headrace.ownVariables" -}}(.*?){{- end -}}', checks, re.DOTALL)
    names = set(re.findall(r"^([A-Z_]+|HEADRACE_{{ \$program }}_[A-Z_]+):", block, re.MULTILINE))
    assert len(names) > 30
    known = {f"HEADRACE_{program}_{field}".upper() for program, s in PROGRAMS.items() for field in s.model_fields}
    for name in names - {"POD_NAME", "POD_IP", "HEADRACE_ADMIN_TOKEN"}:
        for program in PROGRAMS:
            assert name.replace("{{ $program }}", program.upper()) in known


def test_a_components_own_variable_wins_over_that_of_the_data() -> None:
    objects = with_values("data: {env: {A: d, B: d}}\nworkers: {cpu: {env: {A: own}}}\ncoordinator: {env: {C: own}}")
    found = {
        name.rpartition("headrace-")[2]: {each["name"]: each.get("value") for each in spec["containers"][0].get("env", [])}
        for name, _, spec in pods(objects)
    }
    assert {name: found["worker-cpu"].get(name) for name in "ABC"} == {"A": "own", "B": "d", "C": None}
    assert {name: found["coordinator"].get(name) for name in "ABC"} == {"A": "d", "B": "d", "C": "own"}


@every_set
def test_no_variable_is_there_twice(values: str) -> None:
    """The last one would win, and say nothing."""
    for name, _, spec in pods(rendered(values)):
        for container in containers(spec):
            names = [each["name"] for each in container.get("env", [])]
            assert len(names) == len(set(names)), name


@every_set
def test_ports_are_those_that_the_programs_listen_on(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for container in services(values):
        settings = settings_of(container, monkeypatch)
        wanted = {"grpc_address"} | ({"admin_address"} if container["args"] == ["coordinator"] else {"metrics_address"})
        bound = {int(getattr(settings, name).rpartition(":")[2]) for name in wanted}
        assert {port["containerPort"] for port in container["ports"]} == bound
        if container["args"] == ["worker"]:
            assert settings.advertise.endswith(settings.grpc_address.rpartition(":")[2])
            assert "10.1.2.3" in settings.advertise


@every_set
def test_workers_call_the_coordinators_service(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (service,) = [s for s in of_kind(rendered(values), "Service") if s["metadata"]["name"].endswith("-coordinator")]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    ports = {port["port"] for port in service["spec"]["ports"]}
    for container in services(values):
        if container["args"] == ["worker"]:
            called, port = settings_of(container, monkeypatch).coordinator.split(":")
            assert (called, int(port) in ports) == (host, True)


@every_set
def test_clients_variables_are_those_that_the_client_reads(values: str) -> None:
    for _, _, spec in pods(rendered(values)):
        for container in containers(spec):
            if container["name"] in ("trainer", "check"):
                assert {name for name in env_of(container) if name.startswith("HEADRACE_")} <= CLIENT


def test_scripts_know_their_arguments() -> None:
    trainer = (CHART / "files/scripts/trainer.py").read_text()
    known = set(re.findall(r'add_argument\("(--[\w-]+)"', trainer))
    (container,) = [c for name, _, spec in pods(rendered("open")) if "trainer" in name for c in spec["containers"]]
    assert {word.partition("=")[0] for word in container["args"]} == known


def test_choices_are_those_of_the_programs() -> None:
    definitions = json.loads((CHART / "values.schema.json").read_text())["definitions"]
    engines = set(get_args(WorkerSettings.model_fields["engine"].annotation))
    offered = definitions["class"]["properties"]["engine"]["enum"]
    assert len(offered) == len(set(offered))
    assert set(offered) == engines == {"auto", *registry.NAMES}
    assert definitions["level"]["enum"] == list(get_args(WorkerSettings.model_fields["log_level"].annotation))
    assert get_args(CoordinatorSettings.model_fields["log_level"].annotation) == tuple(definitions["level"]["enum"])


def test_the_chart_knows_which_engines_need_a_gpu() -> None:
    """By those that --engine auto takes only where a GPU is; each of them is refused without one, and no other."""
    for engine in registry.NAMES:
        result = attempt(f"workers: {{cpu: {{engine: '{engine}', image: {{tag: gpu}}}}}}")
        assert ("works on a GPU, and the pod gets none" in result.stderr) == (engine in placement.GPU_ENGINES), engine
        assert (result.returncode != 0) == (engine in placement.GPU_ENGINES), result.stderr


def test_a_worker_on_a_gpu_is_put_where_one_is() -> None:
    """Its limit is the request, as for all extended resources; a class that shares the trainers' GPU asks for none."""
    by_class = {labels.get("headrace.dev/class", ""): spec for _, labels, spec in pods(rendered("gpu-daemonset"))}
    own, shared = by_class["dali"], by_class["gpu"]
    (container,) = own["containers"]
    for amounts in container["resources"].values():
        assert amounts["nvidia.com/mig-1g.10gb"] == "1"
    assert own["nodeSelector"] == {"nvidia.com/mig.config": "all-1g.10gb"}
    assert own["tolerations"][0]["key"] == shared["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert (shared["runtimeClassName"], shared["hostIPC"]) == ("nvidia", True)
    assert not [name for c in containers(shared) for a in c["resources"].values() for name in a if "nvidia" in name]
    for spec in (own, shared):
        assert spec["containers"][0]["image"] == "registry.example/headrace-gpu:0.1.0"
    assert {env_of(by_class[name]["containers"][0])["HEADRACE_WORKER_ENGINE"] for name in ("dali", "gpu", "any")} == {
        "dali-gpu",
        "cvcuda",
        "auto",
    }


@pytest.mark.parametrize(
    ("engine", "mebibytes"), [("cpu", 4148), ("cpu-libs", 4148), ("dali", 4660), ("cvcuda", 6708), ("auto", 4148)]
)
def test_engines_with_large_libraries_get_memory_for_them(engine: str, mebibytes: int) -> None:
    """Else a worker on a GPU would be killed for what CUDA takes; what a person says is taken instead."""
    gpu = "image: {tag: gpu}, runtimeClassName: nvidia, " if engine == "cvcuda" else ""
    for base, wanted in (("", mebibytes), (", memory: {base: 1536Mi}", 5172)):
        objects = with_values(f"workers: {{cpu: {{{gpu}engine: {engine}{base}}}}}")
        (spec,) = [spec for name, _, spec in pods(objects) if name.endswith("-worker-cpu")]
        assert spec["containers"][0]["resources"]["limits"]["memory"] == f"{wanted}Mi"


def test_what_workers_are_scaled_by_is_exported() -> None:
    metric = CATALOGUE["headrace_desired_workers"]
    for scaler in of_kind(rendered("autoscaled"), "HorizontalPodAutoscaler", "ScaledObject"):
        text = yaml.safe_dump(scaler["spec"])
        assert set(re.findall(r"headrace_[a-z_]+", text)) == {metric.name}
        assert "pool" in metric.labels
    (scaled,) = of_kind(rendered("autoscaled"), "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    pool = re.search(r'pool="([^"]+)"', query)
    assert pool is not None
    worker = named(rendered("autoscaled"), "Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    assert env_of(worker["spec"]["template"]["spec"]["containers"][0])["HEADRACE_WORKER_POOL"] == pool[1]


def test_workers_of_two_releases_are_told_apart() -> None:
    """In one namespace, with classes of one name: a pool that both had would scale each by the other's need."""
    values, pools = "workers: {cpu: {autoscaling: {mode: hpa}}, b: {}}\n", list[str]()
    for name in ("one", "two"):
        objects = with_values(f"{values}fullnameOverride: {name}\n")
        pools += [
            env["HEADRACE_WORKER_POOL"]
            for _, _, spec in pods(objects)
            for env in [env_of(spec["containers"][0])]
            if "HEADRACE_WORKER_POOL" in env
        ]
        (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
        (metric,) = scaler["spec"]["metrics"]
        assert metric["external"]["metric"]["selector"]["matchLabels"]["pool"] == f"{name}.cpu"
    assert sorted(pools) == ["one.b", "one.cpu", "two.b", "two.cpu"]


# --- memory -----------------------------------------------------------------------------------------------------------

JOBS = [
    {},
    {"batchSize": 1, "height": 1, "width": 1},
    {"batchSize": 511, "height": 223, "width": 225, "bytesPerValue": 4, "maxKeyBytes": 4096, "maxLabelBytes": 1000},
    {"batchSize": 2048, "labelWidth": 10000, "slots": 12, "ranksPerWorker": 64},
]


@pytest.mark.parametrize("jobs", JOBS)
def test_memory_is_what_the_programs_allocate(jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The template's arithmetic is that of wire.slot_format, to the byte, and the limit holds all that a worker may hold."""
    objects = with_values(yaml.safe_dump({"jobs": jobs}))
    given = {**yaml.safe_load((CHART / "values.yaml").read_text())["jobs"], **jobs}
    pixels = given["batchSize"] * given["height"] * given["width"] * 3 * given["bytesPerValue"]
    meta = slot_format.max_meta_bytes(given["batchSize"], given["maxKeyBytes"], given["maxLabelBytes"], given["labelWidth"])
    slot = slot_format.slot_bytes(pixels, meta)

    by_command = {
        c["args"][0]: c for _, _, spec in pods(objects) for c in containers(spec) if c.get("args", [""])[0] in PROGRAMS
    }
    coordinator = settings_of(by_command["coordinator"], monkeypatch)
    assert coordinator.max_rank_bytes == given["slots"] * slot
    # The window that a session gets for as many workers as one likes is the one that the memory is for.
    assert coordinator.rules.max_rank_bytes // slot == given["slots"]

    worker = settings_of(by_command["worker"], monkeypatch)
    decoding = (worker.threads + 1) * given["maxPixels"] * 3
    needed = (
        given["ranksPerWorker"] * given["slots"] * slot + given["atOnce"] * worker.read_ahead_bytes + decoding + (512 << 20)
    )
    limit = by_command["worker"]["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    assert 0 <= int(limit.removesuffix("Mi")) * 2**20 - needed < 2**20
    assert by_command["worker"]["resources"]["requests"]["memory"] == limit, "what is mapped cannot be taken back"


@pytest.mark.parametrize("limit", ["64Gi", "64G", "68719476736", "1Ti"])
def test_a_larger_limit_is_taken_as_it_is(limit: str) -> None:
    (worker,) = [
        spec for name, _, spec in pods(with_values(f"workers: {{cpu: {{memory: {{limit: '{limit}'}}}}}}")) if "-cpu" in name
    ]
    assert worker["containers"][0]["resources"]["limits"]["memory"] == limit


def test_a_smaller_limit_is_refused_with_the_sum() -> None:
    result = attempt("workers: {cpu: {memory: {limit: 4147Mi}}}")
    assert result.returncode != 0
    assert "workers.cpu.memory.limit is 4147Mi, and its work needs 4148Mi: 8 ranks x 4 slots x 37Mi" in result.stderr
    assert attempt("workers: {cpu: {memory: {limit: 4148Mi}}}").returncode == 0
