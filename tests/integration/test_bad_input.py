"""What bad data get, as the user meets it: `headrace index`, services as processes, and a trainer that checks every row.

docs/errors.md lists every error with its test.
"""

from __future__ import annotations

import contextlib
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace.client.transports import connections
from headrace.core import errors
from headrace.core.pipeline_spec import PipelineSpec
from headrace.testing.cluster import Cluster
from headrace.testing.tars import write_tar
from tests.integration.bad_input_rig import (
    BATCH,
    PIPELINE,
    Seen,
    everything_lives,
    image,
    index,
    indexed,
    number_of,
    open_job,
    sample,
    told_bad,
    train,
    write_shards,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A coordinator that reads manifests anew each time, and two workers."""
    with Cluster(tmp_path_factory.mktemp("fleet"), workers=2, coordinator_args=("--manifest-cache-s", "0")) as running:
        yield running


@pytest.fixture(autouse=True)
def lives(fleet: Cluster) -> Iterator[None]:
    """Whatever is fed to them, the services live on."""
    with everything_lives(fleet):
        yield


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set with nothing wrong."""
    directory = tmp_path_factory.mktemp("healthy")
    write_shards(directory, 2, 20)
    return indexed(directory)


# --- shards ----------------------------------------------------------------------------------------------------------


def vanish(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2048])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(10240))


def another_of_its_size(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"s000", b"t000"))
    assert path.stat().st_size == len(data)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


DAMAGES = [
    (vanish, errors.ShardMissing),
    (cut, errors.ShardChanged),
    (cut_to_nothing, errors.ShardChanged),
    (grow, errors.ShardChanged),
    (another_of_its_size, errors.ShardChanged),
    (a_directory, errors.ConfigInvalid),
    (a_link, errors.ConfigInvalid),
]


@pytest.mark.parametrize(("damage", "cls"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_shard_that_is_not_what_was_indexed(
    damage: Callable[[Path], None], cls: type[errors.HeadraceError], fleet: Cluster, healthy: str, tmp_path: Path
) -> None:
    """The trainer of that job is told; other jobs go on; once the shard is back, the rest comes, no sample twice."""
    _, bad, _ = write_shards(tmp_path / "set", 3, 20)
    job = open_job(fleet, f"shard-{damage.__name__}", indexed(tmp_path / "set"))
    kept = shutil.copy(bad, tmp_path / "kept")
    damage(bad)
    seen = Seen()
    with job.stream(epochs=1, wait_deadline_s=40) as stream:
        with pytest.raises(cls) as caught:
            for batch in stream:
                seen.take(batch)
        state = stream.state_dict()
    error = caught.value
    assert (error.job, error.rank, error.epoch, error.batch) == (job.spec.name, 0, 0, seen.batches)
    assert str(error.worker).startswith("worker-")
    assert not error.retriable
    assert "b.tar" in error.message
    if cls is not errors.ConfigInvalid:
        assert error.shard == "b.tar"
        assert "restore it" in error.message
    assert seen.ids == list(range(20 // BATCH * BATCH)), "what lies before the shard came"
    assert sorted(train(open_job(fleet, f"beside-{damage.__name__}", healthy)).ids) == list(range(40))

    if bad.is_dir() and not bad.is_symlink():
        bad.rmdir()
    bad.unlink(missing_ok=True)
    shutil.copy(kept, bad)
    train(job, seen, state=state)
    assert seen.ids == list(range(60))


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_shard_that_is_put_back_serves_the_same_stream(transport: str, fleet: Cluster, tmp_path: Path) -> None:
    """The next `for` tries again, as Stream says, and goes on where the error came."""
    _, bad, _ = write_shards(tmp_path / "set", 3, 20)
    job = open_job(fleet, f"put-back-{transport}", indexed(tmp_path / "set"))
    bad.rename(tmp_path / "kept")
    seen = Seen()
    with job.stream(epochs=1, transport=transport, wait_deadline_s=40) as stream:  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(errors.ShardMissing) as caught:
                for batch in stream:
                    seen.take(batch)
            assert caught.value.batch == 20 // BATCH
        (tmp_path / "kept").rename(bad)
        with contextlib.suppress(errors.ShardMissing):  # of a try that had begun by then
            for batch in stream:
                seen.take(batch)
        for batch in stream:
            seen.take(batch)
    assert seen.ids == list(range(60))


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_shard_that_changes_while_the_job_runs(transport: str, fleet: Cluster, tmp_path: Path) -> None:
    """Also where its size stays, and after it was checked."""
    (shard,) = write_shards(tmp_path, 1, 400)
    job = open_job(fleet, f"changes-{transport}", indexed(tmp_path))
    seen = Seen()
    with (
        job.stream(epochs=1, transport=transport, wait_deadline_s=40) as stream,  # type: ignore[arg-type]
        pytest.raises(errors.ShardChanged) as caught,
    ):
        for batch in stream:
            seen.take(batch)
            if seen.batches == 1:
                data = shard.read_bytes()
                shard.with_suffix(".new").write_bytes(data.replace(b"s00", b"t00"))
                shard.with_suffix(".new").rename(shard)
    assert caught.value.shard == "a.tar"
    assert BATCH <= len(seen.ids) < 400
    assert seen.ids == list(range(len(seen.ids)))


def test_a_flipped_byte_is_a_bad_sample_where_checksums_are_kept(fleet: Cluster, tmp_path: Path) -> None:
    """Edges and size of the shard are what they were; only the image's own checksum can tell."""
    (shard,) = write_shards(tmp_path, 1, 200)
    assert index(tmp_path, "--checksums").returncode == 0
    with tarfile.open(shard) as tar:
        offset = tar.getmember("s00100.png").offset_data
    data = bytearray(shard.read_bytes())
    data[offset + 60] ^= 1
    shard.write_bytes(data)
    seen = train(open_job(fleet, "flipped", str(tmp_path)))
    assert seen.bad == {100: "checksum"}
    assert seen.ids == list(range(200))
    assert told_bad(fleet, "flipped") == [("s00100", "checksum")]


# --- manifests -------------------------------------------------------------------------------------------------------


def test_a_wrong_address_is_told_at_open(fleet: Cluster, healthy: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    cases: list[tuple[str, type[errors.HeadraceError], str]] = [
        (f"{healthy}/nothing", errors.ManifestMissing, "headrace index"),
        (f"{healthy}/manifest-{'0' * 32}.json", errors.ManifestMissing, "headrace index"),
        (str(tmp_path), errors.ManifestInvalid, "index"),
        (f"{healthy}/a.tar", errors.ManifestMissing, "headrace index"),
        ("gopher://a/b", errors.ConfigInvalid, "s3://"),
        ("s3:///", errors.ConfigInvalid, "s3"),
    ]
    for address, cls, says in cases:
        with pytest.raises(cls, match=says) as caught:
            open_job(fleet, "wrong-address", address)
        assert caught.value.ids, address


def test_a_manifest_may_vanish_while_its_job_runs(fleet: Cluster, tmp_path: Path) -> None:
    write_shards(tmp_path, 2, 100)
    job = open_job(fleet, "manifest-vanishes", indexed(tmp_path))
    seen = Seen()
    with job.stream(epochs=2) as stream:
        for _ in stream.epochs():
            for batch in stream:
                seen.take(batch)
                if seen.batches == 2:
                    for path in tmp_path.glob("manifest*"):
                        path.unlink()
    assert sorted(seen.ids) == sorted([*range(200), *range(200)])
    with pytest.raises(errors.ManifestMissing) as caught:
        open_job(fleet, "manifest-vanished", str(tmp_path))
    assert str(tmp_path) in str(caught.value.manifest)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_a_manifest_that_the_workers_cannot_read_is_told_to_the_rank(
    transport: str, fleet: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the coordinator has a mount that the workers lack."""
    if transport == "grpc":  # the real patience once
        monkeypatch.setattr(connections, "GRACE_S", 2.0)
        monkeypatch.setattr(connections, "_LONGEST_S", 6.0)
    write_shards(tmp_path, 1, 40)
    job = open_job(fleet, f"unreadable-{transport}", indexed(tmp_path))
    hidden = tmp_path.with_name(tmp_path.name + "-hidden")
    tmp_path.rename(hidden)
    with pytest.raises(errors.ManifestMissing, match="cannot serve job") as caught:
        train(job, transport=transport)
    assert caught.value.job == job.spec.name
    assert str(caught.value.worker).startswith("worker-")
    hidden.rename(tmp_path)
    assert train(job, transport=transport).ids == list(range(40)), "nothing of it sticks"


def test_a_data_set_that_is_indexed_again_while_its_job_runs(fleet: Cluster, tmp_path: Path) -> None:
    """The job goes on with the manifest that it was opened with; only another job can have the new one."""
    write_shards(tmp_path, 1, 40)
    job = open_job(fleet, "again", indexed(tmp_path))
    write_tar(tmp_path / "b.tar", [part for i in range(40, 60) for part in sample(i)])
    indexed(tmp_path)
    with pytest.raises(errors.JobMismatch, match="another job name") as caught:
        open_job(fleet, "again", str(tmp_path))
    assert (caught.value.job, caught.value.field) == ("again", "manifest_hash")
    assert train(job).ids == list(range(40))
    assert train(open_job(fleet, "again-2", str(tmp_path))).ids == list(range(60))
    (tmp_path / f"manifest-{job.spec.manifest_hash}.json").unlink()
    with pytest.raises(errors.ManifestInvalid, match="restore") as gone, headrace.connect(fleet.addresses) as client:
        client.open(replace(job.spec, name="again-3"))
    assert gone.value.job == "again-3"


# --- samples ---------------------------------------------------------------------------------------------------------


def bad_samples(directory: Path) -> dict[int, str]:
    """100 samples, eight of them bad in a way of its own; returns number -> reason."""
    good = image(0)
    bad: dict[int, tuple[str, list[tuple[str, bytes]]]] = {
        3: ("empty", sample(3, data=b"")),
        11: ("unknown_format", sample(11, data=b"this is a text, not an image")),
        12: ("truncated", sample(12, data=good[:-30])),
        25: ("bad_label", sample(25, label=b"cat\n")),
        40: ("missing_part", sample(40)[:1]),
        41: ("missing_part", sample(41)[1:]),
        60: ("too_large", sample(60, data=good[:16] + (65500).to_bytes(4, "big") * 2 + good[24:])),
        99: ("unsupported", sample(99, data=b"8BPS" + bytes(60))),
    }
    members = [part for i in range(100) for part in (bad[i][1] if i in bad else sample(i))]
    write_tar(directory / "a.tar", members)
    return {number: reason for number, (reason, _) in bad.items()}


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_bad_samples_are_substituted_and_told_once(transport: str, fleet: Cluster, tmp_path: Path) -> None:
    bad = bad_samples(tmp_path)
    done = index(tmp_path)
    assert done.returncode == 0
    assert "s00025" in done.stdout and "bad_label" in done.stdout
    name = f"bad-samples-{transport}"
    seen = train(open_job(fleet, name, str(tmp_path)), transport=transport)
    assert seen.ids == list(range(100))
    assert seen.bad.keys() == bad.keys()
    assert {number: reason for number, reason in seen.bad.items() if reason != bad[number]} == {}
    assert not {number_of(key) for key in seen.keys} & bad.keys(), "no row holds what is bad"
    assert told_bad(fleet, name) == sorted((f"s{number:05d}", reason) for number, reason in bad.items())
    again = train(open_job(fleet, f"{name}-again", str(tmp_path)), transport=transport)
    assert again.keys == seen.keys, "the same stand-ins for all who train on it"


def test_the_policy_fail_ends_the_job_at_the_bad_sample(fleet: Cluster, tmp_path: Path) -> None:
    bad_samples(tmp_path)
    strict = PipelineSpec(ops=PIPELINE.ops, on_bad_sample="fail")
    with pytest.raises(errors.BatchFailed, match="mend it") as caught:
        train(open_job(fleet, "strict", indexed(tmp_path), pipeline=strict))
    error = caught.value
    assert (error.job, error.epoch, error.batch, error.sample, error.key) == ("strict", 0, 0, 3, "s00003")
    # What only decoding finds is left out by name.
    left_out = tmp_path / "left-out.txt"
    left_out.write_text("".join(f"s{number:05d}\n" for number in (11, 12, 60, 99)))
    assert index(tmp_path, "--bad", "skip", "--exclude", left_out).returncode == 0
    assert len(train(open_job(fleet, "strict-2", str(tmp_path), pipeline=strict)).ids) == 92


def test_indexing_can_refuse_bad_samples(tmp_path: Path) -> None:
    bad_samples(tmp_path)
    done = index(tmp_path, "--bad", "fail")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1)
    assert "s00003" in done.stderr and "--bad keep or skip" in done.stderr and "a.tar" in done.stderr
    assert not list(tmp_path.glob("manifest*"))


def test_a_batch_of_bad_samples_alone_fails_with_the_first_ones_key(fleet: Cluster, tmp_path: Path) -> None:
    members = [part for i in range(3 * BATCH) for part in sample(i, data=b"no" if BATCH <= i < 2 * BATCH else None)]
    write_tar(tmp_path / "a.tar", members)
    seen = Seen()
    with pytest.raises(errors.BatchFailed, match=f"all {BATCH} samples") as caught:
        train(open_job(fleet, "all-bad", indexed(tmp_path)), seen)
    assert (caught.value.batch, caught.value.key) == (1, f"s{BATCH:05d}")
    assert seen.ids == list(range(BATCH))


# --- containers ------------------------------------------------------------------------------------------------------


def test_odd_containers_are_read_whole(fleet: Cluster, tmp_path: Path) -> None:
    """Unsorted members, long names of both kinds, folders with the same base names, an empty shard."""
    unsorted = [part for i in range(30) for part in sample(i)]
    unsorted = unsorted[::2] + unsorted[1::2][::-1]
    same_names = [part for i in range(30, 40) for part in sample(i, "left/")] + [
        part for i in range(30, 40) for part in sample(i, "right/")
    ]
    long_names = [part for i in range(40, 50) for part in sample(i, "d" * 90 + "/" + "e" * 90 + "/")]
    write_tar(tmp_path / "a.tar", unsorted)
    write_tar(tmp_path / "b.tar", same_names)
    write_tar(tmp_path / "c.tar", long_names, tarfile.GNU_FORMAT)
    write_tar(tmp_path / "d.tar", [(name.replace("s000", "s001"), image(int(name[-8:-4]) + 100) if name.endswith("png") else
        b"%d" % ((int(name[-8:-4]) + 100) % 7)) for name, _ in long_names], tarfile.PAX_FORMAT)  # fmt: skip
    write_tar(tmp_path / "e.tar", [])
    seen = train(open_job(fleet, "containers", indexed(tmp_path)))
    assert seen.bad == {}
    assert seen.ids == list(range(70))
    assert len(set(seen.keys)) == 70
    assert sorted(map(number_of, seen.keys)) == sorted(
        [*range(30), *range(30, 40), *range(30, 40), *range(40, 50), *range(140, 150)]
    )


def test_one_small_shard_is_shared_by_all_workers(fleet: Cluster, tmp_path: Path) -> None:
    write_shards(tmp_path, 1, 300)
    job = open_job(fleet, "one-shard", indexed(tmp_path))
    seen, workers = Seen(), set()
    with job.stream(epochs=1) as stream:
        for batch in stream:
            seen.take(batch)
            workers.add(batch.worker)
    assert seen.ids == list(range(300))
    assert workers == {"worker-0", "worker-1"}


def test_a_shard_of_no_bytes_and_a_cut_one(fleet: Cluster, tmp_path: Path) -> None:
    first, second = write_shards(tmp_path, 2, 20)
    second.write_bytes(b"")
    done = index(tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (1, 1)
    assert "b.tar is empty" in done.stderr and "shard_invalid" in done.stderr
    second.unlink()
    with tarfile.open(first) as tar:
        end = tar.getmember("s00015.png").offset_data
    first.write_bytes(first.read_bytes()[: end + 10])
    done = index(tmp_path)
    assert done.returncode == 0
    assert "a.tar" in done.stdout and "cut" in done.stdout
    seen = train(open_job(fleet, "cut", str(tmp_path)))
    assert seen.ids == list(range(16)), "the good ones are kept"
    assert seen.bad == {15: "truncated"}
