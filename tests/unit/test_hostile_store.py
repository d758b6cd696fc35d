"""Records that another version, a fault or somebody else wrote: told by name, and no other job is touched."""

from __future__ import annotations

import json

import pytest

from headrace.coordinator.store import Stored, Table
from headrace.core.errors import RecordInvalid
from headrace.testing.fuzz.control_rig import BAD, Rig, get, heartbeat, rank_id
from headrace.wire.gen import coordinator_service_pb2 as pb


@pytest.fixture(scope="module")
def rig() -> Rig:
    return Rig()


def write(rig: Rig, table: Table, field: str, data: bytes) -> None:
    """What somebody else writes, past all our checks."""
    tables, stamps = rig.store.snapshot()
    stamp = stamps.get(table, 1) + 1
    tables.setdefault(table, {})[field] = Stored(stamp, data)
    rig.store.restore((tables, {**stamps, table: stamp}))


def changed(rig: Rig, table: Table, field: str, **values: object) -> bytes:
    """The record there with other values."""
    record = json.loads(rig.store.snapshot()[0][table][field].data)
    return json.dumps({**record, **values}).encode()


MAIN, RANKS, LANES = Table(f"job:{BAD}", "main"), Table(f"job:{BAD}", "ranks"), Table(f"job:{BAD}", "lanes")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[[]]", b"7", b"null", b"\xff\xfe", b"[" * 100_000, b'{"spec": {}}', b'{"attempt": 1}']
)
@pytest.mark.parametrize(("table", "field"), [(MAIN, "job"), (MAIN, "session"), (RANKS, "0"), (LANES, "3")])
def test_garbage_in_a_record_of_one_job(rig: Rig, table: Table, field: str, data: bytes) -> None:
    rig.reset()
    write(rig, table, field, data)
    rig.run(rig.look())  # the honest job is served, and people and Prometheus get their answers
    with pytest.raises(RecordInvalid):
        rig.run(rig.ledger.update(BAD, _tick()))


def _tick() -> object:
    from headrace.core.events import Tick

    return Tick(0)


@pytest.mark.parametrize(
    ("table", "field", "values"),
    [
        (MAIN, "session", {"lanes": 2**40}),
        (MAIN, "session", {"world": 2**40}),
        (MAIN, "session", {"window": 0}),
        (MAIN, "session", {"attempt": "1"}),
        (MAIN, "session", {"barred": [["w", 1, 2, "x"]]}),
        (RANKS, "0", {"alive_until_us": 1e300}),
        (RANKS, "0", {"elapsed_s": float("nan")}),
        (RANKS, "0", {"waits": [["read", None]]}),
        (RANKS, "0", {"node": "\ud800"}),
    ],
)
def test_values_that_cannot_be(rig: Rig, table: Table, field: str, values: dict[str, object]) -> None:
    rig.reset()
    write(rig, table, field, changed(rig, table, field, **values))
    rig.run(rig.look())
    with pytest.raises(RecordInvalid):
        rig.run(rig.ledger.update(BAD, _tick()))


@pytest.mark.parametrize("name", ["dataset", "fingerprint", "manifest_hash", "label_kind"])
def test_a_text_of_a_jobs_spec_that_no_answer_can_hold(rig: Rig, name: str) -> None:
    rig.reset()
    spec = json.loads(rig.store.snapshot()[0][MAIN]["job"].data)["spec"]
    write(rig, MAIN, "job", changed(rig, MAIN, "job", spec={**spec, name: "\ud800"}))
    rig.run(rig.look())
    with pytest.raises(RecordInvalid):
        rig.run(rig.ledger.update(BAD, _tick()))


@pytest.mark.parametrize("field", ["-1", "65536", "x", "", "1" * 5000, "²"])
def test_a_record_under_a_name_that_is_no_number(rig: Rig, field: str) -> None:
    rig.reset()
    write(rig, RANKS, field, rig.store.snapshot()[0][RANKS]["0"].data)
    rig.run(rig.look())
    with pytest.raises(RecordInvalid):
        rig.run(rig.ledger.update(BAD, _tick()))


@pytest.mark.parametrize(
    "values", [{"alive_until_us": "soon"}, {"endpoint": 4}, {"threads": -1}, {"ops": [1]}, {"fingerprint": []}]
)
def test_a_workers_record_is_left_out_and_its_next_heartbeat_mends_it(rig: Rig, values: dict[str, object]) -> None:
    rig.reset()
    workers = Table("fleet", "workers")
    write(rig, workers, "w1", changed(rig, workers, "w1", **values))
    rig.run(rig.look())
    assert [worker.endpoint.worker for worker in rig.board.workers()] == ["w2"]
    rig.run(rig.call("Heartbeat", heartbeat("w1")))
    rig.run(rig.look())
    assert [worker.endpoint.worker for worker in rig.board.workers()] == ["w1", "w2"]


def test_names_of_jobs_that_cannot_be_are_passed_over(rig: Rig) -> None:
    rig.reset()
    for name in ("../x", "", "a b", "x" * 5000):
        write(rig, Table("fleet", "jobs"), name, b"1")
    rig.run(rig.look())


def test_a_list_of_bad_samples_that_cannot_be_read_is_told_where_it_is_asked_for(rig: Rig) -> None:
    rig.reset()
    write(rig, Table(f"job:{BAD}", "bad"), "7", b"[1]")
    rig.run(rig.look())
    assert rig.run(get(rig.admin, f"/api/jobs/{BAD}/quarantine")) == 503
    report = pb.ReportProgressRequest(id=rank_id(BAD), consumed=9, elapsed_s=9.0)
    rig.run(rig.call("ReportProgress", report))  # training goes on
