"""An A/B experiment: each setting alone against the baseline, then all that gained together.

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
from typing import Protocol

from disttrain.records.fabric_ab import AbComparison
from jobs.fabric.ab.decision import LEVEL, MARGIN, Decision, decide

END_OF_SHARE = "end of its share of the time"
"""Cap of a comparison that has used its time."""
WARM_UP_STEPS = 5
"""Steps of each of the two blocks with which an arm begins; the first opens connections."""

Changes = Mapping[str, str | None]
"""Changes of the environment: None removes a variable."""


class ArmFailed(RuntimeError):
    """The ranks of an arm did not start, died, or did not answer in time; the message is one line."""


class BaselineFailed(RuntimeError):
    """The ranks without the setting failed, so that nothing can be compared; the message is one line."""


class Arm(Protocol):
    """The ranks of one environment."""

    def block(self, steps: int) -> float:
        """Run some steps; seconds per step of the slowest rank. Raises `ArmFailed`."""


class Launcher(Protocol):
    """Starts and ends the ranks of arms."""

    def start(self, changes: Changes, within_s: float = math.inf) -> Arm:
        """Start ranks with a changed environment. Raises `ArmFailed`, also if they are not ready in time."""

    def end(self, arm: Arm) -> None:
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
class Comparison:
    """The pairs of one comparison so far."""

    variables: dict[str, str]
    alpha: float
    margin: float
    without_s: list[float] = field(default_factory=list)
    with_s: list[float] = field(default_factory=list)

    def decision(self) -> Decision:
        ratios = [math.log(a / b) for a, b in zip(self.without_s, self.with_s, strict=True)]
        return decide(ratios, margin=self.margin, alpha=self.alpha)

    def record(self, duration_s: float, capped: str | None, error: str | None) -> AbComparison:
        """The comparison as it ended: decided, at a cap, or by an error."""
        found = self.decision()
        return AbComparison(
            variables=self.variables,
            verdict="failed" if error else found.verdict,
            reason=error or capped,
            ratio=found.ratio,
            low=found.low,
            high=found.high,
            pairs=found.pairs,
            alpha=self.alpha,
            duration_s=duration_s,
            without_s=self.without_s,
            with_s=self.with_s,
        )


@dataclass
class Experiment:
    """Compares settings. `report` is called after each comparison, `progress` after each pair."""

    launcher: Launcher
    options: Options
    removed: Changes = field(default_factory=dict)
    """Changes of the environment that make the baseline."""
    report: Callable[[Experiment], None] = lambda _: None
    progress: Callable[[Mapping[str, str], Decision], None] = lambda _, __: None
    clock: Callable[[], float] = time.monotonic
    alone: list[AbComparison] = field(default_factory=list)
    together: AbComparison | None = None
    steps: int = 0
    """Timed steps of a block."""

    def run(self, settings: Mapping[str, str]) -> None:
        """Compare all settings. Raises `BaselineFailed`."""
        ends = self.clock() + self.options.seconds
        coin = random.Random(self.options.seed)
        baseline, step_s = self._start_baseline()
        self.steps = max(1, math.ceil(self.options.block_s / max(step_s, 1e-9)))
        alpha = self.options.level / max(1, len(settings))  # Bonferroni
        for position, (name, value) in enumerate(settings.items()):
            until = self._share_of(ends, len(settings) + 1 - position)
            self.alone.append(self._compare(baseline, {name: value}, alpha, until, coin))
            self.report(self)
        gained = [each for each in self.alone if each.verdict == "gain"]
        if gained and self.clock() < ends:
            former, (baseline, _) = baseline, self._start_baseline()
            self.launcher.end(former)
            variables = {name: value for each in gained for name, value in each.variables.items()}
            self.together = self._compare(baseline, variables, self.options.level, ends, coin)
            self.report(self)
        self.launcher.end(baseline)

    def _share_of(self, ends: float, left: int) -> float:
        """The time at which the first of `left` comparisons ends."""
        now = self.clock()
        return now + max(0.0, ends - now) / left

    def _start_baseline(self) -> tuple[Arm, float]:
        """The arm without the settings, and its seconds per step."""
        try:
            arm = self.launcher.start(self.removed)
            return arm, self._warm_up(arm)
        except ArmFailed as error:
            raise BaselineFailed(str(error)) from error

    def _warm_up(self, arm: Arm) -> float:
        """Seconds per step after the first block."""
        arm.block(WARM_UP_STEPS)
        return arm.block(WARM_UP_STEPS)

    def _compare(
        self, baseline: Arm, variables: dict[str, str], alpha: float, until: float, coin: random.Random
    ) -> AbComparison:
        """Pairs of blocks until the interval decides, or a cap is reached."""
        began = self.clock()
        found = Comparison(variables, alpha, self.options.margin)
        if began >= until:
            return found.record(0.0, END_OF_SHARE, None)
        arm: Arm | None = None
        error = capped = None
        try:
            arm = self.launcher.start({**self.removed, **variables}, until - began)
            self._warm_up(arm)
            decision = found.decision()
            while decision.verdict == "undecided" and (capped := self._cap(found, until)) is None:
                self._pair(baseline, arm, found, with_first=coin.random() < 0.5)
                decision = found.decision()
                self.progress(variables, decision)
        except ArmFailed as failure:
            if arm is None and self.clock() >= until:  # the limit of the start was that of the comparison
                capped = END_OF_SHARE
            else:
                error = str(failure)
        if arm is not None:
            self.launcher.end(arm)
        return found.record(self.clock() - began, capped, error)

    def _pair(self, baseline: Arm, arm: Arm, found: Comparison, *, with_first: bool) -> None:
        """One block of each. A pair counts only as a whole."""
        with_s = arm.block(self.steps) if with_first else None
        try:
            without_s = baseline.block(self.steps)
        except ArmFailed as error:
            raise BaselineFailed(str(error)) from error
        found.with_s.append(arm.block(self.steps) if with_s is None else with_s)
        found.without_s.append(without_s)

    def _cap(self, found: Comparison, until: float) -> str | None:
        """The cap that ends an undecided comparison here; None if none does."""
        if len(found.with_s) >= self.options.pairs:
            return f"largest number of pairs: {self.options.pairs}"
        if self.clock() >= until:
            return END_OF_SHARE
        return None


def kept(alone: Sequence[AbComparison], together: AbComparison | None) -> dict[str, str]:
    """The variables to keep: those that gained alone, if they gained together again."""
    if together is None or together.verdict != "gain":
        return {}
    return {name: value for each in alone if each.verdict == "gain" for name, value in each.variables.items()}
