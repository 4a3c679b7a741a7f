"""All data of one report: the table of runs, its scaling curves, and what is read on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.overlaps import Overlap, overlaps_of
from analysis.read import frames
from analysis.read.frames import RunId
from analysis.read.price_list import PriceList
from analysis.read.run import Run
from analysis.read.run_table import runs_of
from analysis.results.caveats import Caveat, Subject, find
from analysis.results.culprits import Diagnosis, diagnose
from analysis.results.curves import Curve, Point, scaling_curves, with_floors
from analysis.results.goodput import JobTime, job_time
from analysis.results.links import link_rates, unjudged_links
from analysis.results.rank_steps import RankSteps, rank_steps
from analysis.results.waiting import RunWaiting, run_waiting
from analysis.step_statistics import RunStatistics, step_statistics
from disttrain.records.metrics import Metrics

MOST_SEARCHES = 8
"""Runs that are searched for stragglers: those that a page can show."""


class RunStragglers(NamedTuple):
    """One run: the seconds of its ranks and what they show."""

    seconds: RankSteps
    diagnosis: Diagnosis


def make_study(
    table: pd.DataFrame,
    base: str | None = None,
    *,
    against: Study | None = None,
) -> Study:
    """The study of a table of `analysis.read.frames`; `base` as for `scaling_curves`."""
    statistics = step_statistics(table)
    curves = scaling_curves(table, base, statistics)
    return Study(table, curves, statistics=statistics, against=against)


@dataclass(frozen=True)
class Study:
    """What the sections of a report read; properties are computed once, at first use."""

    runs: pd.DataFrame
    """The table of `analysis.read.frames`, one row a run; excluded runs too."""
    recorded_curves: Sequence[Curve]
    """Of `scaling_curves`, with waiting and transfer as recorded; sections read `curves`."""
    statistics: RunStatistics = field(default_factory=dict)
    """Stationarity and spread of the steps of each run."""
    against: Study | None = None
    """Another sweep to compare with."""
    prices: PriceList = field(default_factory=PriceList)
    """Prices that the user gave; empty without a price list."""
    deadline_s: float | None = None
    """Seconds within which a training must end; None without a deadline."""
    samples: float | None = None
    """Samples of the training that costs refer to; None for those of the planned steps of the base."""

    def run(self, path: str) -> Run:
        """The run of a row of `runs`, by its `path`."""
        return self._runs[path]

    @cached_property
    def _runs(self) -> Mapping[str, Run]:
        return {run.path: run for run in runs_of(self.runs)}

    @cached_property
    def included(self) -> pd.DataFrame:
        """Runs that count in the figures."""
        return self.runs[self.runs["included"]]

    @cached_property
    def emulated(self) -> bool:
        """Whether an included run is emulated."""
        return bool(self.included["emulated"].any())

    @cached_property
    def overlaps(self) -> Sequence[Overlap]:
        """Runs that were at work on one node at the same time, of which one counts in the figures."""
        counted = set(self.included["path"])
        found = overlaps_of(self._runs.values())
        return [each for each in found if not counted.isdisjoint(map(str, each.runs))]

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
        paths = {row["path"] for point in points or curve.points for row in self.runs_of(curve, point)}
        return next((each for each in known if not paths.isdisjoint(each.runs)), None)

    @cached_property
    def metrics(self) -> Mapping[RunId, Metrics]:
        """`metrics.json` of each included run, over its measured steps."""
        runs = runs_of(self.included)
        return {(run.folder.sweep, run.folder.name): run.metrics for run in runs if run.metrics}

    @cached_property
    def sweeps(self) -> list[str]:
        return sorted(self.runs["sweep"].unique())

    @cached_property
    def unreadable(self) -> list[str]:
        """Messages on records that cannot be read."""
        return [problem for run in self._runs.values() for problem in run.problems]

    @cached_property
    def incomplete(self) -> list[str]:
        """Messages on included runs whose ranks lack step records."""
        return [f"{run.path}/attempts: {text}" for run in self._runs.values() for text in run.incomplete]

    @cached_property
    def step_times_s(self) -> Mapping[RunId, NDArray[np.float64]]:
        """Durations in seconds of the measured steps on rank 0, by run."""
        return frames.step_times_s(self.runs)

    @cached_property
    def losses(self) -> pd.DataFrame:
        """Losses by step: the columns of `frames.losses`."""
        return frames.losses(self.runs)

    @cached_property
    def gradient_norms(self) -> pd.DataFrame:
        return frames.gradient_norms(self.runs)

    @cached_property
    def communication_ratios(self) -> pd.DataFrame:
        """Exposed communication / compute by step: the columns of `frames.communication_ratios`."""
        return frames.communication_ratios(self.runs)

    @cached_property
    def utilization(self) -> pd.DataFrame:
        """Utilization of rank 0's device by step: the columns of `frames.utilization`."""
        return frames.utilization(self.runs)

    @cached_property
    def curves(self) -> Sequence[Curve]:
        """The curves with the noise floor of waiting as transfer (`analysis.results.phases`)."""
        return [with_floors(curve, self._floors_s(curve)) for curve in self.recorded_curves]

    def _floors_s(self, curve: Curve) -> dict[tuple[str, ...], NDArray[np.float64]]:
        """Noise floor of waiting in each repeat, by `Point.runs`; zero in repeats where it is unknown, and
        without the points where it is unknown in all."""
        found = {}
        for point in curve.points:
            paths = {row["run"]: str(row["path"]) for row in self.runs_of(curve, point)}
            known = [self.waiting.get(paths[run]) for run in point.runs]
            floors = [run and run.floor_s for run in known]
            if any(floor is not None for floor in floors):
                found[point.runs] = np.array([floor or 0.0 for floor in floors])
        return found

    @cached_property
    def waiting(self) -> Mapping[str, RunWaiting]:
        """Loss to stragglers and noise floor of the curves' runs by path; without runs of one rank, without
        common steps, and of a pipeline, whose ranks have different work."""
        return {path: run_waiting(seconds) for path, seconds in self._rank_steps(self._comparable)}

    @cached_property
    def job_times(self) -> Mapping[str, JobTime]:
        """Time of each started run by path, excluded ones too, in the order of `runs`; without scripts that
        record no steps."""
        paths = self.runs.loc[(self.runs["state"] != "running") & ~self.runs["own_script"], "path"]
        times = {path: job_time(self.run(path)) for path in paths}
        return {path: time for path, time in times.items() if time is not None}

    @cached_property
    def leading_curve(self) -> Curve:
        """The curve with the highest throughput at its largest size."""
        return _leading(self.curves)

    @cached_property
    def stragglers(self) -> Mapping[str, RunStragglers]:
        """Stragglers by path of the runs of `waiting`, of at most `MOST_SEARCHES`: of the largest size of the
        leading curve first, then of the largest sizes."""
        paths = list(self.waiting)[:MOST_SEARCHES]
        unjudged = unjudged_links(self.included)
        found = {}
        for path, seconds in self._rank_steps(paths):
            rates, floor_s = link_rates(self.run(path).attempts), self.waiting[path].floor_s
            found[path] = RunStragglers(seconds, diagnose(seconds, floor_s, rates, unjudged.get(path, "")))
        return found

    def diagnoses(self, curve: Curve, point: Point) -> list[Diagnosis]:
        """Of the repeats of one point that were searched for stragglers."""
        paths = (str(row["path"]) for row in self.runs_of(curve, point))
        return [self.stragglers[path].diagnosis for path in paths if path in self.stragglers]

    def _rank_steps(self, paths: Sequence[str]) -> Iterator[tuple[str, RankSteps]]:
        for path in paths:
            seconds = rank_steps(self.run(path).steps)
            if seconds is not None:
                yield path, seconds

    @cached_property
    def _comparable(self) -> list[str]:
        """Paths of the curves' runs whose ranks have the same work."""
        curves = self.recorded_curves
        points = [(curve, point) for curve in curves for point in curve.points]
        first = _leading(curves).points[-1] if points else None
        points.sort(key=lambda each: (each[1] is not first, -each[1].size))
        rows = [row for curve, point in points for row in self.runs_of(curve, point)]
        found = {run: metrics.strategy for run, metrics in self.metrics.items()}
        return [str(row["path"]) for row in rows if found.get((row["sweep"], row["run"])) != "pipeline"]

    def runs_of(self, curve: Curve, point: Point) -> list[dict[str, Any]]:
        """Rows of `runs` for the repeats of one point."""
        names = set(point.runs)
        return [row for row in self._rows_of_sweeps.get(curve.sweep, ()) if row["run"] in names]

    @cached_property
    def rows(self) -> Sequence[dict[str, Any]]:
        """Rows of `runs`. Sections read them for each point of each curve."""
        return [{str(key): value for key, value in row.items()} for row in self.runs.to_dict("records")]

    @cached_property
    def _rows_of_sweeps(self) -> Mapping[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row["sweep"], []).append(row)
        return found


def _leading(curves: Sequence[Curve]) -> Curve:
    return max(curves, key=lambda curve: curve.points[-1].samples_per_s.value)
