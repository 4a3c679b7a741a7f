"""An experiment: each setting alone against the baseline, then all that gained together.

Two sets of ranks live in the same allocation and take turns, block by block. The order within a pair is
random, each order with probability 1/2, on which the validity of `decision` rests.

Two sets of processes may differ by chance in their cores, memory and connections. More blocks in the same
processes do not show this. The last comparison therefore starts new processes of both sides: a kept setting
has gained in two independent starts.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from disttrain.records.comm_bench import AbComparison
from jobs.arms.decision import LEVEL, MARGIN, decide
from jobs.arms.plan import Changes

T = TypeVar("T")
END_OF_SHARE = "end of its share of the time"
"""Cap of a comparison that has used its time."""
WARM_UP_STEPS = 5
"""Steps of each of the two blocks with which an arm begins; the first opens connections."""


class ArmFailed(RuntimeError):
    """The ranks of an arm did not start, died, or did not answer in time; the message is one line."""


class BaselineFailed(RuntimeError):
    """The ranks without the setting failed, so that nothing can be compared; the message is one line."""


class Launcher(Protocol):
    """Starts and ends the ranks of arms."""

    def start(self, changes: Changes, within_s: float = math.inf) -> int:
        """Start ranks with a changed environment; the number of the arm. Raises `ArmFailed`, also if they are
        not ready in time."""

    def block(self, arm: int, steps: int) -> float:
        """Run some steps; seconds per step of the slowest rank. Raises `ArmFailed`."""

    def end(self, arm: int) -> None:
        """End the ranks of an arm, also of one that failed."""


@dataclass(frozen=True)
class Options:
    """Caps and thresholds of an experiment."""

    pairs: int = 200
    """Largest number of pairs in one comparison."""
    seconds: float = 1200.0
    """Largest duration of the experiment; each comparison may use an equal share of what is left."""
    block_s: float = 1.0
    """Intended seconds of a block."""
    margin: float = MARGIN
    level: float = LEVEL
    seed: int = 0
    """Seed of the order within the pairs."""


@dataclass
class Experiment:
    """Compares settings. `report` is called after each comparison, `progress` after each pair."""

    launcher: Launcher
    options: Options
    removed: Changes = field(default_factory=dict)
    """Changes of the environment that make the baseline."""
    report: Callable[[Experiment], None] = lambda _: None
    progress: Callable[[AbComparison], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    alone: list[AbComparison] = field(default_factory=list)
    together: AbComparison | None = None
    steps: int = 0
    """Timed steps of a block."""

    def run(self, settings: Mapping[str, str]) -> None:
        """Compare all settings. Raises `BaselineFailed`."""
        ends = self.clock() + self.options.seconds
        coin = random.Random(self.options.seed)
        baseline, step_s = _of_baseline(lambda: self._start(self.removed))
        self.steps = max(1, math.ceil(self.options.block_s / max(step_s, 1e-9)))
        alpha = self.options.level / max(1, len(settings))  # Bonferroni
        for position, (name, value) in enumerate(settings.items()):
            share_s = max(0.0, ends - self.clock()) / (len(settings) + 1 - position)
            self.alone.append(_comparison({name: value}, alpha))
            self._compare(baseline, self.alone[-1], self.clock() + share_s, coin)
        gained = _gained(self.alone)
        if gained and self.clock() < ends:
            former, (baseline, _) = baseline, _of_baseline(lambda: self._start(self.removed))
            self.launcher.end(former)
            self.together = _comparison(gained, self.options.level)
            self._compare(baseline, self.together, ends, coin)
        self.launcher.end(baseline)

    def _start(self, changes: Changes, within_s: float = math.inf) -> tuple[int, float]:
        """An arm, and its seconds per step after the first block."""
        arm = self.launcher.start(changes, within_s)
        try:
            self.launcher.block(arm, WARM_UP_STEPS)
            return arm, self.launcher.block(arm, WARM_UP_STEPS)
        except ArmFailed:
            self.launcher.end(arm)
            raise

    def _compare(self, baseline: int, found: AbComparison, until: float, coin: random.Random) -> None:
        """Pairs of blocks until the interval decides, or a cap is reached."""
        began = self.clock()
        arm: int | None = None
        try:
            if began < until:
                arm, _ = self._start({**self.removed, **found.variables}, until - began)
            while found.verdict == "undecided" and (reason := self._cap(found, until)) is None:
                assert arm is not None
                self._pair(baseline, arm, found, with_first=coin.random() < 0.5)
                self.progress(found)
            found.reason = reason if found.verdict == "undecided" else None
        except ArmFailed as failure:
            is_late = arm is None and self.clock() >= until  # the start had the time of the comparison
            found.reason = END_OF_SHARE if is_late else str(failure)
            found.verdict = "undecided" if is_late else "failed"
        if arm is not None:
            self.launcher.end(arm)
        found.duration_s = self.clock() - began
        self.report(self)

    def _pair(self, baseline: int, arm: int, found: AbComparison, *, with_first: bool) -> None:
        """One block of each, and the decision. A pair counts only as a whole."""
        seconds = {}
        for number in (arm, baseline) if with_first else (baseline, arm):
            measure = partial(self.launcher.block, number, self.steps)
            seconds[number] = measure() if number == arm else _of_baseline(measure)
        found.with_s.append(seconds[arm])
        found.without_s.append(seconds[baseline])
        ratios = [math.log(a / b) for a, b in zip(found.without_s, found.with_s, strict=True)]
        decision = decide(ratios, margin=self.options.margin, alpha=found.alpha)
        for name, value in vars(decision).items():
            setattr(found, name, value)

    def _cap(self, found: AbComparison, until: float) -> str | None:
        """The cap that ends an undecided comparison here; None if none does."""
        if found.pairs >= self.options.pairs:
            return f"largest number of pairs: {self.options.pairs}"
        return END_OF_SHARE if self.clock() >= until else None


def _of_baseline(act: Callable[[], T]) -> T:
    """The result of an action of the baseline, without which nothing can be compared."""
    try:
        return act()
    except ArmFailed as error:
        raise BaselineFailed(str(error)) from error


def _comparison(variables: dict[str, str], alpha: float) -> AbComparison:
    return AbComparison(
        variables=variables, alpha=alpha, reason=None, duration_s=0.0, without_s=[], with_s=[],
        **vars(decide([])),
    )  # fmt: skip


def _gained(alone: Sequence[AbComparison]) -> dict[str, str]:
    return {name: value for each in alone if each.verdict == "gain" for name, value in each.variables.items()}


def kept(alone: Sequence[AbComparison], together: AbComparison | None) -> dict[str, str]:
    """The variables to keep: those that gained alone, if they gained together again."""
    return _gained(alone) if together is not None and together.verdict == "gain" else {}
