"""Which decoder takes a sample of a GPU engine's batch: a pure function of its header, and of what the GPU has.

Never of load, neighbours or time: two decoders do not round alike, so balancing load between them would change pixels.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from headrace.core.image_header import ImageHeader
from headrace.worker.engines.pixels import is_turbo
from headrace.worker.engines.rows import Rows


class Route(IntEnum):
    """Who decodes: the GPU's JPEG engine, nvJPEG's software on the GPU, or the `cpu` engine, which also makes the row.

    A decoder that refuses what the header promised it passes the sample on, in this order.
    """

    HARDWARE = 0
    CUDA = 1
    HOST = 2


# Chroma samplings that the JPEG engine has: 4:4:4, 4:2:2, 4:2:0. nvJPEG's software has all of is_turbo.
_HARDWARE_SAMPLING = {(1, 1), (2, 1), (2, 2)}
# Sides in pixels. Tiny images cost more to upload and launch than to decode; the JPEG engine's upper limit is 16384.
_LEAST_SIDE, _HARDWARE_MOST_SIDE = 16, 8192
# A row that is scaled to more pixels than that on its way is left to the native core, which makes its window alone.
_MOST_SCALED_PIXELS = 4_000_000
# A cut of at most this share of an image is worth decoding by itself.
_WORTH_CUTTING = 0.75
# EXIF orientations that swap rows and columns, which no operator used here does.
_TURNED = 5


def route_of(header: ImageHeader, hardware: bool) -> Route:
    """The decoder of a sound image. hardware: whether the GPU has a JPEG engine."""
    if header.format != "jpeg" or header.color not in ("ycbcr", "gray") or not is_turbo(header) or not header.complete:
        return Route.HOST
    if header.orientation >= _TURNED or min(header.width, header.height) < _LEAST_SIDE:
        return Route.HOST
    if header.color == "gray" and header.sampling != ((1, 1),):
        return Route.HOST
    usual = header.sampling[0] in _HARDWARE_SAMPLING and max(header.width, header.height) <= _HARDWARE_MOST_SIDE
    return Route.HARDWARE if hardware and usual and not header.progressive else Route.CUDA


def routes_of(rows: Rows, hardware: bool) -> NDArray[np.uint8]:
    """uint8[B] of Route for a batch.

    The `cpu` engine takes what is bad already, since it knows the reason; rows whose crop reaches over the image's edge; and
    rows that are huge on their way.
    """
    routes = np.full(len(rows.samples), Route.HOST, np.uint8)
    fits = np.ones(len(rows.samples), np.bool_)
    if rows.geometry is not None:
        fits = rows.geometry.inside & (rows.geometry.numbers[:, 4:6].prod(axis=1) <= _MOST_SCALED_PIXELS)
    for row, probe in enumerate(rows.probes):
        if probe is not None and fits[row] and rows.known_bad(row) == "none":
            routes[row] = route_of(probe.header, hardware)
    return routes


def cuts_of(rows: Rows) -> dict[int, tuple[int, int, int, int]]:
    """Row -> y, x, height, width of the part that is enough to decode, where that is well less than the whole.

    A function of header and geometry. Of mirrored images all is decoded: what a region of theirs means is the library's choice.
    """
    cuts: dict[int, tuple[int, int, int, int]] = {}
    for row, probe in enumerate(rows.probes):
        if probe is None or rows.geometry is None or probe.header.orientation != 1:
            continue
        y, x, height, width = rows.geometry.numbers[row, :4].tolist()
        if height * width <= _WORTH_CUTTING * probe.header.height * probe.header.width:
            cuts[row] = (y, x, height, width)
    return cuts
