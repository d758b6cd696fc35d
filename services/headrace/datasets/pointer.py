"""What the pointer beside a manifest named before: a new manifest takes its place only where it is of the same data set.

Jobs name a directory, and get what its pointer says. So train and val tars of one directory, or two data sets with one --out,
would take each other's place, and a job would train on the other one without a word.

The same data set: all its shards that are still there are in the new manifest, too. So more shards, changed and removed ones
and left out samples need no flag.
"""

from __future__ import annotations

from headrace.core.errors import ConfigInvalid, HeadraceError, ManifestInvalid, ManifestMissing, ShardInvalid, ShardMissing
from headrace.core.masking import mask_address
from headrace.datasets.layout import Layout, find_layout
from headrace.datasets.manifest import POINTER, Manifest, load_manifest_from
from headrace.datasets.storage import ObjectMissing, Storage, join_address, local_path, open_storage
from headrace.datasets.tasks import gather_all


async def check_pointer(out: str, layout: Layout) -> list[str]:
    """Raise ConfigInvalid where the pointer at `out` names another data set than that of `layout`; a note where it grows."""
    try:
        before, directory = await load_manifest_from(join_address(out, POINTER))
    except (ManifestMissing, ManifestInvalid):  # nothing, or nothing that a job could use
        return []
    root = join_address(directory, before.root)
    lacking = await _lacking(before, root, layout)
    if not lacking:
        new = {info.path for info in layout.files} - {shard.name for shard in before.shards}
        if not new or layout.kind == "folder":
            return []
        return [f"{len(new)} of {len(layout.files)} shards are not in the manifest before, first {min(new)!r}"]
    kind = "tars" if before.kind == "webdataset" else "images"
    raise ConfigInvalid(
        f"the manifest at {mask_address(out)} is of other data, and jobs that name it would get these instead:"
        f" {len(lacking)} of its {len(before.shards)} shards ({kind} at {mask_address(root)}) are not among these, first"
        f" {lacking[0]!r}. Give these a place of their own by --out, and name that in the job; or index all of them"
        " together; or say --replace",
        manifest=before.hash,
    )


async def _lacking(before: Manifest, root: str, layout: Layout) -> list[str]:
    """Shards of a manifest that are still there, and not in the layout."""
    same_root = _canonical(root) == _canonical(layout.address)
    if before.kind == "folder":  # its shards are slices, cut anew each time
        if (same_root and layout.kind == "folder") or not await _has_images(root):
            return []
        return [shard.name for shard in before.shards]
    kept = {info.path for info in layout.files} if same_root else set()
    names = [shard.name for shard in before.shards if shard.name not in kept]
    storage = open_storage(root)
    try:
        there = await gather_all(_is_there(storage, name) for name in names)
    finally:
        await storage.close()
    return [name for name, is_there in zip(names, there, strict=True) if is_there]


async def _has_images(root: str) -> bool:
    """Whether a folder has images still; true where that cannot be seen."""
    try:
        return (await find_layout(root)).kind == "folder"
    except (ShardMissing, ShardInvalid, ObjectMissing, ConfigInvalid):
        return False
    except HeadraceError:
        return True


async def _is_there(storage: Storage, name: str) -> bool:
    try:
        await storage.head(name)
    except (ObjectMissing, ConfigInvalid):  # gone, or a link by now
        return False
    except HeadraceError:  # who may not look cannot tell, and to ask is the safe side
        return True
    return True


def _canonical(address: str) -> str:
    path = local_path(address)
    return address.rstrip("/") if path is None else str(path.resolve())
