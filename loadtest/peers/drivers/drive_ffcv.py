"""FFCV: its own file, in which it encodes the photos anew as JPEG of quality 90; OpenCV's area resize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from consumer import main, photo_paths
from cuts import CENTER, SHORTER
from ffcv.fields import RGBImageField
from ffcv.fields.decoders import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.libffcv import resize_crop
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter
from PIL import Image

EPOCHS = 50  # in one, since its loader drains at the end of each


class _Photos:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return (_rgb(self.paths[index]),)


def _rgb(path):
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


def _beton(task):
    path = Path(task.files).with_name("photos.beton")
    if not path.exists():
        part = path.with_suffix(".part")
        writer = DatasetWriter(str(part), {"image": RGBImageField(write_mode="jpg", jpeg_quality=90)}, num_workers=task.threads)
        writer.from_indexed_dataset(_Photos(photo_paths(task)))
        part.rename(path)
    return path


def _middle(image):
    """As CenterCropRGBImageDecoder cuts."""
    side = int(CENTER / SHORTER * min(image.shape[:2]))
    return (image.shape[0] - side) // 2, (image.shape[1] - side) // 2, side, side, 0


def batches(task):
    """See consumer.Batches."""
    train = [RandomResizedCropRGBImageDecoder((task.size, task.size)), RandomHorizontalFlip(), ToTensor()]
    evaluation = [CenterCropRGBImageDecoder((task.size, task.size), CENTER / SHORTER), ToTensor()]
    loader = Loader(
        str(_beton(task)),
        batch_size=task.batch,
        num_workers=task.threads,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(task.photos), EPOCHS),
        pipelines={"image": train if task.work == "train" else evaluation},
    )
    for (batch,) in loader:
        yield batch.numpy()


def pixels(task, cuts):
    """See consumer.Pixels. Of its resize alone: its photos are encoded anew."""
    _beton(task)
    paths, out = photo_paths(task), np.empty((len(cuts), task.size, task.size, 3), np.uint8)
    for row, (number, *cut) in enumerate(cuts):
        image = _rgb(paths[number])
        top, left, height, width, mirrored = cut if task.work == "train" else _middle(image)
        resize_crop(image, top, top + height, left, left + width, out[row])
        if mirrored:
            out[row] = out[row, :, ::-1].copy()
    return out


if __name__ == "__main__":
    main(batches, pixels)
