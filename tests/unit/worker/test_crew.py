"""An engine's threads: results in order whatever the number of threads, errors handed on, time counted."""

from __future__ import annotations

import threading

import pytest

from headrace.worker.engines.crew import Crew


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 31, 100])
def test_each_row_is_done_once_and_results_keep_their_order(threads: int, count: int) -> None:
    crew = Crew(threads)
    seen: list[int] = []
    found, thread_s = crew.map(lambda a, b: seen.append(a) or (a, b), range(count), range(count, 2 * count))
    crew.close()
    crew.close()
    assert found == [(i, count + i) for i in range(count)]
    assert sorted(seen) == list(range(count))
    assert thread_s >= 0


def test_one_thread_is_the_callers() -> None:
    found, _ = Crew(1).map(lambda _: threading.current_thread(), range(4))
    assert set(found) == {threading.current_thread()}


def test_errors_are_handed_on_and_the_crew_goes_on() -> None:
    crew = Crew(2)
    with pytest.raises(ZeroDivisionError):
        crew.map(lambda x: 1 // x, range(20))
    assert crew.map(abs, [-1, 2])[0] == [1, 2]
    crew.close()


def test_columns_of_unlike_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Crew(1).map(max, [1, 2], [3])


def test_the_time_of_all_threads_is_counted() -> None:
    def spin(_: int) -> None:
        sum(range(100_000))

    crew = Crew(3)
    assert crew.map(spin, range(12))[1] > 0
    crew.close()
