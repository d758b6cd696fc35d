"""What the plan promises, counted out naively: the batches of a session one after the other, without the code under test."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.epoch_plan import EpochPlan
from headrace.core.job import JobSpec


@dataclass(frozen=True, slots=True)
class Place:
    """A batch of an epoch."""

    epoch: int
    batch: int


class Oracle:
    """Of one job. batches: of an epoch."""

    def __init__(self, spec: JobSpec, epochs: int) -> None:
        self.spec = spec
        self.epochs = epochs
        whole, left = divmod(spec.samples, spec.batch_size)
        self.batches = whole + (1 if spec.tail == "pad" and left else 0)
        self._samples: dict[Place, list[int]] = {}

    def steps(self, start: Place, world: int) -> list[Place]:
        """The first batch of each step of a session, to the end of the last epoch."""
        found = []
        epoch, batch = start.epoch, start.batch
        while epoch < self.epochs:
            enough = batch + world <= self.batches if self.spec.tail == "drop" else batch < self.batches
            if enough:
                found.append(Place(epoch, batch))
                batch += world
            else:
                epoch, batch = epoch + 1, 0
        return found

    def after(self, start: Place, world: int, count: int) -> Place:
        """Where the next session begins after so many steps: at an epoch's end it is the next one's start."""
        steps = self.steps(start, world)
        if count == 0:
            # A start with no step left in its epoch is the start of the next one.
            return start if steps and steps[0] == start else steps[0] if steps else Place(self.epochs, 0)
        if count < len(steps) and steps[count].epoch == steps[count - 1].epoch:
            return steps[count]
        return Place(steps[count - 1].epoch + 1, 0)

    def samples(self, place: Place) -> list[int]:
        """The samples of a batch."""
        if place not in self._samples:
            spec = self.spec
            plan = EpochPlan(spec.samples, spec.batch_size, spec.seed, place.epoch, spec.shuffle, spec.tail)
            for number, batch in enumerate(plan.lane_samples(place.batch, self.batches)):
                self._samples[Place(place.epoch, place.batch + number * plan.lanes)] = batch.sample_ids.tolist()
        return self._samples[place]
