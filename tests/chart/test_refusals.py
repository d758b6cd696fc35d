"""Values that cannot work fail when they are rendered, each with a sentence that says what to change."""

from __future__ import annotations

import functools
import re

import pytest

from tests.chart.helm import CHART, HELMS, attempt

NO_TLS = "tls: {mode: 'off'}\n"
TRAINER = "exampleTrainer: {enabled: true, dataset: /d, tokenSecret: {name: t}"
LONG = "fullnameOverride: a-name-of-thirty-six-characters-here\n"

# values -> what is said
IMPOSSIBLE = {
    "image: {repository: ''}": "Headrace publishes no image, so build deploy/docker/cpu.Dockerfile",
    "workers: {cpu: {enabled: false}}": "workers has no class that is enabled",
    "tls: {mode: secret}": "tls.secret.coordinator is empty: name the Secret",
    "tls: {mode: secret, secret: {coordinator: a}}": "tls.secret.worker is empty: name the Secret",
    "tls: {mode: secret, secret: {coordinator: a, worker: b}}": "trainers need a certificate to show",
    NO_TLS: "tokens would travel without TLS",
    NO_TLS
    + "tokens: {secretName: ''}\nstore: {mode: memory}\ncoordinator: {replicas: 1}": "jobs' tokens would travel in the clear",
    "store: {mode: memory}": "each replica would know other jobs; set replicas to 1",
    NO_TLS + "tokens: {secretName: '', requireJobToken: false}": "the internal store needs a password",
    "store: {mode: external}": "store.external.url is empty: give redis://",
    "store: {mode: external, external: {url: 'redis://u:secret@h:6379/0'}}": "put it into a Secret",
    "store: {mode: external, external: {url: 'redis://h:6379', caSecret: {name: c}}}": "would never be looked at",
    "workers: {cpu: {kind: DaemonSet, sockets: {mode: hostPath}, autoscaling: {mode: hpa}}}": "which has one pod a node",
    "workers: {cpu: {autoscaling: {mode: hpa, min: 5, max: 4}}}": "autoscaling.min 5 is above max 4",
    "workers: {cpu: {autoscaling: {mode: keda}}}": "prometheusAddress is empty",
    "workers: {cpu: {sockets: {mode: claim}}}": "sockets.claim is empty",
    "workers: {cpu: {kind: DaemonSet, sockets: {mode: claim, claim: c}}}": "one claim is one node's volume",
    "workers: {cpu: {kind: DaemonSet}}": "set sockets.mode to hostPath, or kind to Deployment",
    LONG + "workers: {cpu: {sockets: {mode: hostPath, path: /var/run/headrace/of/one/team1}}}": "s path would have 108",
    "workers: {cpu: {sockets: {mode: hostPath, path: /var/lib/kubelet}}}": "may be a directory of others",
    "coordinator: {env: {HEADRACE_COORDINATOR_LOG_LEVEL: debug}}": "the chart gives: set coordinator.logLevel instead",
    "workers: {cpu: {env: {HEADRACE_WORKER_NAME: me}}}": "the chart's own: no value changes it",
    "workers: {cpu: {env: {HEADRACE_COORDINATOR_LAG_S: '9'}}}": "another program's and would change nothing",
    "data: {env: {HEADRACE_WORKER_THREADS: '9'}}": "a setting of the programs goes into coordinator.env or workers.<class>.env",
    "ipv6: true": "no IPv6 range, so no data could be read",
    "workers: {cpu: {gpus: 1}}": "nothing says on which nodes",
    "workers: {cpu: {engine: dali-gpu, image: {tag: gpu}}}": "works on a GPU, and the pod gets none: set gpus: 1",
    "workers: {cpu: {engine: cvcuda, runtimeClassName: nvidia}}": "name it in workers.cpu.image",
    "workers: {cpu: {engine: cvcuda, gpus: 2, nodeSelector: {a: b}}}": "a worker uses one: set gpus: 1 and more replicas",
    TRAINER
    + ", sharedMemory: sidecar}\nworkers: {cpu: {engine: cvcuda, runtimeClassName: nvidia, image: {tag: gpu}}}": "for the CPU",
    "workers: {cpu: {memory: {limit: 1Gi}}}": "Raise the limit, or lower jobs.ranksPerWorker",
    "exampleTrainer: {enabled: true}": "name what `headrace index` has indexed",
    "exampleTrainer: {enabled: true, dataset: /d}": "its job would be refused; name a Secret with the job's token",
    TRAINER + ", sharedMemory: class, socketClass: x}": 'socketClass "x" is no class of workers',
    TRAINER + ", sharedMemory: class, socketClass: cpu}": "offers no sockets: set workers.cpu.sockets.mode",
}

# What the schema refuses, and the word by which one finds it.
MISSPELT = {
    "replicaCount: 3": "replicaCount",
    "workers: {cpu: {replica: 3}}": "replica",
    "coordinator: {replicas: two}": "replicas",
    "tls: {mode: 'on'}": "mode",
    "workers: {cpu: {engine: gpu}}": "engine",
    "workers: {CPU: {}}": "CPU",
    "workers: {cpu: {memory: {base: 512MB}}}": "base",
    "jobs: {slots: 1}": "slots",
    "store: {external: {url: 'http://h'}}": "url",
    "image: {digest: abc}": "digest",
    "networkPolicy: {trainers: [{}]}": "trainers",
    "monitoring: {runbookBase: docs/runbooks}": "runbookBase",
    "workers: {cpu: {env: {HEADRACE_WORKER_LAG: 3}}}": "HEADRACE_WORKER_LAG",
}

# Passwords in the store's address, where everyone who may read pods would see them.
IN_THE_OPEN = (
    "redis://:secret@h", "redis://u:secret@h:6379/0", "rediss://u:a/b@h", "sentinel://:secret@a:1,b:2/m", "redis://h?password=secret",
    "rediss://h:6380/0?username=u&password=secret", "redis://h/0?PASSWORD=secret", "sentinel://a/m?sentinel_password=secret",
)  # fmt: skip


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("url", IN_THE_OPEN)
def test_no_password_is_taken_in_the_open(url: str, version: str) -> None:
    result = attempt(f"store: {{mode: external, external: {{url: '{url}'}}}}", version)
    assert result.returncode != 0
    assert "put it into a Secret and name that in store.external.passwordSecret" in result.stderr


@functools.cache
def refused(values: str) -> str:
    """What Helm says to values that it must refuse."""
    result = attempt(values)
    assert result.returncode != 0
    return result.stderr


@pytest.mark.parametrize("values", IMPOSSIBLE)
def test_what_cannot_work_is_refused_with_a_sentence(values: str) -> None:
    assert IMPOSSIBLE[values] in refused(values)


# Directories of a node that are somebody else's, or that are written in an odd way, or below which nothing is to be mounted.
SYSTEM = (
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/srv", "/sys",
    "/tmp", "/usr", "/var", "/var/lib", "/var/lib/kubelet", "/var/run", "/run/systemd", "/run/containerd",
    "/run/my-headrace", "/headrace", "/headrace/..", "/run/headrace/..", "/run/headrace/../../etc", "/run/./headrace",
    "/run//headrace", "/run/headrace/", "/run/headrace/../headrace", "/etc/headrace", "/usr/lib/headrace", "/home/headrace",
    "/dev/headrace",
)  # fmt: skip
OURS = (
    "/run/headrace", "/var/run/headrace", "/var/lib/team/headrace", "/mnt/nvme0/headrace-b", "/run/headrace/team_1",
    "/tmp/headrace",
)  # fmt: skip


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("mode", ["hostPath", "claim"])
def test_directories_of_others_are_no_place_for_sockets(version: str, mode: str) -> None:
    classes = "".join(f"  c{n}: {{sockets: {{mode: {mode}, claim: c, path: {path}}}}}\n" for n, path in enumerate(OURS))
    result = attempt(f"workers:\n{classes}", version)
    assert result.returncode == 0, result.stderr
    # One at a time with one Helm, since the first is said alone; of the other Helm a few.
    for path in SYSTEM if (version, mode) == (HELMS[-1], "hostPath") else SYSTEM[::12]:
        said = attempt(f"workers: {{cpu: {{sockets: {{mode: {mode}, claim: c, path: '{path}'}}}}}}", version).stderr
        assert f"sockets.path {path} may be a directory of others" in said


@pytest.mark.parametrize("version", HELMS)
def test_a_sidecar_needs_a_kubernetes_that_has_them(version: str) -> None:
    result = attempt(TRAINER + ", sharedMemory: sidecar}", version, "1.28.0")
    assert result.returncode != 0
    assert "needs Kubernetes 1.29 (this is v1.28.0): use none" in result.stderr


@pytest.mark.parametrize("version", HELMS)
def test_a_kubernetes_that_is_too_old_is_refused(version: str) -> None:
    result = attempt("", version, "1.24.0")
    assert result.returncode != 0
    assert "chart requires kubeVersion: >=1.25.0-0" in result.stderr


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("values", MISSPELT)
def test_what_is_misspelt_is_refused_by_its_name(values: str, version: str) -> None:
    result = attempt(values, version)
    assert result.returncode != 0
    assert MISSPELT[values] in result.stderr


def test_every_refusal_of_the_templates_is_tried() -> None:
    """A sentence that is added without a case above is found here."""
    templates = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*.tpl"))
    sentences = re.findall(r'fail \(?(?:printf )?"((?:[^"\\]|\\.)*)"', templates)
    assert len(sentences) >= len(IMPOSSIBLE)
    heard = "\n".join(refused(values) for values in IMPOSSIBLE)
    # For the first two the chart's own files would have to be away, the third is behind the schema, the last has a test above.
    elsewhere = ("no files/dashboards", "no files/rules", "is no amount of memory", "needs Kubernetes 1.29")
    for sentence in sentences:
        pieces = re.split(r"%[a-z]", sentence.replace('\\"', '"'))
        pattern = ".*".join(re.escape(piece) for piece in pieces)
        assert re.search(pattern, heard) or any(words in sentence for words in elsewhere), f"no test for: {sentence}"
