"""How far a contestant's pixels are from Pillow's antialiased ones, on the same cuts of the same photos."""

from __future__ import annotations

import numpy as np
from PIL import Image

from headrace.core.augment import sample_params
from headrace.core.pipeline_spec import PipelineSpec
from loadtest.peers import accounting
from loadtest.peers.dataset import Photos
from loadtest.peers.driver import Driver
from loadtest.peers.measure import SIZE, Place, Settings, fleet, log_of, task_of

# SEED: of drivers/headrace_job.py.
SEED, SHORTER = 1, 256
CHECKED = 64
KINDS = ("train", "eval")
_DEADLINE_S = 300.0

# (mean, most) levels of 255.
Apart = tuple[float, int]


def check(place: Place, settings: Settings) -> dict[str, Apart]:
    """By kind of work. Raises DriverFailed."""
    folder = settings.cache / "check"
    folder.mkdir(parents=True, exist_ok=True)
    cuts = cuts_of(place.photos)
    outs = {kind: folder / f"{kind}.npy" for kind in KINDS}
    np.save(folder / "cuts.npy", cuts)
    for out in outs.values():
        out.unlink(missing_ok=True)
    told = {"cuts": str(folder / "cuts.npy"), "outs": {kind: str(out) for kind, out in outs.items()}}
    try:
        with fleet(place, settings) as (coordinators, _):
            task = task_of(place, settings, coordinators=coordinators, **told)
            with Driver(place.python, place.contestant.script, task, log_of(place, settings, "check")) as driver:
                driver.finish(_DEADLINE_S)
    finally:
        accounting.end_all()
    apart = {kind: np.abs(np.load(out).astype(int) - exact(place.photos, kind, cuts)) for kind, out in outs.items()}
    return {kind: (float(levels.mean()), int(levels.max())) for kind, levels in apart.items()}


def cuts_of(photos: Photos) -> np.ndarray:
    """int64[CHECKED, 6] rows of drivers/consumer.py's Cut: the cuts that Headrace draws in epoch 0."""
    numbers = np.linspace(0, photos.count - 1, CHECKED).astype(np.int64)
    sizes = []
    for number in numbers:
        with Image.open(photos.files / f"{number:07d}.jpg") as image:
            sizes.append((image.height, image.width))
    params = sample_params(PipelineSpec(), SEED, (np.zeros_like(numbers), numbers), np.array(sizes))
    box, flip = params.ops
    return np.column_stack([numbers, box.y, box.x, box.height, box.width, flip.flip])  # type: ignore[union-attr]


def exact(photos: Photos, kind: str, cuts: np.ndarray) -> np.ndarray:
    """int64[CHECKED, SIZE, SIZE, 3]: what Pillow makes of the cuts, by torchvision's rules."""
    made = []
    for number, *cut in cuts.tolist():
        with Image.open(photos.files / f"{number:07d}.jpg") as stored:
            image = stored.convert("RGB")
        made.append(np.asarray(_cut(image, cut) if kind == "train" else _middle(image)))
    return np.stack(made).astype(int)


def _cut(image: Image.Image, cut: list[int]) -> Image.Image:
    top, left, height, width, mirrored = cut
    out = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else out


def _middle(image: Image.Image) -> Image.Image:
    shorter = min(image.size)
    size = (int(SHORTER * image.width / shorter), int(SHORTER * image.height / shorter))
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((image.width - SIZE) / 2.0), round((image.height - SIZE) / 2.0)
    return image.crop((left, top, left + SIZE, top + SIZE))
