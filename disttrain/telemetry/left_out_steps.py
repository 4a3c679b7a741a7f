"""The steps of a run that no figure covers: warm-up, profiled steps, and steps that no record measured."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field


@dataclass
class LeftOutSteps:
    """The steps that the figures of this attempt and of those before it leave out."""

    warmup_steps: int
    """Of each attempt."""
    profiled: Collection[int]
    """Steps that this attempt profiles, also within its warm-up."""
    start: int = 0
    """Step after which this attempt began."""
    _before: list[tuple[int, int]] = field(default_factory=list)
    _profiled_before: int = 0

    @property
    def warm_step(self) -> int:
        """Last step of the warm-up."""
        return self.start + self.warmup_steps

    def resume(self, step: int) -> None:
        """Begin after `step`; the steps up to it are left out."""
        self.start, self._before = step, [(1, step)]

    def extend(self, ranges: Iterable[tuple[int, int]], profiled: int) -> None:
        """Leave out, of the steps before this attempt, these ranges alone, with this many profiled steps."""
        self._before, self._profiled_before = list(ranges), profiled

    def ranges(self, step: int) -> list[tuple[int, int]]:
        """First and last step of each range up to `step`."""
        first, last = self.start + 1, min(self.warm_step, step)
        warmup = [(first, last)] if last >= first else []
        return [*self._before, *warmup, *((each, each) for each in self._profiled_after_warmup(step))]

    def profiled_count(self, step: int) -> int:
        """Number of profiled steps up to `step`, of all attempts, without those of the warm-up."""
        return self._profiled_before + len(self._profiled_after_warmup(step))

    def _profiled_after_warmup(self, step: int) -> list[int]:
        return sorted(each for each in self.profiled if self.warm_step < each <= step)
