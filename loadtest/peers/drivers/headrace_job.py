"""The work as Headrace's pipeline spec."""

from __future__ import annotations

from cuts import CENTER, SHORTER

import headrace

SEED = 1


def spec(work: str, size: int) -> headrace.PipelineSpec:
    """Of `train` or `eval`."""
    if work == "train":
        return headrace.PipelineSpec(ops=(headrace.RandomResizedCrop((size, size)), headrace.HorizontalFlip()))
    return headrace.PipelineSpec(ops=(headrace.Resize(SHORTER), headrace.CenterCrop((CENTER, CENTER))))
