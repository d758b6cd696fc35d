"""Who gets in where: jobs, workers and the admin API under tokens, over TLS, with real services."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import headrace
from headrace.coordinator.settings import CoordinatorSettings
from headrace.coordinator.store_address import connect as connect_store
from headrace.core import limits
from headrace.core.errors import ConfigInvalid, CoordinatorUnavailable, HeadraceError, Unauthenticated
from headrace.core.job import JobSpec
from headrace.telemetry.settings import load
from headrace.testing.certificates import Authority, mount, paths
from headrace.testing.cluster import Cluster
from headrace.testing.demo_dataset import make_demo_dataset
from headrace.testing.processes import free_port, start_service
from headrace.testing.secured import Secured
from headrace.wire import messages
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen.coordinator_service_pb2_grpc import CoordinatorServiceStub
from headrace.wire.secret import HEADER
from headrace.wire.status import error_from_rpc
from headrace.wire.tls import ClientTls, open_channel

DEADLINE_S = 30.0
OTHER = "a-token-of-another-job"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_dataset(tmp_path_factory.mktemp("data") / "set", samples=96, shards=2)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One coordinator and one worker, mutual TLS and tokens."""
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=1, tls=True, tokens=True) as made:
        yield made


def secured(fleet: Cluster) -> Secured:
    assert fleet.secured is not None
    return fleet.secured


def enter(fleet: Cluster, **changes: Any) -> headrace.Client:
    """A client with what it needs, but for the changes."""
    files = paths(secured(fleet).directory / "trainers")
    given: dict[str, Any] = {"tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key}
    if "token" not in changes:
        given["token_file"] = str(secured(fleet).token_file("job"))
    return headrace.connect(fleet.addresses, **{**given, **changes})


def eventually(ready: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < end_s, f"not within {DEADLINE_S:.0f} s: {what}"
        time.sleep(0.05)


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_is_opened_with_a_token_and_by_its_holders_alone(fleet: Cluster, dataset: Path) -> None:
    with enter(fleet, token="") as client, pytest.raises(Unauthenticated, match="set token or token_file"):
        client.job("held", dataset=dataset, batch_size=8)
    with enter(fleet) as client:
        client.job("held", dataset=dataset, batch_size=8)
    with enter(fleet, token=OTHER) as client:
        with pytest.raises(Unauthenticated, match="shows another token"):
            client.job("held", dataset=dataset, batch_size=8)
        client.job("of-others", dataset=dataset, batch_size=8)  # its own name is free


@pytest.mark.parametrize("made_up", ["x", "x" * 15, "x" * 4097, "with a space in it"], ids=len)
def test_a_job_is_opened_with_no_token_that_a_setting_would_refuse(fleet: Cluster, made_up: str) -> None:
    """Whoever speaks without our client must not open a job of a token that can be guessed."""
    request = pb.OpenJobRequest(protocol=messages.PROTOCOL, job=pb.Job(name="made-up", spec_json="{}"), world=1)
    with open_channel(fleet.addresses, (), ClientTls(paths(secured(fleet).directory / "trainers"))) as channel:
        stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
        join = pb.JoinSessionRequest(protocol=messages.PROTOCOL, id=pb.RankId(job="made-up", nonce="n"), world=1)
        for name, message in (("OpenJob", request), ("JoinSession", join)):
            if name == "OpenJob":
                message.job.spec_json = json.dumps(JobSpec("made-up", "/data", 8).to_dict())
            with pytest.raises(grpc.RpcError, match="visible ASCII characters") as caught:
                getattr(stub, name)(message, metadata=[(HEADER, f"Bearer {made_up}")], timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_two_tokens_as_long_as_an_identity_providers_get_in(fleet: Cluster, dataset: Path) -> None:
    with enter(fleet, token="\n".join(letter * (limits.TOKENS_CHARS // 2 - 1) for letter in "ab")) as client:
        job = client.job("long-tokens", dataset=dataset, batch_size=8)
        with job.stream(epochs=1) as stream:
            assert sum(1 for _ in stream) == 12


@pytest.mark.parametrize("token", ["", OTHER], ids=["none", "of_another_job"])
def test_no_call_of_a_rank_passes_without_the_jobs_token(fleet: Cluster, dataset: Path, token: str) -> None:
    with enter(fleet) as client:
        job = client.job("calls", dataset=dataset, batch_size=8)
    who = pb.RankId(job="calls", attempt=1, rank=0, nonce="n")
    spec = pb.Job(name="calls", spec_json=json.dumps(job.spec.to_dict()))
    report = pb.ReportProgressRequest(id=who)
    requests = {
        "OpenJob": pb.OpenJobRequest(protocol=messages.PROTOCOL, job=spec, world=1),
        "JoinSession": pb.JoinSessionRequest(protocol=messages.PROTOCOL, id=who, world=1),
        "WatchSession": pb.WatchSessionRequest(id=who),
        "ReportProgress": report,
        "LeaveSession": pb.LeaveSessionRequest(id=who, last=report),
    }
    metadata = [(HEADER, f"Bearer {token}")] if token else []
    with open_channel(fleet.addresses, (), ClientTls(paths(secured(fleet).directory / "trainers"))) as channel:
        stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
        for name, request in requests.items():
            with pytest.raises(grpc.RpcError) as caught:
                answer = getattr(stub, name)(request, metadata=metadata, timeout=DEADLINE_S)
                list(answer) if name == "WatchSession" else None
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
            assert isinstance(error_from_rpc(caught.value), Unauthenticated)


def test_ranks_are_not_told_the_hashes_that_workers_are(fleet: Cluster, dataset: Path) -> None:
    with enter(fleet) as client:
        job = client.job("joined", dataset=dataset, batch_size=8)
    who = pb.RankId(job="joined", attempt=0, rank=0, nonce="n")
    join = pb.JoinSessionRequest(protocol=messages.PROTOCOL, id=who, world=1, plan_hash=job.plan_hash)
    metadata = [(HEADER, f"Bearer {secured(fleet).token('job')}")]
    with open_channel(fleet.addresses, (), ClientTls(paths(secured(fleet).directory / "trainers"))) as channel:
        stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.JoinSession(join, metadata=metadata, timeout=DEADLINE_S)
    assert answer.HasField("session")
    assert not answer.session.token_hashes


def ask_local(path: str, hello: messages.Hello) -> messages.Message:
    """First answer of a worker's Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(path)
        connection.send(messages.encode(hello))
        return messages.decode(connection.recv(messages.MAX_CONTROL_BYTES))


def ask_remote(fleet: Cluster, hello: messages.Hello) -> messages.Message:
    """First answer of a worker's gRPC stream."""
    with open_channel(fleet.workers[0].address, (), ClientTls(paths(secured(fleet).directory / "trainers"))) as channel:
        call: Any = channel.stream_stream("/headrace.v1.WorkerService/StreamBatches")
        return messages.decode(next(call(iter([messages.encode(hello)]), timeout=DEADLINE_S)))


def test_a_worker_hands_batches_to_the_jobs_holders_alone(fleet: Cluster, dataset: Path) -> None:
    with enter(fleet) as client:
        job = client.job("guarded", dataset=dataset, batch_size=8)
    path = next(Path(str(fleet._sockets)).glob("*.sock"))
    with job.stream(epochs=0, wait_deadline_s=DEADLINE_S) as stream:
        batches = iter(stream)
        next(batches)
        hello = messages.Hello(messages.PROTOCOL, "guarded", 1, 0, "n", 0, 3)
        for ask in (lambda hello: ask_local(str(path), hello), lambda hello: ask_remote(fleet, hello)):
            for token in ("", OTHER, OTHER + "\n" + OTHER):
                refused = ask(replace(hello, token=token))
                assert isinstance(refused, messages.Refuse) and refused.code == "unauthenticated", refused
                assert secured(fleet).token("job") not in refused.message
        next(batches)  # undisturbed
        token = f"{OTHER}\n{secured(fleet).token('job')}"
        assert isinstance(ask_remote(fleet, replace(hello, token=token)), messages.Welcome)


def test_a_jobs_token_is_replaced_while_it_runs(fleet: Cluster, dataset: Path, tmp_path: Path) -> None:
    old, new = "old-token-of-this-job", "new-token-of-this-job"
    mount(tmp_path, {"token": old.encode()})
    with enter(fleet, token="", token_file=str(tmp_path / "token")) as client:
        job = client.job("rotated", dataset=dataset, batch_size=8)

        def opens(token: str) -> bool:
            try:
                with enter(fleet, token=token) as other:
                    other.job("rotated", dataset=dataset, batch_size=8)
            except Unauthenticated:
                return False
            return True

        with job.stream(epochs=0, wait_deadline_s=DEADLINE_S) as stream:
            batches = iter(stream)
            next(batches)
            assert opens(old) and not opens(new)
            mount(tmp_path, {"token": f"{new}\n{old}".encode()})
            next(batches)
            # The rank's next report tells of it: from then on both are good, also at the worker.
            hello = messages.Hello(messages.PROTOCOL, "rotated", 1, 0, "n", 0, 3, token=new)
            eventually(lambda: isinstance(ask_remote(fleet, hello), messages.Welcome), "the worker knows the new token")
            assert isinstance(ask_remote(fleet, replace(hello, token=old)), messages.Welcome)
            assert opens(old)
            mount(tmp_path, {"token": new.encode()})
            assert opens(new)
            eventually(lambda: not opens(old), "the old token is refused")
            for _ in range(5):
                next(batches)


def test_without_a_client_certificate_nobody_gets_in(fleet: Cluster, dataset: Path) -> None:
    with (
        enter(fleet, tls_cert="", tls_key="", deadline_s=1.0) as client,
        pytest.raises(CoordinatorUnavailable, match="demands a client certificate: set tls_cert"),
    ):
        client.job("uncertified", dataset=dataset, batch_size=8)


# --- workers ---------------------------------------------------------------------------------------------------------


def get(fleet: Cluster, path: str, token: str = "", address: str = "") -> Any:
    """A GET over HTTPS; JSON where it is."""
    trust = ssl.create_default_context(cafile=paths(secured(fleet).directory / "trainers").ca)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://{address or fleet.coordinators[0].admin_address}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=DEADLINE_S, context=trust) as answer:
        body = answer.read()
        return json.loads(body) if "json" in answer.headers["content-type"] else body.decode()


@pytest.mark.parametrize("wrong", ["", "a-token-of-another-fleet"], ids=["none", "another"])
def test_a_worker_without_the_fleets_token_gets_no_lane_until_it_has_it(fleet: Cluster, tmp_path: Path, wrong: str) -> None:
    name = f"stranger-{'other' if wrong else 'none'}"
    files = paths(secured(fleet).directory / "services")
    arguments = ["worker", "--name", name, "--coordinator", fleet.addresses, "--grpc-address", "127.0.0.1:0"]
    arguments += ["--metrics-address", "", "--socket-dir", "", "--tls-cert", files.cert, "--tls-key", files.key]
    arguments += ["--tls-ca", files.ca, *(["--fleet-token-file", str(tmp_path / "fleet")] if wrong else [])]
    mount(tmp_path, {"fleet": (wrong or "x" * 16).encode()})

    def known() -> bool:
        found = get(fleet, "/api/workers", secured(fleet).token("admin"))
        return name in [worker["worker"] for worker in found]

    service = start_service(name, arguments, tmp_path / "log")
    try:
        service.wait_until(lambda: "heartbeat_unanswered" in service.log.read_text(), "said that it is refused", DEADLINE_S)
        assert "HEADRACE_WORKER_FLEET_TOKEN_FILE" in service.log_tail()
        assert not known()
        if wrong:
            mount(tmp_path, {"fleet": secured(fleet).token("fleet").encode()})
            eventually(known, "the worker is known once it has the token")
    finally:
        service.stop(DEADLINE_S)


# --- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/api", "/api/replica", "/api/jobs", "/api/jobs/held", "/api/workers", "/openapi.json", "/docs", "/nothing"]
)
@pytest.mark.parametrize("token", ["", OTHER], ids=["none", "another"])
def test_the_admin_api_asks_for_its_token(fleet: Cluster, path: str, token: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(fleet, path, token)
    assert caught.value.code == 401
    assert caught.value.headers["www-authenticate"] == "Bearer"
    assert "HEADRACE_ADMIN_TOKEN" in json.load(caught.value)["detail"]


def test_the_admin_api_with_its_token_and_what_is_open(fleet: Cluster) -> None:
    token = secured(fleet).token("admin")
    assert isinstance(get(fleet, "/api/jobs", token), list)
    for path in ("/healthz", "/readyz"):
        assert get(fleet, path)["status"] == "ok"
    for end in ("before", "after"):
        assert f"headrace_coordinator_tls_not_{end}_seconds 1." in get(fleet, "/metrics")
        scraped = get(fleet, "/metrics", address=fleet.workers[0].admin_address)
        assert f"headrace_worker_tls_not_{end}_seconds 1." in scraped
    others_tests = ("were refused in", "failed in their TLS handshake")
    told = get(fleet, "/api/replica", token)["troubles"]
    assert [trouble for trouble in told if not any(words in trouble for words in others_tests)] == []
    for path in ("/docs", "/redoc"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(fleet, path, token)
        assert caught.value.code == 404
    assert "http" not in json.dumps(get(fleet, "/api", token))


def test_http_without_tls_or_by_another_authority_is_not_answered(fleet: Cluster) -> None:
    for address in (fleet.coordinators[0].admin_address, fleet.workers[0].admin_address):
        with pytest.raises((OSError, urllib.error.URLError)):
            urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S)
        trust = ssl.create_default_context(cadata=Authority("others").pem.decode())
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://{address}/metrics", timeout=DEADLINE_S, context=trust)


def test_who_keeps_being_turned_away_is_told_on_the_page_and_counted(fleet: Cluster) -> None:
    address = fleet.coordinators[0].admin_address
    for _ in range(10):
        with pytest.raises(urllib.error.HTTPError):
            get(fleet, "/api/jobs", OTHER)
        with pytest.raises((OSError, urllib.error.URLError)):
            urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_S)
    replica = get(fleet, "/api/replica", secured(fleet).token("admin"))
    (token,) = [trouble for trouble in replica["troubles"] if "the admin API were refused" in trouble]
    (tls,) = [trouble for trouble in replica["troubles"] if "TLS handshake" in trouble]
    assert "HEADRACE_ADMIN_TOKEN_FILE" in token
    assert "(a client of the admin address fails in its TLS handshake: http request)" in tls
    assert {"call_refused"} <= {event["kind"] for event in replica["events"]}
    counts = {
        reason: float(re.search(rf'headrace_calls_refused_total{{reason="{reason}"}} (\S+)', get(fleet, "/metrics"))[1])
        for reason in ("admin_unauthenticated", "tls")
    }
    assert min(counts.values()) >= 10
    assert OTHER not in json.dumps(replica)


def test_a_scraper_that_stalls_in_its_handshake_holds_nobody_up(fleet: Cluster) -> None:
    for address in (fleet.coordinators[0].admin_address, fleet.workers[0].admin_address):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))), socket.create_connection((host, int(port))):
            assert "headrace_" in get(fleet, "/metrics", address=address)


def headrace_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_commands_show_the_admin_token(fleet: Cluster, dataset: Path) -> None:
    with enter(fleet) as client:
        client.job("shown", dataset=dataset, batch_size=8)
    admin = fleet.coordinators[0].admin_address
    ca = {"HEADRACE_TLS_CA": paths(secured(fleet).directory / "trainers").ca}
    refused = headrace_command("quarantine", "shown", "--admin", admin, **ca)
    assert refused.returncode == 1 and "HEADRACE_ADMIN_TOKEN" in refused.stderr
    file = {"HEADRACE_ADMIN_TOKEN_FILE": str(secured(fleet).token_file("admin"))}
    assert "no bad sample" in headrace_command("quarantine", "shown", "--admin", admin, **ca, **file).stdout
    remote = headrace_command("quarantine", "shown", "--admin", "http://coordinator.example:7301", **file)
    assert remote.returncode == 1 and "allow_plaintext_tokens" in remote.stderr


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [False, True])
def test_a_coordinator_whose_jobs_need_tokens_says_that_its_workers_do_not(guarded: bool, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-for-the-fleet")
    arguments = ["coordinator", "--grpc-address", "127.0.0.1:0", "--admin-address", "", "--store", "memory://"]
    arguments += ["--require-job-token", *(["--fleet-token-file", str(tmp_path / "token")] if guarded else [])]
    service = start_service("coordinator", arguments, tmp_path / "log")
    try:
        service.wait_until(lambda: "coordinator_ready" in service.log.read_text(), "ready", DEADLINE_S)
        assert ("fleet_token_missing" in service.log.read_text()) is not guarded
    finally:
        service.stop(DEADLINE_S)


@pytest.mark.parametrize("service", ["coordinator", "worker"])
def test_a_service_does_not_take_tokens_without_tls_from_other_machines(service: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-for-the-fleet")
    arguments = [service, "--grpc-address", "0.0.0.0:0", "--fleet-token-file", str(tmp_path / "token")]
    refused = headrace_command(*arguments)
    assert refused.returncode == 1
    assert "0.0.0.0" in refused.stderr and "allow_plaintext_tokens" in refused.stderr
    more = (
        ["--store", "memory://", "--admin-address", ""]
        if service == "coordinator"
        else ["--metrics-address", "", "--socket-dir", ""]
    )
    running = start_service(service, [*arguments, *more, "--allow-plaintext-tokens"], tmp_path / "log")
    try:
        running.wait_until(lambda: f'"{service}_ready"' in running.log.read_text(), "begun", DEADLINE_S)
        assert running.log.read_text().count('"not_secured"') == 1
    finally:
        running.stop(DEADLINE_S)


@pytest.mark.parametrize("arguments", [["--admin-token", "x"], ["--fleet-token=x"], ["--fleet_token", "x"]], ids=str)
def test_a_token_on_a_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigInvalid, match=r"must not be on a command line.*-file"):
        load(CoordinatorSettings, arguments, "headrace coordinator")


def test_a_trainer_sends_no_token_to_another_machine_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigInvalid, match="allow_plaintext_tokens"):
        headrace.connect("coordinator.example:7300", token=OTHER)
    headrace.connect("coordinator.example:7300", token=OTHER, allow_plaintext_tokens=True).close()
    headrace.connect("127.0.0.1:7300", token=OTHER).close()
    monkeypatch.setenv("HEADRACE_TOKEN", OTHER)
    with pytest.raises(ConfigInvalid, match="allow_plaintext_tokens"):
        headrace.connect("coordinator.example:7300")
    monkeypatch.setenv("HEADRACE_ALLOW_PLAINTEXT_TOKENS", "maybe")
    with pytest.raises(ConfigInvalid, match="must be 1 or 0"):
        headrace.connect("coordinator.example:7300")
    monkeypatch.setenv("HEADRACE_ALLOW_PLAINTEXT_TOKENS", "1")
    headrace.connect("coordinator.example:7300").close()


# --- the store -------------------------------------------------------------------------------------------------------


@contextmanager
def redis_with_tls(directory: Path, password: str) -> Iterator[str]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.fail("redis-server is missing: `make setup` or `apt-get install redis-server`")
    files, port = paths(directory / "redis"), free_port()
    options = {
        "port": "0",
        "tls-port": str(port),
        "bind": "127.0.0.1",
        "dir": str(directory),
        "save": "",
        "requirepass": password,
    }
    options |= {"tls-cert-file": files.cert, "tls-key-file": files.key, "tls-ca-cert-file": files.ca, "tls-auth-clients": "no"}
    server = subprocess.Popen(
        [binary, *(word for key, value in options.items() for word in (f"--{key}", value))], stdout=subprocess.DEVNULL
    )
    try:
        yield f"rediss://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(10)


async def test_a_store_behind_tls_and_a_password(tmp_path: Path) -> None:
    authority = Authority()
    mount(tmp_path / "redis", authority.issue())
    (tmp_path / "password").write_text("a wrong password\n")
    (tmp_path / "others.crt").write_bytes(Authority("others").pem)
    with redis_with_tls(tmp_path, "the store's password") as url:
        good = connect_store(url, password_file=str(tmp_path / "password"), ca=str(tmp_path / "redis/ca.crt"))
        end_s = time.monotonic() + DEADLINE_S
        while True:
            with pytest.raises(HeadraceError) as caught:
                await good.ping()
            if "invalid username-password" in str(caught.value) or time.monotonic() > end_s:
                break
        assert "invalid username-password" in str(caught.value) and "was given none" not in str(caught.value)
        (tmp_path / "password").write_text("the store's password\n")  # read for each new connection
        await good.ping()
        await good.close()
        without = connect_store(url, ca=str(tmp_path / "redis/ca.crt"))
        with pytest.raises(HeadraceError, match=r"was given none: name the file of one by --store-password-file"):
            await without.ping()
        with pytest.raises(HeadraceError, match=r"was given none: name the file of one by --store-password-file"):
            await anext(without.hints())
        await without.close()
        for wrong in ({"ca": str(tmp_path / "others.crt")}, {}):
            other = connect_store(url, password_file=str(tmp_path / "password"), **wrong)
            with pytest.raises(HeadraceError, match="certificate") as refused:
                await other.ping()
            assert "password" not in str(refused.value)
            await other.close()
    for arguments in ({"ca": "/nowhere"}, {"password_file": "/nowhere"}):
        with pytest.raises(ConfigInvalid, match="/nowhere"):
            connect_store(url, **arguments)
    with pytest.raises(ConfigInvalid, match="have no password"):
        connect_store("rediss://:pw@127.0.0.1/0", password_file=str(tmp_path / "password"))
