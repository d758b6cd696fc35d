"""Random bytes and random messages, in random order, on live connections: the servers stay up and leak nothing."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import PeerGone
from headrace.wire import messages
from tests.contract.raw_rank import HELLO, RawRank, note_slabs, serving, slab_mappings

SMALL = st.integers(0, 12)
ANY_MESSAGE = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(messages.Next, SMALL).map(messages.encode),
    st.builds(messages.Next, st.integers(0, 2**64 - 1)).map(messages.encode),
    st.builds(messages.Started, SMALL, SMALL).map(messages.encode),
    st.just(messages.encode(HELLO)),
    st.just(messages.encode(messages.Drain())),
    st.just(b"\x01" * (messages.MAX_CONTROL_BYTES // 2)),
)


async def speak(rank: RawRank, script: list[bytes]) -> None:
    try:
        for data in script:
            await rank.send_raw(data)
        await asyncio.sleep(0.01)
    except PeerGone:
        pass
    finally:
        await rank.close()


async def attack(transport: str, scripts: list[tuple[bool, list[bytes]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        async with serving(transport, Path(name) / "s", hello_deadline_s=2.0) as harness:
            for greets, script in scripts:
                await speak(harness.rank(), [messages.encode(HELLO), *script] if greets else script)
            honest = await harness.connect(rank=7)
            for index in range(3):
                await honest.until_ready(index)
                await honest.send(messages.Next(index + 1))
            await honest.close()
            await harness.settle(lambda: not harness.producer.ports)


@pytest.mark.parametrize("transport", ["shm", "grpc"])
@settings(max_examples=25)
@given(scripts=st.lists(st.tuples(st.booleans(), st.lists(ANY_MESSAGE, max_size=6)), min_size=1, max_size=4))
def test_an_honest_rank_is_served_after_any_attack(transport: str, scripts: list[tuple[bool, list[bytes]]]) -> None:
    note_slabs()
    asyncio.run(attack(transport, scripts))
    assert slab_mappings() == 0
