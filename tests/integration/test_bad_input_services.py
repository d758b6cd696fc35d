"""What bad surroundings get: ports in use, full disks, a full or absent store, no memory, odd requests over the wire."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from headrace.core import errors
from headrace.core.job import Endpoint
from headrace.core.pipeline_spec import CenterCrop, HorizontalFlip, PipelineSpec
from headrace.testing.cluster import Cluster
from headrace.testing.processes import free_address, start_service
from headrace.wire import convert
from headrace.wire.gen import coordinator_service_pb2 as pb
from headrace.wire.gen.coordinator_service_pb2_grpc import CoordinatorServiceStub
from headrace.wire.messages import PROTOCOL
from headrace.wire.status import error_from_rpc
from tests.integration.bad_input_rig import (
    BATCH,
    Seen,
    assert_no_trace,
    everything_lives,
    index,
    indexed,
    open_job,
    train,
    until,
    write_shards,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One coordinator, one worker."""
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("data")
    write_shards(directory, 2, 100)
    return indexed(directory)


# --- requests --------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "name": "wire", "dataset": "/nowhere", "batch_size": 4,
    "pipeline": {"ops": [{"op": "center_crop", "size": [8, 8]}]},
}  # fmt: skip
HUGE = "x" * (1 << 20)
DEEP = "[" * 100_000
SPECS: dict[str, str] = {
    "no JSON": "{",
    "deep JSON": DEEP,
    "a list": "[]",
    "a number": "1",
    "nothing": "",
    "unknown job field": json.dumps({**GOOD, "batchsize": 4}),
    "unknown pipeline field": json.dumps({**GOOD, "pipeline": {**GOOD["pipeline"], "opps": []}}),
    "unknown operation field": json.dumps({**GOOD, "pipeline": {"ops": [{"op": "center_crop", "size": [8, 8], "p": 1}]}}),
    "unknown operation": json.dumps({**GOOD, "pipeline": {"ops": [{"op": "explode"}]}}),
    "unknown shuffle field": json.dumps({**GOOD, "shuffle": {"windows": 1}}),
    "a text for a number": json.dumps({**GOOD, "batch_size": "4"}),
    "a fraction for a number": json.dumps({**GOOD, "batch_size": 4.5}),
    "a list for a text": json.dumps({**GOOD, "dataset": ["/a"]}),
    "a text for an object": json.dumps({**GOOD, "pipeline": "fast"}),
    "a null": json.dumps({**GOOD, "pipeline": None}),
    "not a number": json.dumps(
        {**GOOD, "pipeline": {"ops": [*GOOD["pipeline"]["ops"], {"op": "grayscale", "p": float("nan")}]}}
    ),
    "an endless number": json.dumps(GOOD).replace("4", "4" * 5000),
    "a batch of nothing": json.dumps({**GOOD, "batch_size": 0}),
    "a huge name": json.dumps({**GOOD, "name": HUGE[: 1 << 19]}),
    "a huge address": json.dumps({**GOOD, "dataset": HUGE[: 1 << 19]}),
    "a huge field": json.dumps({**GOOD, HUGE[: 1 << 19]: 1}),
    "more than is read": json.dumps({**GOOD, "dataset": HUGE}),
    "another name": json.dumps({**GOOD, "name": "other"}),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_job_that_is_none_is_refused_over_the_wire(case: str, fleet: Cluster) -> None:
    """INVALID_ARGUMENT with SpecInvalid, in a message that fits a line, from a coordinator that lives on."""
    job = pb.Job(name="wire", spec_json=SPECS[case])
    with everything_lives(fleet), grpc.insecure_channel(fleet.addresses) as channel, pytest.raises(grpc.RpcError) as caught:
        stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
        stub.OpenJob(pb.OpenJobRequest(protocol=PROTOCOL, job=job, world=1), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = error_from_rpc(caught.value)
    assert type(error) is errors.SpecInvalid
    assert len(error.message) < 1000


def rank_id(**fields: Any) -> pb.RankId:
    return pb.RankId(**{"job": "wire", "attempt": 1, "rank": 0, "nonce": "n", **fields})


REQUESTS: list[tuple[str, Any, type[errors.HeadraceError], grpc.StatusCode]] = [
    ("JoinSession", pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(job=HUGE), world=1), errors.SpecInvalid,
     grpc.StatusCode.INVALID_ARGUMENT),
    ("JoinSession", pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(nonce=HUGE), world=1), errors.ProtocolMismatch,
     grpc.StatusCode.FAILED_PRECONDITION),
    ("JoinSession", pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(job="none"), world=1), errors.JobUnknown,
     grpc.StatusCode.NOT_FOUND),
    ("JoinSession", pb.JoinSessionRequest(protocol=99 << 16, id=rank_id(), world=1), errors.ProtocolMismatch,
     grpc.StatusCode.FAILED_PRECONDITION),
    ("JoinSession", pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(rank=2), world=2), errors.WorldMismatch,
     grpc.StatusCode.INVALID_ARGUMENT),
    ("JoinSession", pb.JoinSessionRequest(protocol=PROTOCOL, id=rank_id(), world=0), errors.WorldMismatch,
     grpc.StatusCode.INVALID_ARGUMENT),
    ("ReportProgress", pb.ReportProgressRequest(id=rank_id(), bad_samples=[pb.BadSample(reason=HUGE)]),
     errors.ProtocolMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    ("ReportProgress", pb.ReportProgressRequest(id=rank_id(attempt=7)), errors.SessionUnknown, grpc.StatusCode.NOT_FOUND),
    ("Heartbeat", pb.HeartbeatRequest(protocol=PROTOCOL), errors.ProtocolMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    ("OpenJob", pb.OpenJobRequest(protocol=PROTOCOL, job=pb.Job(name="wire", spec_json=json.dumps(GOOD)), world=0),
     errors.WorldMismatch, grpc.StatusCode.INVALID_ARGUMENT),
    ("OpenJob", pb.OpenJobRequest(protocol=PROTOCOL, job=pb.Job(name="wire", spec_json=json.dumps(GOOD)), world=1),
     errors.ManifestMissing, grpc.StatusCode.NOT_FOUND),
]  # fmt: skip


def test_requests_that_cannot_be_are_refused_with_their_status(fleet: Cluster, dataset: str) -> None:
    job = open_job(fleet, "wire", dataset)
    assert job.samples == 200
    with everything_lives(fleet), grpc.insecure_channel(fleet.addresses) as channel:
        stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
        for method, request, cls, code in REQUESTS:
            with pytest.raises(grpc.RpcError) as caught:
                getattr(stub, method)(request, timeout=10)
            error = error_from_rpc(caught.value)
            assert (type(error), caught.value.code()) == (cls, code), f"{method} {str(request)[:200]}: {error}"
            assert len(error.message) < 1000
    assert sorted(train(job).ids) == list(range(200)), "the job is none the worse"


def test_an_operation_that_no_worker_has_is_told_at_open(tmp_path: Path, dataset: str) -> None:
    with Cluster(tmp_path, workers=0) as fleet, grpc.insecure_channel(fleet.addresses) as channel:
        stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
        endpoint = convert.endpoint_to_proto(Endpoint("poor", "poor-1", "n0", "127.0.0.1:1", ""))
        stub.Heartbeat(
            pb.HeartbeatRequest(protocol=PROTOCOL, endpoint=endpoint, fingerprint="poor-1", ops=["center_crop"], threads=1),
            timeout=10,
        )
        flips = PipelineSpec(ops=(CenterCrop((16, 16)), HorizontalFlip()))
        with pytest.raises(errors.EngineUnsupported, match="start workers") as caught:
            open_job(fleet, "flips", dataset, pipeline=flips)
        assert (caught.value.job, caught.value.op) == ("flips", "horizontal_flip")
        with pytest.raises(grpc.RpcError) as raw:  # bytes that are no message
            channel.unary_unary("/headrace.v1.CoordinatorService/OpenJob")(b"\xff" * 100, timeout=10)
        assert raw.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), raw.value
        assert open_job(fleet, "crops", dataset).samples == 200


def test_too_few_samples_for_the_world_are_told_at_open(fleet: Cluster, dataset: str) -> None:
    with pytest.raises(errors.NoSteps) as caught:
        open_job(fleet, "few", dataset, batch_size=256, tail="drop")
    assert caught.value.samples == 200
    with pytest.raises(errors.NoSteps):
        open_job(fleet, "few", dataset, batch_size=100, tail="drop").stream(rank=0, world=3).join()


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["auto", "shm", "grpc"])
def test_a_batch_that_no_memory_holds_is_told_to_the_trainer(transport: str, fleet: Cluster, dataset: str) -> None:
    huge = PipelineSpec(ops=(CenterCrop((16384, 16384)),))
    with everything_lives(fleet):
        job = open_job(fleet, f"huge-{transport}", dataset, pipeline=huge, batch_size=4096)
        with pytest.raises(errors.HeadraceError) as caught:
            train(job, transport=transport, wait_deadline_s=6)
        assert "no memory for a slab" in caught.value.message
        assert caught.value.code in ("disk_full", "wait_timeout", "transport_unavailable")
        assert sorted(train(open_job(fleet, f"small-{transport}", dataset)).ids) == list(range(200))


# --- ports -----------------------------------------------------------------------------------------------------------


def test_ports_in_use_are_told_in_a_line(fleet: Cluster, tmp_path: Path) -> None:
    worker, sockets = fleet.workers[0], str(fleet._sockets)
    http = worker.admin_address
    base = ["worker", "--coordinator", fleet.addresses, "--metrics-address", ""]
    coordinator = ["coordinator", "--store", fleet.store_url]
    cases: dict[str, tuple[list[str], str]] = {
        "worker-grpc": ([*base, "--name", "w1", "--socket-dir", "", "--grpc-address", worker.address], worker.address),
        "worker-metrics": (
            [*base, "--name", "w2", "--socket-dir", "", "--grpc-address", free_address(), "--metrics-address", http], http,
        ),
        "worker-socket": (
            [*base, "--name", worker.name, "--socket-dir", sockets, "--grpc-address", free_address()], f"{worker.name}.sock",
        ),
        "coordinator-grpc": ([*coordinator, "--admin-address", "", "--grpc-address", fleet.addresses], fleet.addresses),
        "coordinator-admin": (
            [*coordinator, "--grpc-address", free_address(), "--admin-address", fleet.coordinators[0].admin_address],
            fleet.coordinators[0].admin_address,
        ),
        "store": (["store", "--address", fleet.store.address, "--data-dir", str(tmp_path / "store")], fleet.store.address),
    }  # fmt: skip
    with everything_lives(fleet):
        started = {name: start_service(name, arguments, tmp_path / f"{name}.log") for name, (arguments, _) in cases.items()}
        for name, service in started.items():
            assert service.wait(30) == 1, service.log_tail()
            last = service.log_tail(1)
            assert last.startswith("headrace: ") and "port_in_use" in last and cases[name][1] in last, last
        assert_no_trace((name, service.log_tail(1000)) for name, service in started.items())


# --- disks -----------------------------------------------------------------------------------------------------------


def test_a_disk_without_room_for_the_index_is_told_in_a_line(tmp_path: Path) -> None:
    """Here by the limit on a file's size, which needs no rights; a really full disk is in tests/unit/datasets."""
    write_shards(tmp_path / "data", 1, 500)
    out = tmp_path / "out"
    program = f"{sys.executable} -m headrace index {tmp_path / 'data'} --out {out}"
    done = subprocess.run(["sh", "-c", f"ulimit -f 4; {program}"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1), done.stderr
    assert "disk_full" in done.stderr and "--out" in done.stderr
    assert [path for path in out.rglob("*") if path.is_file()] == []
    assert index(tmp_path / "data", "--out", out).returncode == 0


def test_a_store_that_cannot_write_its_directory_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    service = start_service(
        "store", ["store", "--address", free_address(), "--data-dir", str(tmp_path / "file" / "below")], tmp_path / "store.log"
    )
    assert service.wait(30) == 1
    assert service.log_tail(1).startswith("headrace: ") and "choose another" in service.log_tail(1)
    assert_no_trace([("store", service.log_tail(1000))])


# --- the store -------------------------------------------------------------------------------------------------------


def test_a_full_store_is_told_and_training_goes_on(tmp_path: Path, dataset: str) -> None:
    with Cluster(tmp_path, workers=1, coordinator_args=("--manifest-cache-s", "0")) as fleet, everything_lives(fleet):
        admin = fleet.coordinators[0].admin_address
        store = redis.Redis(port=int(fleet.store.address.rpartition(":")[2]))
        job = open_job(fleet, "fills", dataset)
        seen = Seen()
        with job.stream(epochs=1, wait_deadline_s=40) as stream:
            for batch in stream:
                seen.take(batch)
                if seen.batches == 3:
                    store.config_set("maxmemory", "1")
                    reason = until(lambda: not_ready(admin), "not ready")
                    assert "maxmemory" in reason or "OOM" in reason
                    with grpc.insecure_channel(fleet.addresses) as channel:
                        refused = call_open(channel, dataset)
                    assert refused.code() is grpc.StatusCode.UNAVAILABLE
                    assert type(error := error_from_rpc(refused)) is errors.StoreUnavailable
                    assert error.retriable and fleet.store.address in str(error.store)
                if seen.batches == 20:
                    store.config_set("maxmemory", "0")
                    until(lambda: not_ready(admin) == "", "ready again")
                    stream.commit(deadline_s=20)
        assert seen.ids == list(range(200))
        assert train(open_job(fleet, "after", dataset)).ids == list(range(200))


def test_a_fleet_whose_store_comes_last(tmp_path: Path, dataset: str) -> None:
    fleet = Cluster(tmp_path, workers=1)
    coordinator = fleet.coordinators[0]
    try:
        for member in (coordinator, *fleet.workers):
            member.start()
        for member in (coordinator, *fleet.workers):
            member.wait_ready()
        assert fleet.store.address in not_ready(coordinator.admin_address)
        with grpc.insecure_channel(fleet.addresses) as channel:
            refused = call_open(channel, dataset)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert type(error_from_rpc(refused)) is errors.StoreUnavailable
        fleet.store.start()
        job = open_job(fleet, "late", dataset)  # it goes on trying
        assert train(job).ids == list(range(200))
        assert not_ready(coordinator.admin_address) == ""
        assert_no_trace(fleet.logs().items())
    finally:
        fleet.close()


def call_open(channel: grpc.Channel, dataset: str) -> Any:
    """The failure of one OpenJob."""
    spec = json.dumps({**GOOD, "name": "refused", "dataset": dataset, "batch_size": BATCH})
    stub: Any = CoordinatorServiceStub(channel)  # type: ignore[no-untyped-call]
    with pytest.raises(grpc.RpcError) as caught:
        stub.OpenJob(pb.OpenJobRequest(protocol=PROTOCOL, job=pb.Job(name="refused", spec_json=spec), world=1), timeout=20)
    return caught.value


def not_ready(admin: str) -> str:
    """Why /readyz says 503; empty if it says 200."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://{admin}/readyz", timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        assert error.code == 503
        reason: str = json.load(error)["reason"]
        return reason
