"""Every engine is as near to `cpu` as docs/engine_parity.md says, operation by operation and format by format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import engine_parity
from headrace.testing.engine_parity import BOUNDS, ENGINES, FORMATS, OPERATIONS, Distance
from headrace.worker.engines import registry
from headrace.worker.engines.protocol import Engine
from tests.contract import engine_entries


@pytest.fixture(scope="module")
def reference() -> Iterator[Engine]:
    made = registry.create(engine_parity.REFERENCE, 2)
    yield made
    made.close()


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_within_its_bounds_of_the_reference(name: str, reference: Engine) -> None:
    if reason := engine_entries.why_not(name):
        pytest.skip(f"engine {name} does not run here: {reason}")
    engine = registry.create(name, 2)
    found = dict(engine_parity.measure(engine, reference))
    engine.close()
    assert {*found} == {*BOUNDS[name]}
    beyond = {case: (str(distance), str(BOUNDS[name][case])) for case, distance in found.items()
              if not distance.within(BOUNDS[name][case])}  # fmt: skip
    assert not beyond, "most / inside / mean, and what they may be"
    same = engine_entries.no_core() and name in ("nvimgcodec", "cpu-libs")  # what the reference does without its native core
    assert same or any(distance.most > 0 for distance in found.values()), "to the bit the reference: is that the engine?"


def test_every_engine_has_a_bound_for_each_operation_and_format() -> None:
    assert (
        {*ENGINES, engine_parity.REFERENCE}
        == {*BOUNDS, engine_parity.REFERENCE}
        == {*registry.NAMES} - engine_entries.NO_PIXELS
    )
    for name in ENGINES:
        assert {*BOUNDS[name]} == {*OPERATIONS, *FORMATS}


def test_each_number_has_a_bound_of_its_own() -> None:
    bound = Distance(3, 2, 1)
    assert Distance(3, 2, 1).within(bound)
    for distance in (Distance(4, 2, 1), Distance(3, 2.5, 1), Distance(3, 2, 1.01)):
        assert not distance.within(bound)


def test_the_page_has_each_operation_and_format_with_its_bound() -> None:
    page = Path("docs/engine_parity.md").read_text(encoding="utf-8")
    sections = {section.partition("\n")[0]: section.splitlines() for section in page.split("\n## ")[1:]}
    assert [*sections] == [*ENGINES]
    for name in ENGINES:
        if "gpu" in name or name == "cvcuda":
            continue  # a table only where one was had
        for case, bound in BOUNDS[name].items():
            lines = [line for line in sections[name] if line.startswith(f"| {case} |")]
            assert lines and lines[0].endswith(f"| {bound} |"), f"{name}, {case}: python -m headrace.testing.engine_parity"
    pinned = Path("pyproject.toml").read_text(encoding="utf-8").partition("nvidia-dali-cuda120==")[2].partition('"')[0]
    assert f"`dali-1;dali={pinned}," in page, "measured with another DALI: python -m headrace.testing.engine_parity"
