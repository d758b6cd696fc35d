"""The epoch plan: the pure function (samples, batch size, seed, epoch, shuffle) -> the sequence of all batches.

N samples, batch size B, K = N div B full batches, L lanes.

1. The order (mode `full`). The manifest is rotated by a keyed offset and cut into runs of `run` neighbours; N mod run samples
   are left for one short run. The full runs are permuted over the whole epoch, and the short one is put between them at a
   keyed place. The rotation makes every sample equally likely at every place of the order.
2. Lanes. Lane l owns the batches k with k mod L = l; its samples are the places [B*s(l), B*s(l+1)) of the order, with
   s(l) = l*(K div L) + min(l, K mod L). So a lane reads one stretch of the order, and neighbouring batches come from
   stretches far apart.
3. Windows. Within a lane's stretch, samples are permuted inside windows of `window`.
4. The tail. The N - K*B last places of the order belong to no full batch: they form batch K, in lane K mod L, under `pad`,
   and are dropped under `drop`.

Mode `none` skips 1 and 3 and hands the batches out in manifest order: batch k holds the samples [k*B, (k+1)*B). Lane l owns
the same batches as ever (k mod L = l), only its samples are then not one stretch but every L-th batch: what an evaluation
wants is the manifest's order, and lanes are still what is leased.

Nothing here grows with N: no array, no loop over samples, runs or shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.core import limits
from headrace.core.errors import NoSteps, SpecInvalid
from headrace.core.job import Shuffle, Tail
from headrace.core.permutation import MAX_SIZE, permute, permute_rows
from headrace.core.rng import Key, below, key

MAX_LANES = limits.LANES


def lane_count(samples: int, batch_size: int) -> int:
    """L: the largest 3 * 2^a that is at most max(K/8, min(K/2, 12)), or 1 where there is none; never over 6144.

    A function of the data and the batch size alone, so that the plan does not depend on who serves it: at least 8 batches a
    lane in large epochs, and at least 2 in small ones.
    """
    full = samples // batch_size
    bound = min(max(full // 8, min(full // 2, 12)), MAX_LANES)
    return 3 << (bound // 3).bit_length() - 1 if bound >= 3 else 1


def steps(batches: int, first: int, world: int, tail: Tail) -> int:
    """Steps that every one of `world` ranks gets from batch `first` of an epoch of `batches` batches on."""
    left = max(0, batches - first)
    return left // world if tail == "drop" else -(-left // world)


def batch_count(samples: int, batch_size: int, tail: Tail) -> int:
    """Batches of an epoch: the full ones, and under `pad` one more for what is left over."""
    return samples // batch_size if tail == "drop" else -(-samples // batch_size)


def check_plan(samples: int, batch_size: int, world: int, tail: Tail) -> None:
    """Raise NoSteps (ids: samples, batch_size, world) for a plan whose epochs have no step."""
    if steps(batch_count(samples, batch_size, tail), 0, world, tail):
        return
    ids = {"samples": samples, "batch_size": batch_size, "world": world}
    if samples < 1:
        raise NoSteps("the manifest has no samples; index a data set that has some", **ids)
    full = samples // batch_size
    advice = f"a batch_size of at most {samples // world}, " if samples >= world else ""
    ranks = f"at most {full} ranks, " if full else ""
    raise NoSteps(
        f"{samples} samples make {full} full batches of {batch_size}, too few for one step of {world} ranks; "
        f"choose {advice}{ranks}more samples, or tail='pad'",
        **ids,
    )


@dataclass(frozen=True, slots=True)
class BatchSamples:
    """Which samples a batch of B holds. sample_ids: int64[B], places in the manifest. mask: bool[B], False where padded."""

    sample_ids: NDArray[np.int64]
    mask: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One epoch's batches. Costs the same to make and to ask whatever `samples` is (1 to 2^53).

    Raises NoSteps without samples, SpecInvalid (ids: field) for numbers that cannot be a plan.
    """

    samples: int
    batch_size: int
    seed: int
    epoch: int
    shuffle: Shuffle
    tail: Tail
    lanes: int = field(init=False)
    _offset: int = field(init=False, repr=False)
    _short_slot: int = field(init=False, repr=False)
    _runs_key: Key = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise NoSteps("the manifest has no samples; index a data set that has some", samples=self.samples)
        for name, value, low, high in (("samples", self.samples, 1, MAX_SIZE), ("batch_size", self.batch_size, 1, MAX_SIZE)):
            if not low <= value <= high:
                raise SpecInvalid(f"{name} must be from {low} to {high}, not {value}", field=name)
        if self.epoch < 0:
            raise SpecInvalid(f"epoch must be 0 or more, not {self.epoch}", field="epoch")
        derived = {
            "lanes": lane_count(self.samples, self.batch_size),
            "_offset": below(self._key("rotate"), self.samples),
            "_short_slot": below(self._key("short_run"), self.samples // self.shuffle.run + 1),
            "_runs_key": self._key("runs"),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def _key(self, purpose: str) -> Key:
        return key(self.seed, self.epoch, "plan", purpose)

    @property
    def full_batches(self) -> int:
        """K, batches without padding."""
        return self.samples // self.batch_size

    @property
    def batches(self) -> int:
        """Batches that hold a sample: K, or K + 1 under `pad` where samples are left over."""
        return batch_count(self.samples, self.batch_size, self.tail)

    def lane_of(self, batch: int) -> int:
        """The lane that owns batch `batch`."""
        return batch % self.lanes

    def batch_samples(self, batch: int) -> BatchSamples:
        """The samples of batch `batch`, B of them.

        Under `pad` the last batch repeats its own samples in turn, and a batch past the plan (which the last step of some
        ranks may hold) repeats the plan's, both with mask False. Raises SpecInvalid for a batch that no rank is given.
        """
        if batch < 0 or (self.tail == "drop" and batch >= self.batches):
            raise SpecInvalid(f"batch {batch} is not in the plan of {self.batches} batches", field="batch", batch=batch)
        rows = np.arange(self.batch_size, dtype=np.int64)
        real = min(max(self.samples - batch * self.batch_size, 0), self.batch_size)
        if real == 0:
            return BatchSamples(
                self._order((batch * self.batch_size + rows) % self.samples), np.zeros(self.batch_size, np.bool_)
            )
        ids = self._real_samples(batch, rows[:real])
        return BatchSamples(ids[rows % real], rows < real)

    def lane_samples(self, batch: int, count: int) -> list[BatchSamples]:
        """`batch_samples` of a full batch and the next ones of its lane: at most `count`, as many as are full, at least one.

        Much cheaper for several small batches together than for each of them.
        """
        count = max(1, min(count, -(-(self.full_batches - batch) // self.lanes)))
        if count == 1 or self.shuffle.mode == "none":
            return [self.batch_samples(batch)]
        ids = self._real_samples(batch, np.arange(count * self.batch_size, dtype=np.int64))
        return [BatchSamples(part, np.ones(self.batch_size, np.bool_)) for part in np.split(ids, count)]

    def _real_samples(self, batch: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids of the given rows of a batch; if shuffled, rows from B on are those of its lane's next batches."""
        if self.shuffle.mode == "none":
            return batch * self.batch_size + rows
        start, length, turn, stretch = self._stretch(batch)
        return self._order(start + self._mix_windows(stretch, length, turn * self.batch_size + rows))

    def _stretch(self, batch: int) -> tuple[int, int, int, int]:
        """The stretch that a batch is drawn from: (first place of the order, places, the batch's turn in it, number).

        Stretches are the lanes', and number L is what lies past the full batches.
        """
        full, lanes, size = self.full_batches, self.lanes, self.batch_size
        if batch >= full:
            return full * size, self.samples - full * size, 0, lanes
        lane, turn = batch % lanes, batch // lanes
        each, more = divmod(full, lanes)
        return (lane * each + min(lane, more)) * size, (each + (lane < more)) * size, turn, lane

    def _mix_windows(self, stretch: int, length: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Permute places of a stretch (int64[B], in [0, length)) inside windows; the last one may be short."""
        window = self.shuffle.window
        if window == 1:
            return places
        numbers = places // window
        starts = numbers * window
        sizes = np.minimum(window, length - starts)
        return starts + permute_rows(self._key(f"windows/{stretch}"), numbers, sizes, places - starts)

    def _order(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sample ids int64[B] at places of the order, int64[B] in [0, N)."""
        if self.shuffle.mode == "none":
            return places
        run = self.shuffle.run
        full, short = divmod(self.samples, run)
        before = self._short_slot * run
        # Places as they would be without the short run; those inside it are set apart.
        inside = (places >= before) & (places < before + short)
        without = np.where(places < before, places, places - short)
        if full:
            runs = permute(self._runs_key, full, np.where(inside, 0, without // run))
            rotated = np.where(inside, full * run + places - before, runs * run + without % run)
        else:
            rotated = places
        return (rotated + self._offset) % self.samples


def reads_in(sample_ids: NDArray[np.int64]) -> int:
    """How many coalesced reads a batch takes where a run of neighbours is one read (shard borders aside)."""
    ordered = np.unique(sample_ids)
    return 1 + int(np.count_nonzero(np.diff(ordered) > 1)) if len(ordered) else 0
