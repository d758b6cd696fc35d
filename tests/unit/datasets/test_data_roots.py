"""Where manifests may send a worker: never to another store than their own, or than the operator allows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.errors import AccessDenied, ConfigInvalid, ManifestInvalid
from headrace.datasets.build import build_index
from headrace.datasets.manifest import Manifest, load_manifest, store_manifest
from headrace.datasets.roots import Roots
from headrace.datasets.storage import open_storage
from headrace.datasets.storage_local import LocalStorage
from headrace.testing.tars import write_dataset
from headrace.worker.sources.sharded import open_source

DEFAULT = Roots()


@pytest.mark.parametrize(
    ("directory", "root"),
    [
        ("s3://bucket/set", ""),
        ("s3://bucket/set", "below"),
        ("s3://bucket/set", "s3://bucket/other/prefix"),
        ("https://host:8443/set", "https://user:pw@host:8443/other"),
        ("/data/set", "/mnt/photos"),
        ("/data/set", "s3://bucket/photos"),
        ("file:///data/set", "/mnt/photos"),
    ],
)
def test_a_manifests_own_store_is_allowed(directory: str, root: str) -> None:
    assert DEFAULT.data_address(directory, root).endswith(root)


@pytest.mark.parametrize(
    ("directory", "root"),
    [
        ("s3://bucket/set", "/etc"),
        ("s3://bucket/set", "file:///etc"),
        ("s3://bucket/set", "http://169.254.169.254/latest"),
        ("s3://bucket/set", "s3://bucket2/set"),
        ("s3://bucket/set", "gs://bucket/set"),
        ("s3://bucket/set", "../../other"),
        ("s3://bucket/set", "s3://bucket/a/%2e%2e/%2e%2e/x"),
        ("s3://bucket/set", "s3://bucket@evil/set"),
        ("https://host/set", "https://host.evil/set"),
        ("https://host/set", "http://host/set"),
        ("https://host/set", "https://host:9000/set"),
        ("https://host/set", "https://host@evil/set"),
    ],
)
def test_any_other_place_is_not(directory: str, root: str) -> None:
    with pytest.raises(AccessDenied, match="data-roots"):
        DEFAULT.data_address(directory, root)


def test_what_the_operator_lists_is_all_that_counts(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "out").symlink_to("/etc")
    roots = Roots.of(f"{tmp_path}/sets, s3://bucket/photos/")
    for fine in (f"{tmp_path}/sets/a", f"file://{tmp_path}/sets", "s3://bucket/photos", "s3://bucket/photos/x/manifest.json"):
        roots.check_dataset(fine)
    for other in (
        f"{tmp_path}", f"{tmp_path}/sets/../x", f"{tmp_path}/sets2", f"{tmp_path}/sets/out", "s3://bucket/photos2",
        "s3://bucket/photos/../x", "http://169.254.169.254/", "/etc/passwd",
    ):  # fmt: skip
        with pytest.raises(AccessDenied):
            roots.check_dataset(other)
        with pytest.raises(AccessDenied):
            roots.data_address("s3://bucket/photos", other)
    assert roots.data_address("s3://bucket/photos", f"{tmp_path}/sets") == f"{tmp_path}/sets"


def test_a_list_that_cannot_be_read_is_told() -> None:
    with pytest.raises(ConfigInvalid, match="ftp"):
        Roots.of("ftp://host/x")


async def test_a_worker_and_a_coordinator_refuse_such_a_data_set(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", 1, 5)
    await build_index(str(tmp_path / "set"))
    elsewhere = Roots.of("s3://bucket/")
    with pytest.raises(AccessDenied):
        await load_manifest(str(tmp_path / "set"), elsewhere)
    with pytest.raises(AccessDenied):
        await open_source(str(tmp_path / "set"), "", elsewhere)
    inside = Roots.of(str(tmp_path / "set"))
    source = await open_source(str(tmp_path / "set"), "", inside)
    assert len((await source.read([0, 1])).samples) == 2
    await source.close()
    storage = open_storage(str(tmp_path / "set"))
    await store_manifest(storage, replace(await load_manifest(str(tmp_path / "set")), root="/etc"))
    with pytest.raises(AccessDenied, match="/etc"):
        await open_source(str(tmp_path / "set"), "", inside)


HOSTILE_PATHS = ["../x.tar", "/etc/passwd", "a/../../x", "a\0b", "file:///etc/passwd", "", ".", "..", "a//b", "a\\..\\b", "./x"]


@pytest.mark.parametrize("path", HOSTILE_PATHS)
@pytest.mark.parametrize("field", ["name", "index"])
async def test_a_shards_path_never_leaves_its_root(tmp_path: Path, path: str, field: str) -> None:
    write_dataset(tmp_path, 1, 5)
    manifest = await build_index(str(tmp_path))
    data = json.loads(manifest.content)
    data["shards"][0][field] = path
    with pytest.raises(ManifestInvalid):
        Manifest.from_content(json.dumps(data).encode(), "x")


@pytest.mark.parametrize("path", HOSTILE_PATHS)
async def test_nor_does_a_file_that_an_index_names(tmp_path: Path, path: str) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(ConfigInvalid):
        await storage.get(path)
    await storage.close()


async def test_an_object_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    with pytest.raises(ManifestInvalid, match="at most"):
        await load_manifest(str(tmp_path))


@pytest.mark.parametrize(
    "address", ["~nobody-of-that-name/set", "~\0/set", "/data\0/set", "s3://bucket/\0", "http://[::1/set", "file://\0"]
)
async def test_an_address_that_none_can_be_is_told(address: str) -> None:
    with pytest.raises(ConfigInvalid):
        await load_manifest(address)
