"""All data of one report: the runs, their scaling curves, and what follows from them on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from analysis.overlaps import Overlap, overlaps_of
from analysis.predict import ledger
from analysis.predict.basis import CurveForecast, forecast_curve
from analysis.predict.ledger import Score
from analysis.read.price_list import PriceList
from analysis.read.run import Run
from analysis.results.caveats import Caveat, Subject, find
from analysis.results.culprits import Diagnosis, diagnose
from analysis.results.curves import Curve, Point, scaling_curves
from analysis.results.goodput import JobTime, job_time
from analysis.results.links import link_rates, unjudged_links
from analysis.results.rank_steps import RankSteps
from analysis.step_statistics import RunStatistics, step_statistics

MOST_SEARCHES = 8
"""Runs that are searched for stragglers: those that a page can show."""


def make_study(
    runs: Sequence[Run],
    base: str | None = None,
    *,
    against: Study | None = None,
) -> Study:
    """The study of runs of `analysis.read.load`; `base` as for `scaling_curves`."""
    statistics = step_statistics(runs)
    return Study(runs, scaling_curves(runs, base, statistics), statistics, against)


@dataclass(frozen=True)
class Study:
    """What the sections of a report read; properties are computed once, at first use."""

    runs: Sequence[Run]
    """Excluded runs too."""
    curves: Sequence[Curve]
    statistics: RunStatistics
    """Stationarity and spread of the steps of each run."""
    against: Study | None = None
    """Another sweep to compare with."""
    prices: PriceList = field(default_factory=PriceList)
    """Prices that the user gave; empty without a price list."""
    deadline_s: float | None = None
    """Seconds within which a training must end; None without a deadline."""
    samples: float | None = None
    """Samples of the training that costs refer to; None for those of the planned steps of the base."""

    @cached_property
    def included(self) -> list[Run]:
        """Runs that count in the figures."""
        return [run for run in self.runs if run.included]

    @cached_property
    def emulated(self) -> bool:
        """Whether an included run is emulated."""
        return any(run.emulated for run in self.included)

    @cached_property
    def overlaps(self) -> Sequence[Overlap]:
        """Runs that were at work on one node at the same time, of which one counts in the figures."""
        counted = {run.folder.path for run in self.included}
        return [each for each in overlaps_of(self.runs) if not counted.isdisjoint(each.runs)]

    @cached_property
    def overlap_s(self) -> Mapping[str, float]:
        """Seconds of the longest overlap of each run that has one, by path."""
        return {str(run): each.seconds for each in reversed(self.overlaps) for run in each.runs}

    @cached_property
    def points(self) -> Mapping[str, Point]:
        """The size of each run of the curves, by path of the run."""
        return {path: point for curve in self.curves for point in curve.points for path in point.paths}

    @cached_property
    def caveats(self) -> Sequence[Caveat]:
        """What limits the numbers, the gravest first."""
        return find(self)

    def forbidden(self, subject: Subject, curve: Curve | None = None, *points: Point) -> Caveat | None:
        """The gravest caveat that forbids a statement: on these points of a curve, on all of its points, or
        without a curve on any run. None where the statement is allowed."""
        known = (each for each in self.caveats if subject in each.forbids)
        if curve is None:
            return next(known, None)
        paths = frozenset().union(*(point.paths for point in points or curve.points))
        return next((each for each in known if not paths.isdisjoint(each.runs)), None)

    @cached_property
    def past_predictions(self) -> Sequence[Score]:
        """Scores of the predictions of these curves that were measured since."""
        folders = dict.fromkeys(run.folder.path.parent.parent for run in self.runs)
        entries = [entry for folder in folders for entry in ledger.read(folder / ledger.FILE)]
        return ledger.scores(entries, self.curves)

    @cached_property
    def forecasts(self) -> Sequence[CurveForecast]:
        """The next sizes of each curve."""
        known = [*ledger.published(), *self.past_predictions]
        return [forecast_curve(curve, known) for curve in self.curves]

    @cached_property
    def sweeps(self) -> list[str]:
        return sorted({run.sweep for run in self.runs})

    @cached_property
    def rank_steps(self) -> Mapping[str, RankSteps]:
        """`StepStatistics.ranks` by path of the curves' runs that have it: of the largest size of the leading
        curve first, then of the largest sizes."""
        points = [point for curve in self.curves for point in curve.points]
        points.sort(key=lambda point: (point is not self.leading_curve.points[-1], -point.size))
        known = {run.path: self.statistics.get(run.path) for point in points for run in point.runs}
        return {path: each.ranks for path, each in known.items() if each and each.ranks}

    @cached_property
    def job_times(self) -> Mapping[str, JobTime]:
        """Time of each started run by path, excluded ones too, in the order of `runs`; without scripts that
        record no steps."""
        started = (run for run in self.runs if run.state != "running" and run.reported is None)
        times = ((run.path, job_time(run)) for run in started)
        return {path: time for path, time in times if time is not None}

    @cached_property
    def leading_curve(self) -> Curve:
        """The curve with the highest throughput at its largest size."""
        return max(self.curves, key=lambda curve: curve.points[-1].samples_per_s.value)

    @cached_property
    def stragglers(self) -> Mapping[str, Diagnosis]:
        """Stragglers by path of the first `MOST_SEARCHES` runs of `rank_steps`."""
        runs = {run.path: run for run in self.runs}
        return {
            path: diagnose(seconds, link_rates(runs[path].attempts), unjudged_links(runs[path]))
            for path, seconds in [*self.rank_steps.items()][:MOST_SEARCHES]
        }

    def diagnoses(self, point: Point) -> list[Diagnosis]:
        """Of the repeats of one point that were searched for stragglers."""
        return [self.stragglers[run.path] for run in point.runs if run.path in self.stragglers]
