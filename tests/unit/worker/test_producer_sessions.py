"""What the scheduler does when a session changes under connected ranks."""

from __future__ import annotations

from dataclasses import replace

from headrace.worker.work import SessionWork
from tests.unit.test_producer import Port, Rig


async def test_ranks_are_told_of_a_window_that_grew_after_they_came_and_those_of_a_session_that_ended_go() -> None:
    rig = Rig()
    work, other = await rig.session(), await rig.session("other")
    ports = [Port(rig.producer, one, eager=False) for one in (work, other)]
    for port in ports:
        rig.producer.opened(port)
    await rig.sessions.put(SessionWork(replace(work.session, window=8), work.engine, work.source, work.leases))
    rig.producer.grant_windows()
    assert [port.granted for port in ports] == [[8], [3]]
    rig.producer.end_session(work.session.key, "another job has its name now")
    assert [port.closed for port in ports] == [True, False]
    rig.producer.close()
