"""Real photos that scikit-image and scikit-learn ship in their wheels, and crops of them in the sizes that ImageNet has.

Nothing is downloaded. What these packages fetch on demand is not used.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headrace.core.errors import ConfigInvalid

# Class name -> (package, file in its wheel). Ten colour photos: one class each.
PHOTOS: dict[str, tuple[str, str]] = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}
CLASSES = tuple(PHOTOS)

# (width, height) as they are frequent in ImageNet.
SIZES = ((500, 375), (500, 375), (500, 375), (500, 333), (375, 500), (500, 500), (400, 400), (480, 360), (500, 400), (640, 480))
# Shorter side that the photos are scaled to before crops are cut; a crop then sees between a third and all of the photo.
LEVELS = (520, 640, 840)

Pixels = NDArray[np.uint8]


def photo_path(name: str) -> Path:
    """Where a photo lies in the installed package. Raises ConfigInvalid if the package is not installed."""
    package, file = PHOTOS[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigInvalid(f"the demo's photos need {package}; run: pip install 'headrace[demo]'", package=package)
    return Path(spec.origin).parent / file


def load_photo(name: str) -> Pixels:
    """A whole photo, uint8[H, W, 3]."""
    with Image.open(photo_path(name)) as image:
        return np.asarray(image.convert("RGB"))


@lru_cache(maxsize=len(CLASSES) * len(LEVELS))
def photo_at(name: str, level: int) -> Image.Image:
    """A photo with its shorter side scaled to LEVELS[level]; shared, so not to be changed."""
    with Image.open(photo_path(name)) as image:
        rgb = image.convert("RGB")
    scale = LEVELS[level] / min(rgb.size)
    return rgb.resize((round(rgb.width * scale), round(rgb.height * scale)), Image.Resampling.BICUBIC)


def random_crop(name: str, rng: np.random.Generator) -> Pixels:
    """A fresh crop of a photo in one of SIZES: random level, place, mirroring and brightness; uint8[H, W, 3]."""
    width, height = SIZES[rng.integers(len(SIZES))]
    photo = photo_at(name, int(rng.integers(len(LEVELS))))
    width, height = min(width, photo.width), min(height, photo.height)
    left = int(rng.integers(photo.width - width + 1))
    top = int(rng.integers(photo.height - height + 1))
    gain = int(rng.integers(205, 308))  # of 256
    crop = photo.crop((left, top, left + width, top + height)).point([min(i * gain // 256, 255) for i in range(256)] * 3)
    pixels: Pixels = np.asarray(crop)
    return pixels[:, ::-1] if rng.integers(2) else pixels
