"""What all tests share: one seed for all randomness, printed, so that a failure can be played again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import structlog
from hypothesis import HealthCheck, settings

SEED_VARIABLE = "HEADRACE_TEST_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(2**32))
os.environ[SEED_VARIABLE] = str(SEED)  # the processes that pytest-xdist starts take the same one

# Deadlines would fail a slow machine, not a wrong program. A failing example is printed as code that plays it again.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=100, **_COMMON)
settings.register_profile("thorough", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("HEADRACE_HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give hypothesis our seed, unless the command line gave one."""
    if config.getoption("--hypothesis-seed", default=None) is None:
        config.option.hypothesis_seed = SEED


def pytest_report_header() -> str:
    """How to play a run again."""
    return f"seed: {SEED_VARIABLE}={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say over which engines the decode contract was tried, and over which it was not."""
    ran = {report.nodeid for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])}
    if any(node.startswith("tests/contract/test_image_kinds.py::") for node in ran):
        from tests.contract import engine_entries

        terminalreporter.section("engines under the decode contract")
        for line in engine_entries.report():
            terminalreporter.line(line, yellow="DID NOT RUN" in line, green="DID NOT RUN" not in line)


@pytest.fixture(autouse=True)
def _fresh_logs() -> Iterator[None]:
    """A client or service that a test ran in this process must not decide what the next test sees of the logs."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed for this test alone, the same in every run with the same HEADRACE_TEST_SEED."""
    return int(np.random.SeedSequence([SEED, *request.node.nodeid.encode()]).generate_state(1)[0])


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Randomness for this test."""
    return np.random.default_rng(seed)
