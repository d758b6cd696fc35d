"""Errors cross a real gRPC call, sync and aio, as the class they were raised as, with their ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace.core.errors import BY_CODE, CoordinatorUnavailable, HeadraceError, RankClaimed, SpecInvalid, WaitTimeout
from headrace.wire import status
from headrace.wire.gen import batch_pb2

METHOD = "/test.Errors/Raise"


def _identity(data: bytes) -> bytes:
    return data


@asynccontextmanager
async def _serving(answer: Callable[[Any], Awaitable[bytes]]) -> AsyncIterator[str]:
    async def handle(_: bytes, context: Any) -> bytes:
        return await answer(context)

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(handle, _identity, _identity)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Errors", {"Raise": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def _call(address: str, timeout_s: float = 5) -> HeadraceError:
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(METHOD, _identity, _identity)(b"", timeout=timeout_s)
    return status.error_from_rpc(caught.value)


async def _call_aio(address: str) -> HeadraceError:
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await channel.unary_unary(METHOD, _identity, _identity)(b"", timeout=5)
    return status.error_from_rpc(caught.value)


async def test_every_class_crosses_with_its_ids() -> None:
    raised: list[HeadraceError] = []

    async def answer(context: Any) -> bytes:
        await status.abort(context, raised[-1])

    async with _serving(answer) as address:
        for cls in BY_CODE.values():
            raised.append(cls("what happened, ümlaut", job="run-1", rank=3))
            for got in (await asyncio.to_thread(_call, address), await _call_aio(address)):
                assert type(got) is cls
                assert (got.message, got.ids) == (raised[-1].message, raised[-1].ids)


async def test_long_and_odd_texts_still_cross() -> None:
    error = SpecInvalid("x" * 100_000 + "\udc80", huge=2**80, text="\udc80" * 5000, **{f"id{i}": i for i in range(100)})

    async def answer(context: Any) -> bytes:
        await status.abort(context, error)

    async with _serving(answer) as address:
        got = await asyncio.to_thread(_call, address)
    assert type(got) is SpecInvalid
    assert got.message.startswith("xxx")
    assert got.ids["huge"] == str(2**80)


async def test_no_server_is_coordinator_unavailable() -> None:
    got = await asyncio.to_thread(_call, "127.0.0.1:1")
    assert type(got) is CoordinatorUnavailable
    assert got.retriable


async def test_no_answer_in_time_is_wait_timeout() -> None:
    async def answer(_: Any) -> bytes:
        await asyncio.sleep(5)
        return b""

    async with _serving(answer) as address:
        assert type(await asyncio.to_thread(_call, address, 0.2)) is WaitTimeout


async def test_garbled_detail_falls_back_to_the_status() -> None:
    async def answer(context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "proxy", ((status.METADATA_KEY, b"\xff\xff"),))
        return b""

    async with _serving(answer) as address:
        assert type(await asyncio.to_thread(_call, address)) is CoordinatorUnavailable


async def test_ids_of_a_peer_cannot_break_the_call() -> None:
    detail = batch_pb2.ErrorDetail(code="rank_claimed", message="m", text_ids={"message": "a", "self": "b", "job": "j"})

    async def answer(context: Any) -> bytes:
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, "x", ((status.METADATA_KEY, detail.SerializeToString()),))
        return b""

    async with _serving(answer) as address:
        got = await asyncio.to_thread(_call, address)
    assert type(got) is RankClaimed
    assert got.ids == {"job": "j"}
