"""What becomes of a job whose object store goes away, or changes under it: a fleet on a real S3 server of this process."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import from_url

from headrace.core import errors
from headrace.testing.cluster import Cluster
from headrace.testing.processes import free_port
from tests.integration.bad_input_rig import BATCH, Seen, everything_lives, indexed, open_job, write_shards

pytestmark = pytest.mark.timeout(240)


class Bucket:
    """An S3 server that can be stopped and started; what is stored stays in this process."""

    address = "s3://photos"

    def __init__(self) -> None:
        self.port = free_port()
        self.start()
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/photos", method="PUT"), timeout=10).close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def put(self, name: str, data: bytes) -> None:
        obstore.put(from_url(self.address, client_options={"allow_http": True}), name, data)

    def upload(self, directory: Path, prefix: str) -> str:
        for path in [Path(parent) / name for parent, _, names in os.walk(directory) for name in names]:
            self.put(f"{prefix}/{path.relative_to(directory)}", path.read_bytes())
        return f"{self.address}/{prefix}"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with pytest.MonkeyPatch.context() as patch:
        made = Bucket()
        for name, value in {
            "AWS_ENDPOINT_URL": made.endpoint,
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "very-secret",
            "AWS_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        yield made
        made.stop()


@pytest.fixture(scope="module")
def fleet(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=2) as running, everything_lives(running):
        yield running
        assert not [name for name, text in running.logs().items() if "very-secret" in text]


def test_a_wait_names_the_store_that_no_worker_can_read_and_goes_on_when_it_is_back(
    bucket: Bucket, fleet: Cluster, tmp_path: Path
) -> None:
    write_shards(tmp_path, 2, 40)
    indexed(tmp_path)
    job = open_job(fleet, "store-away", bucket.upload(tmp_path, "away"))
    bucket.stop()
    seen = Seen()
    try:
        with job.stream(epochs=1, wait_deadline_s=18) as stream:
            with pytest.raises(errors.WaitTimeout, match="cannot serve job") as caught:
                next(iter(stream))
            assert "s3://photos/away" in caught.value.message
            assert (caught.value.job, caught.value.rank, caught.value.index) == ("store-away", 0, 0)
            assert str(caught.value.worker).startswith("worker-")
            bucket.start()
            for batch in stream:
                seen.take(batch)
    finally:
        bucket.stop()
        bucket.start()
    assert seen.ids == list(range(80))


@pytest.mark.timeout(400)
def test_a_store_that_goes_away_while_the_job_runs_ends_the_stream_and_loses_nothing(
    bucket: Bucket, fleet: Cluster, tmp_path: Path
) -> None:
    write_shards(tmp_path, 2, 200)
    indexed(tmp_path)
    job = open_job(fleet, "store-goes", bucket.upload(tmp_path, "goes"))
    seen = Seen()
    # Its retries last some 50 s on a machine with nothing else to do.
    with job.stream(epochs=1, wait_deadline_s=240) as stream:
        with pytest.raises(errors.SourceUnavailable) as caught:
            for batch in stream:
                seen.take(batch)
                if seen.batches == 2:
                    bucket.stop()
        state = stream.state_dict()
    bucket.start()
    assert caught.value.retriable
    assert (caught.value.job, caught.value.batch) == ("store-goes", seen.batches)
    assert BATCH <= len(seen.ids) < 400
    with job.stream(epochs=1, state=state, wait_deadline_s=60) as stream:
        for batch in stream:
            seen.take(batch)
    assert seen.ids == list(range(400))


def test_an_object_that_is_replaced_while_the_job_runs_is_told(bucket: Bucket, fleet: Cluster, tmp_path: Path) -> None:
    """Of the same size, and after it was checked: its tag is another."""
    (shard,) = write_shards(tmp_path, 1, 400)
    indexed(tmp_path)
    job = open_job(fleet, "object-replaced", bucket.upload(tmp_path, "replaced"))
    seen = Seen()
    with job.stream(epochs=1, wait_deadline_s=60) as stream, pytest.raises(errors.ShardChanged) as caught:
        for batch in stream:
            seen.take(batch)
            if seen.batches == 2:
                bucket.put("replaced/a.tar", shard.read_bytes().replace(b"s00", b"t00"))
    assert (caught.value.job, caught.value.shard) == ("object-replaced", "a.tar")
    assert BATCH <= len(seen.ids) < 400
    assert seen.ids == list(range(len(seen.ids)))
