"""Specs: equal ones have equal hashes, and what cannot work is refused in a sentence that names the field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.core import pipeline_spec as ps
from headrace.core.errors import SpecInvalid
from headrace.core.job import JobSpec, Shuffle
from headrace.core.pipeline_spec import PipelineSpec

CROP = ps.CenterCrop((8, 8))
JOB = JobSpec("job", "/data", 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ps.HorizontalFlip(1), ps.HorizontalFlip(1.0)),
        (ps.HorizontalFlip(0.5), ps.HorizontalFlip(np.float64(0.5))),
        (ps.ColorJitter(1, 0, 0, 0), ps.ColorJitter(1.0, -0.0, 0.0, 0)),
        (ps.GaussianBlur(9, (1, 2), 1), ps.GaussianBlur(9.0, (1.0, 2.0))),  # type: ignore[arg-type]
        (ps.RandomErasing(1, (0.1, 1), (1, 2), (0, 1, 2)), ps.RandomErasing(1.0, (0.1, 1.0), (1.0, 2), (0.0, 1.0, 2.0))),  # type: ignore[arg-type]
        (ps.RandomResizedCrop((8, 8), (1, 1), (1, 1)), ps.RandomResizedCrop((8, 8), (1.0, 1.0), (1.0, 1.0))),
    ],
    ids=lambda op: type(op).__name__,
)
def test_equal_specs_have_equal_hashes(one: ps.Op, other: ps.Op) -> None:
    first, second = PipelineSpec(ops=(CROP, one)), PipelineSpec(ops=(CROP, other))
    assert first == second
    assert first.canonical_json() == second.canonical_json()
    assert replace(JOB, pipeline=first).plan_hash == replace(JOB, pipeline=second).plan_hash
    assert PipelineSpec.from_dict(json.loads(second.canonical_json())).hash == first.hash


def test_numbers_of_output_and_decode_are_settled_too() -> None:
    def spec(zero: float, one: float, most: float) -> PipelineSpec:
        normalize = ps.Normalize((zero, zero, zero), (one, one, one))
        decode = ps.Decode(most, (zero, zero, zero))  # type: ignore[arg-type]
        return PipelineSpec(output=ps.Output("float32", normalize=normalize), decode=decode)

    assert spec(0, 1, 10**6).hash == spec(0.0, 1.0, 1e6).hash == spec(-0.0, 1.0, 10**6).hash
    assert type(spec(0, 1, 1e6).decode.max_pixels) is int


def test_a_list_of_operations_is_a_tuple_of_them() -> None:
    assert PipelineSpec(ops=[CROP]) == PipelineSpec(ops=(CROP,))  # type: ignore[arg-type]


BAD_PIPELINES: list[tuple[dict[str, Any], str]] = [
    ({"opps": []}, "opps"),
    ({"ops": "crop"}, "ops"),
    ({"ops": [{"op": "croop"}]}, r"ops\[0\]"),
    ({"ops": [{"op": []}]}, r"ops\[0\]"),
    ({"ops": [{"op": "center_crop"}]}, "lacks 'size'"),
    ({"ops": [{"op": "center_crop", "size": 8}]}, "size"),
    ({"ops": [{"op": "center_crop", "size": [8, 8], "sise": 1}]}, "sise"),
    ({"ops": [{"op": "center_crop", "size": [8, 10**9]}]}, "size"),
    ({"ops": [{"op": "center_crop", "size": [8, 8]}, {"op": "horizontal_flip", "p": "often"}]}, "p must be a number"),
    ({"ops": [{"op": "center_crop", "size": [8, 8]}, {"op": "horizontal_flip", "p": float("nan")}]}, "p must be a number"),
    ({"ops": [{"op": "center_crop", "size": [8, 8]}, {"op": "horizontal_flip", "p": True}]}, "p must be a number"),
    ({"ops": [{"op": "center_crop", "size": [8, 8]}, {"op": "gaussian_blur", "kernel": 8.5}]}, "whole"),
    ({"ops": [{"op": "resize", "size": 256}]}, "fix"),
    ({"output": {"dtype": "int8"}}, "dtype"),
    ({"output": {"normalize": {}}}, "uint8"),
    ({"output": None}, "output"),
    ({"decode": {"max_pixels": 0}}, "max_pixels"),
    ({"decode": {"tolerate_truncated": "no"}}, "tolerate_truncated"),
    ({"on_bad_sample": "ignore"}, "on_bad_sample"),
]


@pytest.mark.parametrize(("data", "says"), BAD_PIPELINES, ids=[json.dumps(data)[:60] for data, _ in BAD_PIPELINES])
def test_a_pipeline_that_cannot_work_is_refused(data: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecInvalid, match=says) as caught:
        PipelineSpec.from_dict(data)
    assert "field" in caught.value.ids or "size" in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"ops": 3},
        {"ops": ("crop",)},
        {"output": "uint8"},
        {"decode": None},
        {"output": ps.Output("float32", normalize=(0.5, 0.5))},  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_pipeline_made_of_the_wrong_things_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        PipelineSpec(**fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("name", "a job"),
        ("name", "x" * 101),
        ("dataset", ""),
        ("dataset", 5),
        ("dataset", "/" * 5000),
        ("batch_size", 0),
        ("batch_size", 2.0),
        ("batch_size", True),
        ("seed", 1.0),
        ("seed", "7"),
        ("seed", 2**63),
        ("tail", "keep"),
        ("tail", None),
        ("pipeline", {}),
        ("shuffle", None),
        ("fingerprint", 1),
    ],
)
def test_a_job_that_cannot_work_is_refused(field: str, value: Any) -> None:
    with pytest.raises(SpecInvalid) as caught:
        replace(JOB, **{field: value})
    assert caught.value.ids["field"] == field
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("field", ["run", "window", "mode"])
@pytest.mark.parametrize("value", [0, "all", None, 2.0, True])
def test_a_shuffle_that_cannot_work_is_refused(field: str, value: Any) -> None:
    with pytest.raises(SpecInvalid, match=field):
        Shuffle(**{field: value})


def test_a_message_never_repeats_a_megabyte() -> None:
    huge = "x" * 2**20
    for data in ({huge: 1}, {"ops": [{"op": huge}]}, {"on_bad_sample": huge}, {"output": {"dtype": huge}}):
        with pytest.raises(SpecInvalid) as caught:
            PipelineSpec.from_dict(data)
        assert len(str(caught.value)) < 1000
    with pytest.raises(SpecInvalid) as caught:
        JobSpec.from_dict({huge: 1})
    assert len(str(caught.value)) < 1000
