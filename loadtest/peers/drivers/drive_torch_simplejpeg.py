"""PyTorch DataLoader with simplejpeg (libjpeg-turbo) and OpenCV's bilinear resize, which does not antialias."""

from __future__ import annotations

import random
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch_loader
from consumer import main, photo_paths
from cuts import CENTER, center, random_box, resized

cv2.setNumThreads(0)


def cut(image, box, mirrored, size):
    """Crop, resize, mirror."""
    top, left, height, width = box
    out = cv2.resize(image[top : top + height, left : left + width], (size, size), interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(out[:, ::-1]) if mirrored else out


def evaluate(image):
    """Resize and centre crop."""
    height, width = resized(*image.shape[:2])
    top, left = center(height, width)
    out = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.ascontiguousarray(out[top : top + CENTER, left : left + CENTER])


def make(data, work, size):
    """See torch_loader.Make."""
    image = simplejpeg.decode_jpeg(data)
    if work != "train":
        return evaluate(image)
    return cut(image, random_box(*image.shape[:2]), random.random() < 0.5, size)


def pixels(task, cuts):
    """See consumer.Pixels."""
    paths, made = photo_paths(task), []
    for number, *box, mirrored in cuts:
        image = simplejpeg.decode_jpeg(Path(paths[number]).read_bytes())
        made.append(cut(image, box, mirrored, task.size) if task.work == "train" else evaluate(image))
    return np.stack(made)


if __name__ == "__main__":
    main(lambda task: torch_loader.batches(task, make), pixels)
