"""What a worker costs the training step beside which it works: on the trainer's own GPU, or on its CPU cores. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.core.errors import ConfigInvalid

# Of the step's time; less is within what two measurements of one and the same step differ by.
NOTICED_AT = 0.05


@dataclass(frozen=True, slots=True)
class Contention:
    """A step on one and the same batch, in seconds: with the worker idle, and while it makes the batches that the step needs.

    batch_size: samples. on_gpu: the worker works on the trainer's GPU; else the two share a machine's cores at most. Raises
    ConfigInvalid for a time that is none.
    """

    idle_s: float
    busy_s: float
    batch_size: int
    on_gpu: bool

    def __post_init__(self) -> None:
        if not (0 < self.idle_s < math.inf and 0 < self.busy_s < math.inf):
            raise ConfigInvalid(f"a step took {self.idle_s} s beside an idle worker and {self.busy_s} s beside a busy one")

    @property
    def slowdown(self) -> float:
        """How much longer the step takes beside the busy worker, as a share of the idle step's time; never below 0."""
        return max(0.0, self.busy_s / self.idle_s - 1.0)

    @property
    def noticed(self) -> bool:
        """Whether that is worth an action."""
        return self.slowdown >= NOTICED_AT

    @property
    def won_share(self) -> float:
        """Of the step beside the busy worker, what would go if the batches were made elsewhere; 0 to 1."""
        return max(0.0, 1.0 - self.idle_s / self.busy_s)

    @property
    def sentence(self) -> str:
        """What was measured."""
        where = "on its GPU" if self.on_gpu else "beside it"
        if not self.noticed:
            return f"a worker at work {where} costs the step next to nothing ({self.slowdown:.1%})"
        return (
            f"a worker at work {where} makes the step {self.slowdown:.0%} longer: {1e3 * self.busy_s:.1f} ms instead of "
            f"{1e3 * self.idle_s:.1f} ms on the same batch"
        )

    @property
    def advice(self) -> str:
        """What to do about it."""
        if not self.noticed:
            return "leave the worker where it is"
        if not self.on_gpu:
            return "keep workers off the trainer's CPU cores: another node, or fewer threads here"
        needed = f"{self.batch_size / self.idle_s:.0f} samples/s"
        return (
            "have the batches made elsewhere: on the CPU (--engine cpu) or on a GPU that does not train. "
            f"{self.won_share:.0%} of the step is won if those workers make {needed} for this rank, and lost again below that "
            "(headrace plan says how many it takes)"
        )
