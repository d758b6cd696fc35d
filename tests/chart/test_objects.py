"""What no schema knows: that the objects fit one another, and that every pod is hardened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.helm import (
    CHART,
    HELMS,
    NAMESPACE,
    ROOT,
    SETS,
    attempt,
    containers,
    matches,
    named,
    of_kind,
    parsed,
    pods,
    rendered,
    run,
    with_values,
)

every_set = pytest.mark.parametrize("values", SETS)
# Where the pods of one component may run as root, and with what: only here, and only to give away a directory that it made.
PREPARES = "prepare-sockets"


def selectors(objects: tuple[dict[str, Any], ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what, selector) of everything that must find pods."""
    for item in objects:
        name, spec = f"{item['kind']} {item['metadata']['name']}", item.get("spec", {})
        if item["kind"] in ("Deployment", "DaemonSet", "StatefulSet", "PodDisruptionBudget", "PodMonitor"):
            yield name, spec["selector"]
        elif item["kind"] == "Service":
            yield name, {"matchLabels": spec["selector"]}
        elif item["kind"] == "NetworkPolicy":
            yield name, spec["podSelector"]
        for constraint in spec.get("template", {}).get("spec", {}).get("topologySpreadConstraints", []):
            yield name, constraint["labelSelector"]


@every_set
def test_every_selector_finds_pods(values: str) -> None:
    labels = [found for _, found, _ in pods(rendered(values))]
    for name, selector in selectors(rendered(values)):
        assert any(matches(selector, each) for each in labels), name


@every_set
def test_a_selector_finds_the_pods_of_one_component_alone(values: str) -> None:
    for name, selector in selectors(rendered(values)):
        kinds = {each["app.kubernetes.io/component"] for _, each, _ in pods(rendered(values)) if matches(selector, each)}
        assert len(kinds) == 1, f"{name} selects {kinds}"


@every_set
def test_services_lead_to_ports_that_are_open(values: str) -> None:
    objects = rendered(values)
    for service in of_kind(objects, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        open_ports = {
            port["name"]
            for _, labels, spec in pods(objects)
            if matches(selector, labels)
            for container in containers(spec)
            for port in container.get("ports", [])
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= open_ports


@every_set
def test_monitors_find_a_port_of_that_name(values: str) -> None:
    objects = rendered(values)
    for monitor in of_kind(objects, "ServiceMonitor"):
        found = [s for s in of_kind(objects, "Service") if matches(monitor["spec"]["selector"], s["metadata"]["labels"])]
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for s in found for p in s["spec"]["ports"]}
    for monitor in of_kind(objects, "PodMonitor"):
        ports = {
            p["name"]
            for _, labels, spec in pods(objects)
            if matches(monitor["spec"]["selector"], labels)
            for c in containers(spec)
            for p in c.get("ports", [])
        }
        assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= ports


@every_set
def test_probes_name_a_port_of_their_container(values: str) -> None:
    for owner, _, spec in pods(rendered(values)):
        for container in containers(spec):
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if "httpGet" in container.get(probe, {}):
                    assert container[probe]["httpGet"]["port"] in ports, owner
            if ports:
                assert {"livenessProbe", "readinessProbe", "startupProbe"} <= set(container), owner


@every_set
def test_every_container_has_resources_and_is_hardened(values: str) -> None:
    for owner, _, spec in pods(rendered(values)):
        assert spec["automountServiceAccountToken"] is False, owner
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(spec):
            assert container["resources"]["requests"]["cpu"], owner
            assert container["resources"]["limits"]["memory"], owner
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            if container["name"] == PREPARES:
                assert context["capabilities"]["add"] == ["CHOWN"]
            else:
                assert context["runAsNonRoot"] is True
                assert "add" not in context["capabilities"]


@pytest.mark.parametrize("values", ["default", "autoscaled", "sidecar", "monitored", "open"])
def test_pods_are_admitted_by_the_level_restricted(values: str) -> None:
    """The rules of the Pod Security level that a schema has no word for; the schema test has the others."""
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    for owner, _, spec in pods(rendered(values)):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), owner
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= allowed, owner
        for container in containers(spec):
            assert container["name"] != PREPARES
            assert not any("hostPort" in port for port in container.get("ports", []))


@every_set
def test_mounts_have_volumes_and_volumes_are_mounted(values: str) -> None:
    for owner, _, spec in pods(rendered(values)):
        volumes = [volume["name"] for volume in spec.get("volumes", [])]
        claims = [
            claim["metadata"]["name"]
            for item in of_kind(rendered(values), "StatefulSet")
            if item["metadata"]["name"] == owner
            for claim in item["spec"]["volumeClaimTemplates"]
        ]
        mounted = {mount["name"] for container in containers(spec) for mount in container["volumeMounts"]}
        assert mounted == {*volumes, *claims}, owner
        assert len(volumes) == len(set(volumes)), owner
        for container in containers(spec):
            places = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(places) == len(set(places)), owner


def files_named(container: dict[str, Any]) -> set[str]:
    """Paths that variables and arguments name."""
    texts = [*(env.get("value", "") for env in container.get("env", [])), *container.get("args", [])]
    return {text for text in texts if text.startswith("/etc/headrace/")}


@every_set
def test_every_file_that_is_named_is_in_a_volume(values: str) -> None:
    objects = rendered(values)
    for owner, _, spec in pods(objects):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for container in containers(spec):
            for path in files_named(container):
                folder, _, file = path.rpartition("/")
                (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == folder]
                secret = volumes[mount["name"]]["secret"]
                keys = {item["path"] for item in secret.get("items", [])} or {"tls.crt", "tls.key", "ca.crt"}
                assert file in keys, f"{owner}: {path}"


@every_set
def test_every_secret_is_made_here_or_described(values: str) -> None:
    """A Secret is made by cert-manager, or its name is a value that values.yaml describes and this set gave."""
    objects = rendered(values)
    made = {item["spec"]["secretName"] for item in of_kind(objects, "Certificate")}
    given = (CHART / f"ci/{values}.yaml").read_text() + "headrace-tokens"
    for _, _, spec in pods(objects):
        wanted = {volume["secret"]["secretName"] for volume in spec.get("volumes", []) if "secret" in volume}
        wanted |= {each["secretRef"]["name"] for c in containers(spec) for each in c.get("envFrom", [])}
        for name in wanted - made:
            assert name in given, name
    assert "headrace-tokens" in (ROOT / "docs/kubernetes.md").read_text()


@every_set
def test_service_accounts_are_made_and_have_no_rights(values: str) -> None:
    objects = rendered(values)
    made = {item["metadata"]["name"] for item in of_kind(objects, "ServiceAccount")}
    assert {spec["serviceAccountName"] for _, _, spec in pods(objects) if "serviceAccountName" in spec} == made
    assert all(item["automountServiceAccountToken"] is False for item in of_kind(objects, "ServiceAccount"))
    assert not of_kind(objects, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@every_set
def test_only_the_coordinator_and_the_check_have_the_admin_token(values: str) -> None:
    for _, labels, spec in pods(rendered(values)):
        for volume in spec.get("volumes", []):
            keys = {item["path"] for item in volume.get("secret", {}).get("items", [])}
            if "admin" in keys:
                assert labels["app.kubernetes.io/component"] in ("coordinator", "test")
    for name, _, spec in pods(rendered(values)):
        for container in spec["containers"]:
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            if container["name"] == "trainer":
                assert "/etc/headrace/tokens" not in mounted, f"{name}: the fleet's token is no trainer's"


@every_set
def test_no_network_rule_admits_everyone(values: str) -> None:
    for policy in of_kind(rendered(values), "NetworkPolicy"):
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        for rule in spec["ingress"]:
            assert rule["from"], policy["metadata"]["name"]
            assert rule["ports"]
        for rule in spec["egress"]:
            assert rule["ports"]
            assert rule.get("to", ["any"]), policy["metadata"]["name"]


def test_policies_let_pass_what_the_services_need() -> None:
    """Who calls whom, in the default set: each call has a rule at the caller and at the called."""
    objects = rendered("default")
    labels = {each["app.kubernetes.io/component"]: each for _, each, _ in pods(objects)}
    ports = {
        "coordinator": {"grpc": 7300, "http": 7301},
        "worker": {"batches": 7310, "metrics": 7311},
        "store": {"redis": 6379},
    }

    def passes(rules: list[dict[str, Any]], side: str, peer: str, called: str, port: str) -> bool:
        numbers = {port, ports[called][port]}
        peers = [
            p.get("podSelector") for rule in rules if {x["port"] for x in rule["ports"]} & numbers for p in rule.get(side, [])
        ]
        return any(selector and matches(selector, labels[peer]) for selector in peers)

    for caller, called, port in (("worker", "coordinator", "grpc"), ("coordinator", "store", "redis")):
        assert passes(named(objects, "NetworkPolicy", f"-{caller}")["spec"]["egress"], "to", called, called, port)
        assert passes(named(objects, "NetworkPolicy", f"-{called}")["spec"]["ingress"], "from", caller, called, port)
    assert passes(named(objects, "NetworkPolicy", "-coordinator")["spec"]["ingress"], "from", "test", "coordinator", "http")
    for called, port in (("coordinator", "grpc"), ("worker", "batches")):
        rules = named(objects, "NetworkPolicy", f"-{called}")["spec"]["ingress"]
        peers = [peer for rule in rules if rule["ports"][0]["port"] == port for peer in rule["from"]]
        assert {"namespaceSelector": {}, "podSelector": {"matchLabels": {"headrace.dev/trainer": "true"}}} in peers


def test_cloud_metadata_cannot_be_reached() -> None:
    for component in ("coordinator", "worker"):
        rules = named(rendered("default"), "NetworkPolicy", f"-{component}")["spec"]["egress"]
        blocks = [peer["ipBlock"] for rule in rules for peer in rule.get("to", []) if "ipBlock" in peer]
        assert blocks == [{"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}]


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("redis://h", {6379}),
        ("redis://h:7000/0", {7000}),
        ("redis://user@h:7000/5?db=1&x=:77", {7000}),
        ("rediss://[fd00::10]:6380", {6380}),
        ("rediss://[fd00::10]/0", {6379}),
        ("redis://user@[::1]:7000", {7000}),
        ("sentinel://a:5001,b:5002/m", {5001, 5002, 6379}),
        ("sentinel://a,b:5002/m", {26379, 5002, 6379}),
    ],
)
def test_only_the_external_stores_ports_are_open(url: str, ports: set[int], version: str) -> None:
    """The piece of an IPv6 address is none."""
    result = attempt(f"store: {{mode: external, external: {{url: '{url}'}}}}\nnetworkPolicy: {{data: [], dns: []}}", version)
    assert result.returncode == 0, result.stderr
    (rule,) = named(parsed(result.stdout), "NetworkPolicy", "-coordinator")["spec"]["egress"]
    assert {each["port"] for each in rule["ports"]} == ports
    assert len(rule["ports"]) == len(ports)


@pytest.mark.parametrize("version", HELMS)
def test_releases_share_an_external_store_only_where_one_says_so(version: str) -> None:
    """One prefix in one store is one fleet."""

    def prefix(namespace: str, release: str, mode: str, own: str = "") -> str:
        text = f"store: {{mode: {mode}, prefix: '{own}', external: {{url: 'redis://h'}}}}\ncoordinator: {{replicas: 1}}"
        default = str(CHART / "ci/default.yaml")
        result = run(version, "template", release, str(CHART), "-n", namespace, "-f", default, "-f", "-", text=text)
        assert result.returncode == 0, result.stderr
        (container,) = named(parsed(result.stdout), "Deployment", "-coordinator")["spec"]["template"]["spec"]["containers"]
        return next(each["value"] for each in container["env"] if each["name"] == "HEADRACE_COORDINATOR_STORE_PREFIX")

    # With hyphens between, two of them would be one.
    places = [("a", "b"), ("b", "a"), ("a", "b-c"), ("a-b", "c"), ("a-b", "b.c")]
    assert [prefix(*place, "external") for place in places] == ["a.b", "b.a", "a.b-c", "a-b.c", "a-b.b.c"]
    assert prefix("a", "b", "external", "fleet-1") == prefix("b", "c", "external", "fleet-1") == "fleet-1"
    assert prefix("a", "b", "internal") == prefix("a", "b", "memory") == "headrace"


def test_an_empty_list_of_peers_leaves_the_rule_out() -> None:
    objects = with_values("networkPolicy: {monitoring: [], data: [], dns: [], trainers: [], admin: []}")
    for policy in of_kind(objects, "NetworkPolicy"):
        assert all(rule["from"] for rule in policy["spec"]["ingress"])
        assert all(rule["to"] for rule in policy["spec"]["egress"])


def test_certificates_name_what_is_called() -> None:
    objects = rendered("default")
    (service,) = [s for s in of_kind(objects, "Service") if s["metadata"]["name"].endswith("-coordinator")]
    host = f"{service['metadata']['name']}.{NAMESPACE}.svc"
    assert host in named(objects, "Certificate", "-coordinator")["spec"]["dnsNames"]
    (worker,) = [spec for name, _, spec in pods(objects) if name.endswith("-worker-cpu")]
    env = {item["name"]: item.get("value") for item in worker["containers"][0]["env"]}
    assert env["HEADRACE_WORKER_COORDINATOR"] == f"{host}:7300"
    trainer = next(spec for name, _, spec in pods(rendered("sidecar")) if "trainer" in name)
    told = {item["name"]: item.get("value") for item in trainer["containers"][0]["env"]}["HEADRACE_TLS_WORKER_NAME"]
    assert told in named(rendered("sidecar"), "Certificate", "-worker")["spec"]["dnsNames"]
    for monitor in of_kind(rendered("autoscaled"), "ServiceMonitor", "PodMonitor"):
        (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        which = monitor["metadata"]["name"].rpartition("-")[2]
        assert endpoint["tlsConfig"]["serverName"] in named(rendered("autoscaled"), "Certificate", which)["spec"]["dnsNames"]


@every_set
def test_what_people_look_at_is_reached_when_no_replica_is_ready(values: str) -> None:
    """While the store is away none is: calls wait for one that is, and status page, metrics and the check must not."""
    objects = rendered(values)
    by_port = {port["name"]: s for s in of_kind(objects, "Service") for port in s["spec"]["ports"]}
    assert by_port["http"]["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in by_port["grpc"]["spec"]
    host = f"{by_port['http']['metadata']['name']}.{NAMESPACE}.svc"
    (check,) = [spec["containers"][0] for name, _, spec in pods(objects) if name.endswith("-test")]
    assert check["args"][0].partition("://")[2] == f"{host}:7301"
    for certificate in of_kind(objects, "Certificate"):
        if certificate["metadata"]["name"].endswith("-coordinator"):
            assert host in certificate["spec"]["dnsNames"]
    for monitor in of_kind(objects, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] == "http"
        assert endpoint.get("tlsConfig", {"serverName": host})["serverName"] == host


def test_a_trainers_identity_may_be_set_and_its_sidecar_has_the_workers() -> None:
    """Who reads the data set needs the cloud identity: a sidecar does, a trainer beside a DaemonSet does not."""
    role, own = "eks.amazonaws.com/role-arn", "arn:trainer"
    values = f"data: {{serviceAccountAnnotations: {{{role}: arn:data}}}}\nexampleTrainer: {{enabled: true, dataset: s3://d, "
    token, mine = "tokenSecret: {name: t}", f"serviceAccountAnnotations: {{{role}: {own}}}"
    for given, wanted in (
        (f"{token}}}", None),
        (f"{token}, sharedMemory: sidecar}}", "arn:data"),
        (f"{token}, sharedMemory: sidecar, {mine}}}", own),
        (f"{token}, {mine}, podLabels: {{azure.workload.identity/use: 'true'}}}}", own),
    ):
        objects = with_values(values + given)
        ((labels, spec),) = [(labels, spec) for name, labels, spec in pods(objects) if "example-trainer" in name]
        account = named(objects, "ServiceAccount", spec["serviceAccountName"])
        assert account["metadata"].get("annotations", {}).get(role) == wanted
        assert ("podLabels" in given) == ("azure.workload.identity/use" in labels)
        assert named(objects, "ServiceAccount", "-worker")["metadata"]["annotations"] == {role: "arn:data"}


def test_a_trainer_meets_the_worker_where_both_look() -> None:
    """Same volume, same path, the group in both pods, and the worker's user trusted."""
    for values, owner in (("gpu-daemonset", "feed-worker-gpu"), ("sidecar", "")):
        trainer = next(spec for name, _, spec in pods(rendered(values)) if "trainer" in name)
        worker = next((spec for name, _, spec in pods(rendered(values)) if name == owner), trainer)
        by_name = {container["name"]: container for container in [*containers(worker), *containers(trainer)]}
        volume = {v["name"]: v for v in worker["volumes"]}["sockets"]
        assert {v["name"]: v for v in trainer["volumes"]}["sockets"].keys() == volume.keys()
        places = {m["mountPath"] for c in ("worker", "trainer") for m in by_name[c]["volumeMounts"] if m["name"] == "sockets"}
        assert len(places) == 1
        env = {c: {e["name"]: e.get("value") for e in by_name[c]["env"]} for c in ("worker", "trainer")}
        assert env["worker"]["HEADRACE_WORKER_SOCKET_DIR"] == f"{places.pop()}/sockets"
        group = int(env["worker"]["HEADRACE_WORKER_SOCKET_GROUP"])
        for spec in (worker, trainer):
            assert group in spec["securityContext"]["supplementalGroups"]
        user = by_name["worker"]["securityContext"].get("runAsUser", worker["securityContext"]["runAsUser"])
        assert env["trainer"]["HEADRACE_SOCKET_OWNERS"] == str(user)
        assert trainer["securityContext"]["runAsUser"] != user, "the example is of two users"
        for where in ("nodeSelector", "tolerations", "affinity"):
            assert trainer.get(where) == worker.get(where), "on the same nodes"


def test_a_drain_has_time_before_the_kill() -> None:
    """In every pod that has a worker, beside a trainer, too."""
    trainer = "exampleTrainer: {enabled: true, dataset: /d, tokenSecret: {name: t}, sharedMemory: sidecar}"
    for seconds in (1, 30, 90, 3600):
        found = 0
        for owner, _, spec in pods(with_values(f"workers: {{cpu: {{drainSeconds: {seconds}}}}}\n{trainer}")):
            for container in (each for each in containers(spec) if each["name"] == "worker"):
                env = {item["name"]: item.get("value") for item in container["env"]}
                assert env["HEADRACE_WORKER_DRAIN_DEADLINE_S"] == str(seconds)
                assert spec["terminationGracePeriodSeconds"] == seconds + 15, owner
                found += 1
        assert found == 2


def test_what_scales_is_there_and_has_no_replicas_of_its_own() -> None:
    objects = rendered("autoscaled")
    deployments = {item["metadata"]["name"]: item for item in of_kind(objects, "Deployment")}
    scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    assert len(scalers) == 2
    for scaler in scalers:
        assert "replicas" not in deployments[scaler["spec"]["scaleTargetRef"]["name"]]["spec"]


@pytest.mark.parametrize("base", ["https://git.example/v1/docs/runbooks", "https://git.example/v1/docs/runbooks/"])
def test_runbooks_are_links_where_their_place_is_said(base: str) -> None:
    """And pages that are there; without a place no path passes for a link (the test below)."""
    (rule,) = of_kind(with_values(f"monitoring: {{rules: true, runbookBase: '{base}'}}"), "PrometheusRule")
    alerts = [each for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert len(alerts) > 5
    for alert in alerts:
        address, _, page = alert["annotations"]["runbook_url"].rpartition("/")
        assert address == "https://git.example/v1/docs/runbooks"
        assert page == f"{alert['alert']}.md"
        assert (ROOT / "docs/runbooks" / page).exists()
        assert "runbook" not in alert["annotations"]


def test_rules_and_dashboards_are_the_files() -> None:
    objects = rendered("monitored")
    (rule,) = of_kind(objects, "PrometheusRule")
    wanted = [
        group for path in sorted((CHART / "files/rules").glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]
    ]
    for each in (each for group in wanted for each in group["rules"] if "annotations" in each):
        each["annotations"]["runbook"] = each["annotations"].pop("runbook_url")
    assert rule["spec"]["groups"] == wanted
    found = {
        name: text for item in of_kind(objects, "ConfigMap") for name, text in item["data"].items() if name.endswith(".json")
    }
    files = {path.name: path for path in (CHART / "files/dashboards").glob("*.json")}
    assert found.keys() == files.keys()
    for name, text in found.items():
        assert json.loads(text) == json.loads(files[name].read_text())
        assert len(text.encode()) < 900_000, "a ConfigMap holds 1 MiB"
