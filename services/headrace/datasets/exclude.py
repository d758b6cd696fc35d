"""Samples to leave out: the file that `headrace quarantine --write` writes and `headrace index --exclude` takes. Pure.

One sample a line: its key alone, which leaves it out of every shard, or a JSON object with `key` and, where it is one
shard's sample that is meant, `shard`. Other fields (why, how often) are for people. Empty lines count for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from headrace.core.errors import ConfigInvalid

# A key, or (shard, key).
Excluded: TypeAlias = str | tuple[str, str]
_OBJECT = '{"'
_SHOWN = 5
_KEY_CHARS = 100


def parse_exclusions(text: str) -> frozenset[Excluded]:
    """Read a file's text. Raises ConfigInvalid naming the line that is none."""
    found: set[Excluded] = set()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        if line.startswith(_OBJECT):
            found.add(_object(line, number))
        elif line:
            found.add(line)
    return frozenset(found)


def _object(line: str, number: int) -> Excluded:
    try:
        data = json.loads(line)
        shard, key = data.get("shard", ""), data["key"]
    except (ValueError, KeyError, RecursionError) as error:
        raise ConfigInvalid(f"line {number} is no JSON object with a `key`: {line[:80]!r}", line=number) from error
    if not isinstance(key, str) or not isinstance(shard, str) or not key:
        raise ConfigInvalid(f"`key` and `shard` must be texts, line {number}: {line[:80]!r}", line=number)
    return (shard, key) if shard else key


def format_exclusions(samples: Iterable[Mapping[str, Any]]) -> str:
    """The file's text for samples with `key`, `shard` and whatever else is to be kept of them."""
    return "".join(json.dumps(dict(sample), ensure_ascii=False) + "\n" for sample in samples)


def not_there(exclude: frozenset[Excluded], matched: set[Excluded]) -> str:
    """A warning of entries that named no sample; empty where all did."""
    strays = sorted(exclude - matched, key=lambda entry: entry if isinstance(entry, str) else entry[1])
    if not strays:
        return ""
    named = [(entry, "") if isinstance(entry, str) else (entry[1], f" in {entry[0]}") for entry in strays[:_SHOWN]]
    names = [f"{key[:_KEY_CHARS]!r}{where}" for key, where in named]
    more = f" and {len(strays) - _SHOWN} more" if len(strays) > _SHOWN else ""
    return f"{len(strays)} of {len(exclude)} samples to exclude are not in the data set: {', '.join(names)}{more}"
