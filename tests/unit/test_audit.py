"""The audit finds each kind of fault that it exists for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing.audit import UNREAD, Seen, audit_epoch


def seen(ids: list[int], substituted: list[int] | None = None, padded: int = 0) -> Seen:
    return Seen(np.array(ids, np.int64), np.array(substituted or [], np.int64), padded)


@given(st.permutations(range(20)), st.integers(0, 20))
def test_any_split_of_all_samples_is_clean(order: list[int], cut: int) -> None:
    audit = audit_epoch(0, 20, 0, [seen(order[:cut]), seen(order[cut:], padded=3)])
    assert audit.clean
    assert (audit.expected, audit.delivered, audit.padded) == (20, 20, 3)


def test_missing_sample_is_found() -> None:
    audit = audit_epoch(0, 4, 0, [seen([0, 1, 3])])
    assert not audit.clean
    assert audit.missing == 1


def test_doubled_sample_is_found_across_ranks() -> None:
    audit = audit_epoch(0, 4, 0, [seen([0, 1]), seen([1, 2, 3])])
    assert not audit.clean
    assert audit.duplicated == 1


def test_unreadable_and_foreign_ids_are_found() -> None:
    audit = audit_epoch(0, 4, 0, [seen([0, 1, 2, 3, UNREAD, 4])])
    assert not audit.clean
    assert audit.unread == 2


def test_dropped_samples_are_allowed_by_number_alone() -> None:
    assert audit_epoch(0, 5, 1, [seen([0, 1, 2, 4])]).clean
    assert not audit_epoch(0, 5, 1, [seen([0, 1, 2])]).clean
    assert not audit_epoch(0, 5, 1, [seen([0, 1, 2, 3, 4])]).clean


def test_substituted_samples_count_as_their_planned_ids() -> None:
    audit = audit_epoch(0, 4, 0, [seen([0, 1, 2], substituted=[3])])
    assert audit.clean
    assert (audit.delivered, audit.substituted) == (3, 1)
    assert audit_epoch(0, 4, 0, [seen([0, 1, 2, 3], substituted=[3])]).duplicated == 1
