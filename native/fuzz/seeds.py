"""Write JPEGs of every kind that the native core takes into a folder, and print the path of a libjpeg-turbo to fuzz with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import simplejpeg

from headrace.core.image_header import read_header
from headrace.testing.image_kinds import encode, good_jpegs, photo


def main(folder: Path) -> None:
    """Make the files."""
    folder.mkdir(parents=True)
    found = {kind.name: kind.data for kind in good_jpegs()}
    for width, height in ((64, 48), (33, 47), (17, 9), (1, 40), (200, 3)):
        image = photo(width, height)
        for sampling in ("444", "422", "420", "440", "411"):
            name = f"{sampling}_{width}x{height}"
            found[name] = simplejpeg.encode_jpeg(np.ascontiguousarray(image), 88, "RGB", sampling)
        for i in range(3):
            found[f"progressive_{i}_{width}x{height}"] = encode(image, "JPEG", quality=85, subsampling=i, progressive=True)
        found[f"gray_{width}x{height}"] = encode(image.convert("L"), "JPEG", quality=85)
        found[f"restart_{width}x{height}"] = encode(image, "JPEG", quality=85, restart_marker_blocks=3)
    for name, data in found.items():
        assert read_header(data).format == "jpeg"
        (folder / name).write_bytes(data)
    # The one that Pillow has loaded; where it is linked statically there is none to fuzz with.
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libjpeg" in line]
    print(loaded[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
