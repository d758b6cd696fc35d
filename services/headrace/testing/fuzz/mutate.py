"""Makes hostile bytes out of sound ones. Everything is drawn from the Random that is given, so a seed replays it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutator = Callable[[Random, bytes], bytes]

MAX_BYTES = 1 << 18  # of a mutated input; longer ones only make the runs slower
_LIMITS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_DIGITS = (b"0", b"-1", b"-0000512", b"00000000000", b"77777777777", b"99999999999999999999", b"1_0", b"\xc2\xb2", b"9" * 5000)


def mutate(rng: Random, seeds: Sequence[bytes]) -> bytes:
    """One to six changes to one of the seeds, at most MAX_BYTES long."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        data = rng.choice(_CHANGES)(rng, data, seeds)
    return bytes(data[:MAX_BYTES])


def _at(rng: Random, data: bytearray) -> int:
    """A place, the beginning more often: headers lie there."""
    if not data:
        return 0
    return rng.randrange(min(len(data), rng.choice((16, 64, 600, len(data)))))


def _flip(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    if data:
        data[_at(rng, data)] ^= 1 << rng.randrange(8)
    return data


def _set(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    if data:
        data[_at(rng, data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return data


def _number(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    """Overwrite a length field, most likely."""
    size = rng.choice((2, 4, 8))
    value = (rng.choice(_LIMITS) + rng.choice((0, 0, 0, -1, 1, -16))) % 2 ** (8 * size)
    at = _at(rng, data)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "big")))
    return data


def _digits(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    """Overwrite a run of ASCII digits."""
    places = [i for i in range(min(len(data), 4096)) if 48 <= data[i] <= 57]
    if places:
        begin = end = rng.choice(places)
        while end < len(data) and 48 <= data[end] <= 57:
            end += 1
        data[begin : end if rng.random() < 0.5 else begin + 1] = rng.choice(_DIGITS)
    return data


def _insert(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    at = _at(rng, data)
    data[at:at] = rng.choice((rng.randbytes(rng.choice((1, 4, 40))), bytes([rng.randrange(256)]) * rng.choice((8, 512, 9000))))
    return data


def _delete(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    at = _at(rng, data)
    del data[at : at + rng.choice((1, 4, 16, 512, len(data)))]
    return data


def _repeat(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    at = _at(rng, data)
    data[at:at] = data[at : at + rng.choice((1, 4, 16, 64, 512))] * rng.choice((1, 2, 50))
    return data


def _cut(rng: Random, data: bytearray, _: Sequence[bytes]) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def _splice(rng: Random, data: bytearray, seeds: Sequence[bytes]) -> bytearray:
    other = rng.choice(seeds)
    at = _at(rng, data)
    start = rng.randrange(len(other) + 1)
    data[at : at + rng.choice((0, 4, 64, len(data)))] = other[start : start + rng.choice((4, 64, 1024, len(other)))]
    return data


_CHANGES = (_flip, _set, _set, _number, _number, _number, _digits, _insert, _delete, _repeat, _cut, _splice)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1, 0.5, -0.0, 1e308,
    math.nan, math.inf,     "", "x", "x" * 5000, "\ud800", "\0", "../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "http://169.254.169.254/",
    [], {}, [1, "a", None], {"a": 1}, [0] * 3000, ["x"] * 300, _nested(150), {"self": 1, "message": 2},
)  # fmt: skip


def mutate_json(rng: Random, data: bytes) -> bytes:
    """One to three values, keys or items of a JSON text replaced, removed, repeated or added. Other bytes stay as they are."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = _changed(rng, tree)
    text = json.dumps(tree, separators=(",", ":")).encode()
    return (b"[" * 100_000 if rng.random() < 0.002 else text)[:MAX_BYTES]


def _changed(rng: Random, node: Any) -> Any:
    """The node with something changed in it or below it."""
    if isinstance(node, dict) and node and rng.random() < 0.85:
        return _changed_object(rng, node)
    if isinstance(node, list) and node and rng.random() < 0.85:
        return _changed_list(rng, node)
    if isinstance(node, int) and rng.random() < 0.3:
        return node + rng.choice((-1, 1))
    return rng.choice(_VALUES)


def _changed_object(rng: Random, node: dict[str, Any]) -> dict[str, Any]:
    key, action = rng.choice(list(node)), rng.random()
    if action < 0.12:
        return {name: value for name, value in node.items() if name != key}
    if action < 0.2:
        return node | {rng.choice(("self", "message", "x", key + "x")): rng.choice(_VALUES)}
    return node | {key: _changed(rng, node[key])}


def _changed_list(rng: Random, node: list[Any]) -> list[Any]:
    at, action = rng.randrange(len(node)), rng.random()
    if action < 0.15:
        return node[:at] + node[at + 1 :]
    if action < 0.3:
        return node + [node[at]] * rng.choice((1, 3, 500))
    return [*node[:at], _changed(rng, node[at]), *node[at + 1 :]]


def json_after(prefix: int) -> Mutator:
    """A mutator of messages whose first bytes are fixed and whose rest is JSON."""
    return lambda rng, data: data[:prefix] + mutate_json(rng, data[prefix:])
