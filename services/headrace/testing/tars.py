"""Small WebDataset tars for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path


def tar_bytes(members: Iterable[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of these (name, data), in this order; names may be of any length and repeat."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """Write such a tar, and return what was written."""
    data = tar_bytes(members, tar_format)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def write_dataset(directory: Path, shards: int, samples_each: int) -> dict[str, bytes]:
    """Shards of `.jpg` (not really images) and `.cls` (number modulo 10) members; returns the former by key, in id order."""
    images: dict[str, bytes] = {}
    for shard in range(shards):
        members: list[tuple[str, bytes]] = []
        for i in range(samples_each):
            number = shard * samples_each + i
            key = f"s{number:06d}"
            images[key] = b"%d:" % number + bytes((number * 31 + j * 7) % 251 for j in range(200 + number * 37 % 900))
            members += [(f"{key}.jpg", images[key]), (f"{key}.cls", b"%d\n" % (number % 10))]
        write_tar(directory / f"shard-{shard:04d}.tar", members)
    return images
