"""Coordinator replicas as processes on a real store: what a sync gRPC client sees while things die."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from PIL import Image

from headrace.core.errors import (
    CoordinatorUnavailable,
    HeadraceError,
    JobMismatch,
    JobUnknown,
    ManifestInvalid,
    ManifestMissing,
    ProtocolMismatch,
    RankClaimed,
    SessionSuperseded,
    SpecInvalid,
    StoreUnavailable,
)
from headrace.core.job import Endpoint, JobSpec, LaneTable, StreamState
from headrace.core.pipeline_spec import PipelineSpec, RandomResizedCrop
from headrace.datasets.build import build_index
from headrace.testing.cluster import Cluster
from headrace.testing.processes import free_address, start_service
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen.coordinator_service_pb2_grpc import CoordinatorServiceStub
from headrace.wire.messages import PROTOCOL
from headrace.wire.status import error_from_rpc

DEADLINE_S = 20.0
FAST = ("--tick-s", "0.1", "--heartbeat-s", "0.1", "--worker-ttl-s", "1", "--rank-ttl-s", "1")
SPEC = JobSpec("job", "/nowhere", 4, pipeline=PipelineSpec((RandomResizedCrop((8, 8)),)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """200 tiny images in a tar, indexed."""
    import asyncio

    folder = tmp_path_factory.mktemp("data")
    picture = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 30, 30)).save(picture, "JPEG")
    with tarfile.open(folder / "a.tar", "w") as tar:
        for i in range(200):
            for name, data in ((f"{i:04}.jpg", picture.getvalue()), (f"{i:04}.cls", str(i % 7).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    asyncio.run(build_index(str(folder)))
    return str(folder)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two coordinators on one store, no workers: the tests speak for these."""
    with Cluster(tmp_path, coordinators=2, workers=0, coordinator_args=FAST) as made:
        yield made


class Api:
    """A sync client of one coordinator, errors as HeadraceError."""

    def __init__(self, address: str, dataset: str = "") -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub: Any = CoordinatorServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.spec = JobSpec(SPEC.name, dataset or SPEC.dataset, SPEC.batch_size, SPEC.pipeline)

    def call(self, method: str, request: Any, deadline_s: float = DEADLINE_S) -> Any:
        try:
            return getattr(self.stub, method)(request, timeout=deadline_s, wait_for_ready=False)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    def open(self, spec: JobSpec | None = None, world: int = 2) -> JobSpec:
        request = pb.OpenJobRequest(protocol=PROTOCOL, job=convert.job_to_proto(spec or self.spec), world=world)
        return convert.job_from_proto(self.call("OpenJob", request).job)

    def join(self, rank: int, nonce: str = "", attempt: int = 0, world: int = 2, state: StreamState | None = None) -> Any:
        request = pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(rank, nonce, attempt), world=world, node="n0")
        if state is not None:
            request.state.CopyFrom(convert.state_to_proto(state))
        return self.call("JoinSession", request)

    def form(self) -> pb.Session:
        self.open()
        self.join(0)
        session: pb.Session = self.join(1).session
        assert session.attempt == 1
        return session

    def report(self, session: pb.Session, rank: int, consumed: int = 0, **more: Any) -> None:
        request = pb.ReportProgressRequest(id=rank_id(rank, "", session.attempt), session=session, consumed=consumed, **more)
        self.call("ReportProgress", request)

    def beat(
        self, name: str, held: Any = (), draining: bool = False, incarnation: str = "1", unable: Any = ()
    ) -> pb.HeartbeatResponse:
        endpoint = convert.endpoint_to_proto(Endpoint(name, f"{name}-{incarnation}", "n0", f"{name}:1", ""))
        answer: pb.HeartbeatResponse = self.call(
            "Heartbeat",
            pb.HeartbeatRequest(
                protocol=PROTOCOL,
                endpoint=endpoint,
                fingerprint="fp",
                ops=SPEC.pipeline.op_names,
                threads=1,
                draining=draining,
                held=held,
                unable_jobs=unable,
            ),
        )
        return answer

    def watch(self, session: pb.Session, rank: int = 0) -> Watch:
        return Watch(self, session, rank)


class Watch:
    """The newest lane table, read by a thread; error: what ended it."""

    def __init__(self, api: Api, session: pb.Session, rank: int) -> None:
        self.tables: list[LaneTable] = []
        self.error: HeadraceError | None = None
        request = pb.WatchSessionRequest(id=rank_id(rank, "", session.attempt), session=session)
        self._stream = api.stub.WatchSession(request, timeout=60)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._stream:
                self.tables.append(convert.lane_table_from_proto(message))
        except grpc.RpcError as error:
            self.error = error_from_rpc(error)

    def close(self) -> None:
        self._stream.cancel()
        self._thread.join(10)


def rank_id(rank: int, nonce: str = "", attempt: int = 0) -> pb.RankId:
    return pb.RankId(job="job", attempt=attempt, rank=rank, nonce=nonce or f"n{rank}")


def until(what: Callable[[], Any], why: str) -> Any:
    """Poll until true."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(0.03)
    pytest.fail(f"not within {DEADLINE_S:g} s: {why}")


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers["content-type"] else text


def apis(cluster: Cluster, dataset: str) -> tuple[Api, Api]:
    first, second = (Api(member.address, dataset) for member in cluster.coordinators)
    return first, second


def lanes_of(answer: pb.HeartbeatResponse) -> set[int]:
    return {lane for leases in answer.leases for lane in leases.lanes}


def test_errors_arrive_as_their_class_with_ids(cluster: Cluster, dataset: str) -> None:
    api, other = apis(cluster, dataset)
    recorded = api.open()
    assert recorded.samples == 200
    cases: list[tuple[type[HeadraceError], Callable[[], Any], dict[str, Any]]] = [
        (ManifestMissing, lambda: api.open(JobSpec("x", dataset + "/nothing", 4)), {}),
        (ManifestInvalid, lambda: api.open(JobSpec("x", dataset, 4, manifest_hash="00")), {"job": "x", "demanded": "00"}),
        (JobMismatch, lambda: other.open(JobSpec("job", dataset, 8, SPEC.pipeline)), {"job": "job", "field": "batch_size"}),
        (JobUnknown, lambda: api.call("JoinSession", pb.JoinSessionRequest(
            protocol=PROTOCOL, id=pb.RankId(job="none", nonce="n"), world=1)), {"job": "none"}),
        (SpecInvalid, lambda: api.call("OpenJob", pb.OpenJobRequest(
            protocol=PROTOCOL, job=pb.Job(name="job", spec_json="{"), world=1)), {}),
        (ProtocolMismatch, lambda: api.call("JoinSession", pb.JoinSessionRequest(
            protocol=9000, id=rank_id(0), world=2)), {"peer_protocol": 9000}),
    ]  # fmt: skip
    for cls, call, ids in cases:
        with pytest.raises(HeadraceError) as caught:
            call()
        assert type(caught.value) is cls
        assert ids.items() <= caught.value.ids.items()
    api.form()
    with pytest.raises(RankClaimed) as claimed:
        other.join(0, "stranger")
    assert claimed.value.rank == 0


def test_replicas_share_everything_and_one_may_die(cluster: Cluster, dataset: str) -> None:
    one, two = apis(cluster, dataset)
    one.open()
    assert list(one.join(0).awaited) == [1]
    session = two.join(1).session
    assert session.attempt == 1
    # A message is true even when nothing is in it, so the wait compares.
    until(lambda: one.join(0).session == session, "the other replica has seen it")
    one.beat("a")
    two.beat("b")
    watch = two.watch(session)

    def owners() -> set[str]:
        return set(watch.tables[-1].owners) if watch.tables else set()

    def alive(names: str, via: Api) -> None:
        for name in names:
            via.beat(name)
        for rank in range(2):
            via.report(session, rank)

    until(lambda: (alive("ab", one), owners() == {"a", "b"})[1], "both workers hold lanes")
    before = watch.tables[-1]
    # Worker a came first and had all lanes for a moment.
    moved_before = get(cluster.coordinators[1].admin_address, "/api/jobs/job")["lanes_moved"]
    cluster.kill_coordinator(0)
    with pytest.raises(CoordinatorUnavailable):
        one.beat("a", incarnation="2")
    # Worker b dies with it: the other replica gives its lanes to a.
    until(lambda: (alive("a", two), owners() == {"a"})[1], "worker a took over")
    after = watch.tables[-1]
    for lane, owner in enumerate(before.owners):
        assert (after.tokens[lane] > before.tokens[lane]) == (owner == "b")
    assert [table.version for table in watch.tables] == sorted(table.version for table in watch.tables)
    moved = get(cluster.coordinators[1].admin_address, "/api/jobs/job")["lanes_moved"]
    assert moved == moved_before + before.owners.count("b")
    watch.close()


def test_a_drained_worker_loses_its_lanes_at_once(cluster: Cluster, dataset: str) -> None:
    one, two = apis(cluster, dataset)
    session = one.form()

    def both() -> bool:
        for rank in range(2):
            two.report(session, rank)
        return bool(lanes_of(one.beat("a"))) and bool(lanes_of(two.beat("b")))

    until(both, "both workers hold lanes")
    until(lambda: lanes_of(one.beat("a", draining=True)) == set(), "with that very heartbeat, unless the machine is busy")
    assert lanes_of(one.beat("b")) == set(range(session.lanes))


def test_lanes_leave_workers_that_cannot_be_used(cluster: Cluster, dataset: str) -> None:
    one, two = apis(cluster, dataset)
    session = one.form()

    def beats(**more: Any) -> list[set[int]]:
        for rank in range(2):
            two.report(session, rank)
        return [lanes_of(one.beat("a", **more)), lanes_of(two.beat("b"))]

    until(lambda: all(beats()), "both workers hold lanes")
    until(lambda: lanes_of(one.beat("a", unable=["job"])) == set(), "with that very heartbeat, unless the machine is busy")
    until(lambda: all(beats()), "both workers hold lanes again")
    admin = cluster.coordinators[0].admin_address
    tokens = [lane["token"] for lane in get(admin, "/api/jobs/job")["lane_owners"]]
    known = pb.LaneTrouble(lane=0, worker="a", token=tokens[0] + 5)

    def renewed() -> bool:
        two.report(session, 0, elapsed_s=time.monotonic(), troubles=[known])
        return bool(get(admin, "/api/jobs/job")["lane_owners"][0]["token"] > tokens[0] + 5)

    until(renewed, "the lane is leased above what the rank knows")

    def complain() -> bool:
        """Rank 0 has no connection to worker a, and says so as long as it needs a lane of it."""
        mine, _ = beats()
        own = sorted(lane for lane in mine if lane % 2 == 0)
        troubles = [pb.LaneTrouble(lane=lane, worker="a", waited={"seconds": 9}) for lane in own[:1]]
        two.report(session, 0, elapsed_s=time.monotonic(), waiting_s=9, troubles=troubles)
        return bool(mine) and not own

    until(complain, "rank 0's lanes leave worker a, rank 1's don't")
    rank = get(admin, "/api/jobs/job")["ranks"][0]
    assert rank["waiting_s"] == 9
    assert rank["wait_s"] == sum(rank["wait_s_by_cause"].values()) == 9
    assert rank["wait_s_by_cause"].keys() <= {"lane_wait", "transfer", "worker_busy"}


def test_a_watch_ends_when_a_later_attempt_begins(cluster: Cluster, dataset: str) -> None:
    one, two = apis(cluster, dataset)
    session = one.form()
    watch = one.watch(session)
    until(lambda: watch.tables, "the first table")
    assert two.join(0, "fresh", attempt=5).attempt == 5
    until(lambda: watch.error, "the watch ended")
    assert type(watch.error) is SessionSuperseded
    assert (watch.error.ids["attempt"], watch.error.ids["newest"]) == (1, 5)


def test_store_killed_and_restarted(cluster: Cluster, dataset: str) -> None:
    one, two = apis(cluster, dataset)
    session = one.form()
    until(lambda: len(lanes_of(one.beat("a"))) == session.lanes, "a holds all lanes")
    tokens = list(one.beat("a").leases[0].tokens)
    watch = two.watch(session)
    until(lambda: watch.tables, "the first table")
    cluster.kill_store()
    for call in (lambda: one.beat("a"), lambda: two.report(session, 0, 3), one.open):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.retriable
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(cluster.coordinators[0].admin_address, "/readyz")
    assert watch.error is None
    cluster.restart_store()
    until(lambda: get_ok(cluster.coordinators[0].admin_address), "ready again")
    two.report(session, 0, 7, committed=5)
    assert list(one.beat("a").leases[0].tokens) == tokens
    watch.close()


def test_a_store_that_only_refuses_writes_is_told_like_one_that_is_away(cluster: Cluster, dataset: str) -> None:
    """It can be read: full, a replica, or short of replicas, as here."""
    one, two = apis(cluster, dataset)
    session = one.form()
    until(lambda: len(lanes_of(one.beat("a"))) == session.lanes, "a holds all lanes")
    tokens = list(one.beat("a").leases[0].tokens)
    admins = [member.admin_address for member in cluster.coordinators]

    def failing_s(address: str) -> float:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("headrace_store_failing_seconds ")))

    with redis.Redis.from_url(cluster.store_url) as store:
        store.config_set("min-replicas-to-write", 1)
        for api in (one, two):
            with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
                api.beat("a")
        for address in admins:
            until(lambda address=address: failing_s(address) > 1, "the gauge that the alert goes by")
            (trouble,) = [text for text in get(address, "/api/replica")["troubles"] if "the store has failed" in text]
            assert "NOREPLICAS" in trouble
            with pytest.raises(urllib.error.HTTPError, match="503"):
                get(address, "/readyz")
        store.config_set("min-replicas-to-write", 0)
    for address in admins:
        until(lambda address=address: failing_s(address) == 0, "it can be written to again")
        until(lambda address=address: get_ok(address), "ready again")
        assert not [text for text in get(address, "/api/replica")["troubles"] if "the store has failed" in text]
    assert list(one.beat("a").leases[0].tokens) == tokens
    for name, text in cluster.logs().items():
        if name.startswith("coordinator"):
            assert text.count("store_lost") == text.count("store_found") == 1, f"{name}: told once, not at every look"


def get_ok(address: str) -> bool:
    try:
        return bool(get(address, "/readyz")["status"] == "ok")
    except urllib.error.HTTPError:
        return False


def test_a_store_that_lost_everything_is_rebuilt_from_the_peers(cluster: Cluster, dataset: str) -> None:
    one, two = apis(cluster, dataset)
    session = one.form()
    until(lambda: len(lanes_of(one.beat("a"))) == session.lanes, "a holds all lanes")
    held = one.beat("a").leases
    one.report(session, 0, 9, committed=8)
    watch = two.watch(session, rank=1)
    until(lambda: watch.tables and watch.tables[-1].owners[0] == "a", "the table")
    redis.Redis(port=int(cluster.store.address.rpartition(":")[2])).flushall()
    again = one.beat("a", held=held)
    # Where the watch came first its lanes were dealt anew, to the only worker there is: then the tokens are newer.
    (told,), (before,) = again.leases, held
    assert list(told.lanes) == list(before.lanes)
    assert all(token >= known for token, known in zip(told.tokens, before.tokens, strict=True))
    one.report(session, 0, 9, committed=8)
    two.report(session, 1, 9, committed=8)
    assert watch.error is None

    def known() -> dict[str, Any] | None:
        """As the other replica has it, once it has looked again."""
        found: dict[str, Any] = get(cluster.coordinators[1].admin_address, "/api/jobs/job")
        return found if [rank["committed"] for rank in found["ranks"]] == [8, 8] else None

    job = until(known, "the job")
    assert (job["attempt"], job["samples"], job["lanes_moved"]) == (1, 200, 0)
    watch.close()


def test_a_store_that_comes_later(tmp_path: Path, dataset: str) -> None:
    cluster = Cluster(tmp_path, coordinators=1, workers=0, coordinator_args=FAST)
    coordinator = cluster.coordinators[0]
    try:
        coordinator.start()
        coordinator.wait_ready()
        api = Api(coordinator.address, dataset)
        assert get(coordinator.admin_address, "/healthz")["status"] == "ok"
        assert not get_ok(coordinator.admin_address)
        with pytest.raises(StoreUnavailable):
            api.open()
        cluster.store.start()
        cluster.store.wait_ready()
        until(lambda: get_ok(coordinator.admin_address), "ready")
        assert api.open().samples == 200
    finally:
        cluster.close()


def test_admin_api_and_metrics(cluster: Cluster, dataset: str) -> None:
    api, _ = apis(cluster, dataset)
    admin = cluster.coordinators[1].admin_address
    session = api.form()
    until(lambda: len(lanes_of(api.beat("a"))) == session.lanes, "a holds all lanes")
    bad = [
        pb.BadSample(epoch=0, sample=17, key="0017", reason="corrupt"),
        pb.BadSample(epoch=0, sample=3, key="0003", reason="truncated"),
    ]
    causes = [pb.WaitByCause(cause="decode", seconds=1.5), pb.WaitByCause(cause="read", seconds=0.5)]
    for _ in range(2):  # told twice, counted once
        api.report(
            session,
            1,
            6,
            committed=4,
            wait_s=2.0,
            wait_by_cause=causes,
            elapsed_s=8.0,
            transport="shm",
            bad_samples=bad,
            batches_remade=2,
            batches_fenced=5,
        )
    job = until(
        lambda: next((j for j in [get(admin, "/api/jobs/job")] if [r["consumed"] for r in j["ranks"]] == [0, 6]), None),
        "the report is seen",
    )
    rank = job["ranks"][1]
    assert (rank["committed"], rank["wait_s"], rank["transport"], rank["live"]) == (4, 2.0, "shm", True)
    assert rank["wait_s_by_cause"] == {"decode": 1.5, "read": 0.5}
    assert [(b["sample"], b["reason"]) for b in job["bad_samples"]] == [(3, "truncated"), (17, "corrupt")]
    assert (job["batches_remade"], job["lanes_moved"], job["bad_samples_total"]) == (2, 0, 2)
    assert [(w["worker"], w["lanes_by_job"]) for w in get(admin, "/api/workers")] == [("a", {"job": session.lanes})]
    assert [j["job"] for j in get(admin, "/api/jobs")] == ["job"]
    assert "/api/jobs/{job}" in get(admin, "/openapi.json")["paths"]
    assert get(admin, "/api")["/api/workers"] == "All workers that live or died a short time ago."
    text = get(admin, "/metrics")
    assert 'headrace_rank_wait_seconds_total{cause="decode",job="job",rank="1"} 1.5' in text
    assert 'headrace_batches_fenced_total{job="job"} 5.0' in text
    assert "headrace_workers_live 1.0" in text
    until(
        lambda: 'headrace_bad_samples_total{job="job",reason="corrupt"} 1.0' in get(admin, "/metrics"),
        "bad samples are counted",
    )
    # 200 samples in batches of 4 for 2 ranks: nothing is left over.
    assert (job["dropped_per_epoch"], job["samples_dropped"]) == (0, 0)
    assert 'headrace_samples_dropped_total{job="job"} 0.0' in text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(admin, "/api/jobs/other")


def test_health_and_reflection(cluster: Cluster) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(cluster.coordinators[0].address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        until(lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=5).status == serving, "healthy")
        assert "headrace.v1.CoordinatorService" in ProtoReflectionDescriptorDatabase(channel).get_services()


def test_a_taken_port_and_odd_settings_are_told_in_a_line(cluster: Cluster, tmp_path: Path) -> None:
    taken = cluster.coordinators[0]
    cases = [
        (["--grpc-address", taken.address, "--admin-address", ""], f"{taken.address} is taken"),
        (["--grpc-address", free_address(), "--admin-address", taken.admin_address], f"{taken.admin_address} is taken"),
        (["--store", "http://x"], "redis://"),
        (["--no-such-flag", "1"], "no-such-flag"),
        (["--worker-ttl-s", "0.3", "--heartbeat-s", "0.3"], "worker_ttl_s"),
    ]
    for i, (arguments, told) in enumerate(cases):
        service = start_service(f"odd-{i}", ["coordinator", *arguments], tmp_path / f"odd-{i}.log")
        assert service.wait(DEADLINE_S) != 0
        assert told in service.log_tail()
        assert "Traceback" not in service.log_tail(200)
