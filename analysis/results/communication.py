"""Communication of a size: profiled steps, which list collectives, joined with all measured steps, which time
them.

A run profiles few steps, sometimes one, and a profiled step can be far from the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from analysis.read.run import Run
from analysis.results.curves import Curve, Point
from analysis.results.links import link_rates
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate, not_stationary, ratio_of_means, share_mean
from disttrain.records.communication import CommSummary

NOTHING_HIDDEN = 0.02
"""Largest hidden share of communication at which exposed transfer is all transfer."""
REPRESENTATIVE = 1.25
"""Largest ratio, either way, between exposed communication of the profiled steps and of all steps."""


@dataclass(frozen=True)
class Communication:
    """Of the repeats of one point that profiled steps; None where no run measured a figure."""

    curve: Curve
    point: Point

    @cached_property
    def summaries(self) -> dict[Run, CommSummary]:
        """Profiled steps by run."""
        return {run: run.metrics.comm for run in self.point.runs if run.metrics and run.metrics.comm}

    @cached_property
    def bus_by_run(self) -> dict[Run, float]:
        """Bus bandwidth in bytes/s of each run that knows it.

        The recorded transfer has no noise floor of waiting: it is that of the rank that waited for nobody.
        """
        phases = self.point.phases
        recorded = phases.array(TRANSFER) - (phases.floor_s or 0.0)
        transfer_s = dict(zip(self.point.runs, recorded, strict=True))
        rates = {run: bus_bandwidth(each, float(transfer_s[run])) for run, each in self.summaries.items()}
        return {run: rate for run, rate in rates.items() if rate is not None}

    def mean(self, field: str) -> Estimate | None:
        """Mean over repeats of a field of `CommSummary`."""
        return self._mean(
            [value for each in self.summaries.values() if (value := getattr(each, field)) is not None]
        )

    @property
    def bus_bytes_per_s(self) -> Estimate | None:
        return self._mean([*self.bus_by_run.values()])

    @property
    def hidden_share(self) -> Estimate | None:
        """Hidden share of the communication of the profiled steps."""
        known = [each for each in self.summaries.values() if each.total_s > 0]
        return self._ratio([each.hidden_s for each in known], [each.total_s for each in known])

    @property
    def line_share(self) -> Estimate | None:
        """Bus bandwidth / rate of the slowest repeat's line; None on one node."""
        runs = self.point.runs if self.point.nodes > 1 else ()
        lines = [attempt.line_rate_bytes_per_s for run in runs for attempt in run.attempts[-1:]]
        rate = min((line for line in lines if line is not None), default=None)
        bus = self.bus_bytes_per_s
        return bus.scaled(1 / rate) if bus and rate else None

    @cached_property
    def measured_share(self) -> Estimate | None:
        """Bus bandwidth / rate of the slowest link that the run itself measured before its first step."""
        rates = {run: [link.bytes_per_s for link in link_rates(run.attempts)] for run in self.bus_by_run}
        known = [run for run, links in rates.items() if links]
        return self._ratio([self.bus_by_run[run] for run in known], [min(rates[run]) for run in known])

    @property
    def unlike_the_mean(self) -> float | None:
        """Exposed communication of the profiled steps / that of all measured steps, of the run in which it is
        farthest from 1; None where the two agree within `REPRESENTATIVE`."""
        exposed = self.point.phases.mean_s(WAIT, TRANSFER)
        if exposed is None or exposed.value <= 0:
            return None
        ratios = [each.exposed_s / exposed.value for each in self.summaries.values() if each.exposed_s > 0]
        largest = max(ratios, key=lambda ratio: max(ratio, 1 / ratio), default=1.0)
        return None if 1 / REPRESENTATIVE <= largest <= REPRESENTATIVE else largest

    @property
    def message_bytes(self) -> float | None:
        """Mean bytes of a collective."""
        size = [each.bytes / each.count for each in self.summaries.values() if each.bytes and each.count]
        return sum(size) / len(size) if size else None

    def _mean(self, values: list[float]) -> Estimate | None:
        return self._of_steps(share_mean(values)) if values else None

    def _ratio(self, values: list[float], base: list[float]) -> Estimate | None:
        return self._of_steps(ratio_of_means(values, base)) if values else None

    def _of_steps(self, estimate: Estimate) -> Estimate:
        return estimate if self.point.phases.stationary else not_stationary(estimate)


def bus_bandwidth(summary: CommSummary, transfer_s: float | None) -> float | None:
    """Bus bytes per second of a step, over all measured steps where nothing is hidden, else over the profiled
    ones; None where the bytes are unknown.

    Args:
        transfer_s: exposed transfer of a step, mean over all measured steps; None where it is unknown.
    """
    hidden = summary.hidden_s > NOTHING_HIDDEN * summary.total_s
    if summary.bus_bytes_per_s is None or not transfer_s or hidden:
        return summary.bus_bytes_per_s
    rates = [(each.bus_bytes_per_s, each.transfer_s) for each in summary.collectives]
    if any(rate is None for rate, _ in rates):
        return summary.bus_bytes_per_s
    return sum((rate or 0.0) * seconds for rate, seconds in rates) / transfer_s
