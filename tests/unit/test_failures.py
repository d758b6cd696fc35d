"""What is told and logged of an error that nobody expected: a lack of open files by its name, all else with its trace."""

from __future__ import annotations

import errno
import os

import pytest
from structlog.testing import capture_logs

from headrace.core.errors import HeadraceError, OutOfDescriptors, ProtocolMismatch
from headrace.telemetry.failures import unexpected


def lack(code: int = errno.EMFILE) -> OSError:
    return OSError(code, os.strerror(code))


def caused(error: Exception) -> Exception:
    try:
        raise RuntimeError("a library's own words") from error
    except RuntimeError as outer:
        return outer


def met_while_handling(error: OSError) -> Exception:
    try:
        try:
            raise error
        except OSError:
            raise ValueError("while it was handled")  # noqa: B904 - that is the case
    except ValueError as outer:
        return outer


@pytest.mark.parametrize(
    "error", [lack(), lack(errno.ENFILE), caused(lack()), met_while_handling(lack()), caused(caused(lack()))]
)
def test_a_lack_of_open_files_is_named_and_has_no_trace(error: Exception) -> None:
    with capture_logs() as logs:
        told = unexpected("admit_failed", "the rank cannot be admitted", error, rank=3)
    assert type(told) is OutOfDescriptors and told.retriable and told.rank == 3
    assert told.message.startswith("the rank cannot be admitted") and "ulimit -n" in told.message
    assert [(line["event"], "exc_info" in line, line["rank"]) for line in logs] == [("admit_failed", False, 3)]


@pytest.mark.parametrize("error", [lack(errno.ENOENT), KeyError("x"), caused(KeyError("x"))])
def test_all_else_is_a_bug_with_its_trace(error: Exception) -> None:
    with capture_logs() as logs:
        told = unexpected("admit_failed", "the rank cannot be admitted", error)
    assert type(told) is HeadraceError and repr(error) in told.message
    assert [(line["event"], line["exc_info"]) for line in logs] == [("admit_failed", True)]


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = ProtocolMismatch("not now")
    with capture_logs() as logs:
        assert unexpected("admit_failed", "the rank cannot be admitted", error) is error
    assert logs[0]["exc_info"] is True


def test_errors_that_cause_each_other_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    with capture_logs():
        assert type(unexpected("admit_failed", "no", first)) is HeadraceError
