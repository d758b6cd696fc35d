"""Whatever bytes come, `decode` gives a message or a ProtocolMismatch; what `encode` gives, it gives back."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ProtocolMismatch
from headrace.wire import messages
from headrace.wire.messages import Chunk, Drain, Failed, Hello, Message, Next, Ready, Refuse, Started, Welcome, decode, encode

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=20)
IDS = st.dictionaries(TEXT, st.one_of(TEXT, U64), max_size=3)
MESSAGES = st.one_of(
    st.builds(Hello, U64, TEXT, U64, U64, TEXT, U64, U64, st.lists(U64, max_size=5).map(tuple), TEXT),
    st.builds(Next, U64),
    st.builds(Welcome, U64, TEXT, U64, U64, U64),
    st.builds(Started, U64, U64),
    st.builds(Chunk, U64, U64, U64, st.binary(max_size=100).map(memoryview)),
    st.builds(Ready, U64, U64, U64, U64, U64),
    st.builds(Failed, U64, TEXT, TEXT, IDS),
    st.builds(Refuse, TEXT, TEXT, IDS),
    st.builds(Drain),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)


def parses_or_is_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolMismatch):
        decode(data)


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    parses_or_is_refused(data)


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_type_with_any_body(kind: int, body: bytes) -> None:
    parses_or_is_refused(bytes([kind]) + body)


@given(st.sampled_from([1, 3, 7, 8]), JSON)
def test_any_json(kind: int, value: object) -> None:
    parses_or_is_refused(bytes([kind]) + json.dumps(value).encode())


@given(st.sampled_from([Hello, Welcome, Failed, Refuse]), st.data())
def test_right_fields_with_any_values(kind: type, data: st.DataObject) -> None:
    code = {Hello: 1, Welcome: 3, Failed: 7, Refuse: 8}[kind]
    fields = {name: data.draw(JSON, name) for name in kind.__dataclass_fields__}
    parses_or_is_refused(bytes([code]) + json.dumps(fields).encode())


@given(MESSAGES, st.data())
def test_cut_or_changed_messages(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    parses_or_is_refused(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    parses_or_is_refused(bytes(raw))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01" + b"[" * 100_000,
        b"\x01" + b'"' + b"x" * messages.MAX_CONTROL_BYTES + b'"',
        b"\x01" + b"9" * 10_000,
        b"\x01\xff\xfe",
        encode(Hello(1, "j", 0, 0, "n", 0, 1)).replace(b'"have":[]', b'"have":[1e400]'),
        encode(Hello(1, "j", 0, 0, "n", 0, 1)).replace(b'"window":1', b'"window":true'),
    ],
)
def test_nasty_ones_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolMismatch):
        decode(data)


VERSIONS = [(0, True), (-1, True), (1, True), (500, True), (-2, False), (1000, False), (-1000, False)]


@pytest.mark.parametrize(("step", "fine"), VERSIONS)
def test_one_minor_version_older_is_served(monkeypatch: pytest.MonkeyPatch, step: int, fine: bool) -> None:
    monkeypatch.setattr(messages, "PROTOCOL", 3004)
    if fine:
        messages.check_protocol(3004 + step, "peer")
    else:
        with pytest.raises(ProtocolMismatch, match="upgrade"):
            messages.check_protocol(3004 + step, "peer")
