"""Communication of a size: profiled steps, which list collectives, joined with all measured steps, which time
them.

A run profiles few steps, sometimes one, and a profiled step can be far from the mean. All figures are None
where no run measured them.
"""

from __future__ import annotations

from collections.abc import Callable

from analysis.read.run import Run
from analysis.results.curves import Point, metric, of_steps, over_repeats
from analysis.results.links import link_rates
from analysis.results.phases import TRANSFER, WAIT
from analysis.stats.estimates import Estimate, ratio_of_means
from disttrain.records.communication import CommSummary

NOTHING_HIDDEN = 0.02
"""Largest hidden share of communication at which exposed transfer is all transfer."""
REPRESENTATIVE = 1.25
"""Largest ratio, either way, between exposed communication of the profiled steps and of all steps."""


def profiled(point: Point) -> list[CommSummary]:
    """Profiled steps of the repeats that have them."""
    return [metrics.comm for metrics in point.metrics if metrics.comm]


def exposed_share(point: Point) -> Estimate | None:
    """Share of the step that waits for communication."""
    return point.phases.share(WAIT, TRANSFER)


def hidden_share(point: Point) -> Estimate | None:
    """Hidden share of the communication of the profiled steps."""
    steps = profiled(point)
    hidden, total = [each.hidden_s for each in steps], [each.total_s for each in steps]
    return of_steps(point, ratio_of_means(hidden, total)) if any(total) else None


def bus_rates(point: Point) -> dict[Run, float]:
    """Bus bandwidth in bytes/s of each run that knows it.

    The recorded transfer has no noise floor of waiting: it is that of the rank that waited for nobody.
    """
    floor_s = point.phases.floor_s
    transfer_s = point.phases.array(TRANSFER) - (0.0 if floor_s is None else floor_s)
    steps = zip(point.runs, point.metrics, transfer_s.tolist(), strict=True)
    rates = {run: bus_bandwidth(each.comm, seconds) for run, each, seconds in steps if each.comm}
    return {run: rate for run, rate in rates.items() if rate is not None}


def bus_bandwidth(summary: CommSummary, transfer_s: float) -> float | None:
    """Bus bytes per second of a step, over all measured steps where nothing is hidden, else over the profiled
    ones; None where the bytes are unknown.

    Args:
        transfer_s: exposed transfer of a step, mean over all measured steps; 0 where it is unknown.
    """
    hidden = summary.hidden_s > NOTHING_HIDDEN * summary.total_s
    if summary.bus_bytes_per_s is None or not transfer_s or hidden:
        return summary.bus_bytes_per_s
    return sum((each.bus_bytes_per_s or 0.0) * each.transfer_s for each in summary.collectives) / transfer_s


def mean_bus_rate(point: Point) -> Estimate | None:
    """Mean of `bus_rates`."""
    return over_repeats(point, bus_rates(point).values())


def line_share(point: Point) -> Estimate | None:
    """Bus bandwidth / rate of the line of a node; None on one node."""
    lines = _share(point, lambda run: run.attempts[-1].line_rate_bytes_per_s if run.attempts else None)
    return lines if point.nodes > 1 else None


def measured_share(point: Point) -> Estimate | None:
    """Bus bandwidth / rate of the slowest link that a run itself measured before its first step."""
    return _share(point, lambda run: min(link_rates(run.attempts).values(), default=None))


def _share(point: Point, rate_of: Callable[[Run], float | None]) -> Estimate | None:
    """Bus bandwidth / a rate that the run knows."""
    rates = {(run, bus): rate for run, bus in bus_rates(point).items() if (rate := rate_of(run))}
    return of_steps(point, ratio_of_means([bus for _, bus in rates], [*rates.values()])) if rates else None


def unlike_the_mean(point: Point) -> float | None:
    """Exposed communication of the profiled steps / that of all measured steps; None where the two agree
    within `REPRESENTATIVE`."""
    exposed, of_all = metric("comm.exposed_s")(point), point.phases.mean_s(WAIT, TRANSFER)
    if not (exposed and exposed.value and of_all and of_all.value):
        return None
    ratio = exposed.value / of_all.value
    return None if 1 / REPRESENTATIVE <= ratio <= REPRESENTATIVE else ratio


def message_bytes(point: Point) -> Estimate | None:
    """Mean bytes of a collective."""
    return over_repeats(point, [each.bytes / each.count for each in profiled(point) if each.bytes])
