"""Exposed communication of some steps by three instruments: our clock, DDP's own logger, and the difference
to the same passes without communication.

Those passes are made beside a few steps, evenly spread over the run. They belong to no step and leave nothing
behind; the steps beside them are steps like any other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from torch import Tensor

from disttrain.config.sections import Config
from disttrain.records.communication import CalibratedStep, CommCheck
from disttrain.runtime.process_group import World
from disttrain.telemetry import null_reasons
from disttrain.telemetry.collective_stats import LARGEST_SHARE, sampled_steps
from disttrain.telemetry.event_timer import moments
from disttrain.telemetry.step_log import Passes
from disttrain.telemetry.throughput import Figures
from disttrain.trainer import Batch, Trainer


class _Seen(NamedTuple):
    """One step on one rank."""

    clock: Passes
    logged_s: float | None
    silent_s: float


class Calibration:
    """Decides which steps have such passes beside them, makes these and compares. All ranks together."""

    def __init__(
        self,
        config: Config,
        world: World,
        *,
        communicates: bool,
        repeatable: bool,
        steps: int,
        looked_at: Collection[int],
    ) -> None:
        self._world = world
        self._wanted = config.telemetry.calibrations
        self._communicates = communicates
        self._repeatable = repeatable
        count = self._wanted if communicates and repeatable else 0
        self.steps = calibrated_steps(count, config.telemetry.warmup_steps, steps, looked_at)
        """Steps to be taken by `at`."""
        self._taken: tuple[Trainer, list[Batch]] | None = None
        self._passes = 0
        self._found: list[CalibratedStep] = []

    def at(self, step: int, trainer: Trainer, batches: Iterator[Batch]) -> Tensor:
        """What `trainer.step` gives, which is taken as ever; its batches are kept until `step_done`."""
        kept: list[Batch] = []
        self._taken = trainer, kept
        trainer.strategy.log_pass(trainer.model)
        return trainer.step(step, _keeping(batches, kept))

    @property
    def due(self) -> bool:
        """Whether the last step has yet to be compared."""
        return self._taken is not None

    def step_done(self, step: int, clock: Callable[[int], Passes]) -> None:
        """After `step`, outside of any: make its passes again, in silence. `clock` is asked when the step is
        over on the device, too."""
        assert self._taken is not None, "at() comes first"
        trainer, batches = self._taken
        self._taken = None
        logged_s = trainer.strategy.logged_exposed_s(trainer.model)
        silent_s = _silent_s(trainer, batches, self._world)
        # who gathers waits: else the next step would show who was late here
        ranks = self._world.gather(_Seen(clock(step), logged_s, silent_s))
        self._passes += len(batches)
        self._found.append(compare(step, ranks))

    def figures(self) -> Figures:
        """Fields of `Metrics`, of this attempt so far, and why those that are null are."""
        check = summarize(self._found)
        reasons = {}
        if check is None:
            reasons["comm_check"] = self._why_none()
        elif check.ddp_logger_s is None:
            names = ("comm_check.ddp_logger_s", "comm_check.steps.ddp_logger_s")
            reasons |= dict.fromkeys(names, "this version of DDP does not tell what it logged")
        return {"calibration_passes": self._passes, "comm_check": check}, reasons

    def _why_none(self) -> str:
        if not self._communicates:
            return null_reasons.ALONE if self._world.size == 1 else "communication is not measured"
        if not self._repeatable:
            return "the passes of a loop that is not ours cannot be made again"
        if not self._wanted:
            return "telemetry.calibrations is 0"
        if not self.steps:
            return f"too few steps: at most one in {LARGEST_SHARE} has a calibration beside it"
        return "no calibration was made in this attempt"


def calibrated_steps(count: int, warmup: int, steps: int, looked_at: Collection[int]) -> frozenset[int]:
    """`count` steps at equal distances after the warm-up, none of them `looked_at`; fewer where they would be
    too large a share."""
    found: set[int] = set()
    for step in sorted(sampled_steps(count, warmup, steps)):
        step += (steps - warmup) // count // 8  # away from the sampled ones
        while step in looked_at or step in found:
            step += 1
        found.add(step)
    return frozenset(step for step in found if step <= steps)


def compare(step: int, ranks: list[_Seen]) -> CalibratedStep:
    """One step, from what each rank saw."""
    mean = statistics.fmean
    logged = [rank.logged_s for rank in ranks if rank.logged_s is not None]
    return CalibratedStep(
        step=step,
        compute_s=mean(rank.clock.compute_s for rank in ranks),
        silent_s=mean(rank.silent_s for rank in ranks),
        clock_s=mean(rank.clock.exposed_s for rank in ranks),
        ddp_logger_s=mean(logged) if len(logged) == len(ranks) else None,
        no_communication_s=mean(sum(rank.clock) - rank.silent_s for rank in ranks),
    )


def summarize(steps: list[CalibratedStep]) -> CommCheck | None:
    """Medians over the steps; None where there are none."""
    if not steps:
        return None
    logged = [each.ddp_logger_s for each in steps if each.ddp_logger_s is not None]
    return CommCheck(
        clock_s=statistics.median(each.clock_s for each in steps),
        ddp_logger_s=statistics.median(logged) if len(logged) == len(steps) else None,
        no_communication_s=statistics.median(each.no_communication_s for each in steps),
        steps=steps,
    )


def _keeping(batches: Iterator[Batch], kept: list[Batch]) -> Iterator[Batch]:
    for batch in batches:
        kept.append(batch)
        yield batch


def _silent_s(trainer: Trainer, batches: list[Batch], world: World) -> float:
    """Seconds of a forward and a backward pass on each of the batches."""
    marks: dict[str, list[int]] = {"forward": [], "backward": [], "end": []}
    with moments(world.device) as (mark, read):
        for batch in batches:
            trainer.aside(batch, lambda what: marks[what].append(mark()))
        times = read()
    return sum(times[end] - times[begin] for begin, end in zip(marks["forward"], marks["end"], strict=True))
