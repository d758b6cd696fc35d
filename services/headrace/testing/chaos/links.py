"""All links of a fleet, each through a proxy, and the ways in which one can go bad."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headrace.testing.proxy import Proxy

Pair = tuple[str, str]


class Links:
    """Gives itself to Cluster as `route`: each pair of members gets a proxy between them. seed: of all of them."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self.proxies: dict[Pair, Proxy] = {}

    def route(self, source: str, target: str, address: str) -> str:
        """See cluster.Route."""
        if (source, target) not in self.proxies:
            seed = random.Random(f"{self._seed}:{source}:{target}").randrange(2**32)  # noqa: S311
            self.proxies[source, target] = Proxy(address, seed=seed)
        return self.proxies[source, target].address

    def of_kind(self, kind: str) -> list[Pair]:
        """The links of one kind, as `kind_of` names them."""
        return sorted(pair for pair in self.proxies if kind_of(pair) == kind)

    def kinds(self) -> list[str]:
        """All kinds there are."""
        return sorted({kind_of(pair) for pair in self.proxies})

    def ended(self) -> int:
        """Connections that proxies have ended so far."""
        return sum(proxy.counts.torn + proxy.counts.cut for proxy in self.proxies.values())

    def close(self) -> None:
        """Close all proxies."""
        for proxy in self.proxies.values():
            proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def kind_of(pair: Pair) -> str:
    """`worker-3` and `coordinator-0` are linked by a worker-coordinator."""
    return "-".join(name.partition("-")[0] for name in pair)


def carries_batches(pair: Pair) -> bool:
    """Whether batches pass, and not only control messages."""
    return kind_of(pair) == "rank-worker"


def _slow(proxy: Proxy, pair: Pair, rng: random.Random) -> None:
    proxy.set(delay_s=rng.uniform(0.02, 0.4), jitter_s=rng.uniform(0.0, 0.4))


def _narrow(proxy: Proxy, pair: Pair, rng: random.Random) -> None:
    proxy.set(bytes_per_s=int(rng.uniform(1e6, 1e7) if carries_batches(pair) else rng.uniform(5e3, 5e4)))


def _flaky(proxy: Proxy, pair: Pair, rng: random.Random) -> None:
    proxy.set(reset_after_bytes=8_000_000 if carries_batches(pair) else 8_000)


def _refusing(proxy: Proxy, pair: Pair, rng: random.Random) -> None:
    proxy.set(refuse=True)
    proxy.reset()


# Name -> what makes a link so. `heal` ends each; those of AT_ONCE are over when they have begun.
BAD: dict[str, Callable[[Proxy, Pair, random.Random], object]] = {
    "slow": _slow,
    "narrow": _narrow,
    "flaky": _flaky,
    "refusing": _refusing,
    "half-open-up": lambda proxy, pair, rng: proxy.half_open("up"),
    "half-open-down": lambda proxy, pair, rng: proxy.half_open("down"),
    "black-hole": lambda proxy, pair, rng: proxy.blackhole(),
    "cut": lambda proxy, pair, rng: proxy.cut(),
    "reset": lambda proxy, pair, rng: proxy.reset(),
}
AT_ONCE = frozenset({"cut", "reset"})
