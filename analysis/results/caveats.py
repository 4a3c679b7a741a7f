"""Caveats: what limits the numbers of a study, each found once, with the statements that it forbids.

A row of `_ROWS` scores runs; `_of_curve` compares the sizes of a curve. The macro `caveat` of
`analysis/report/templates/sentences.j2` has the words of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from analysis.read.differences import run_config
from analysis.read.run import Run
from analysis.read.samples import OTHER_LOAD
from analysis.results.curves import Curve, Point
from analysis.stats.verdicts import two_groups
from analysis.units import listed
from disttrain.config.dotted_keys import get_key
from disttrain.records.metrics import Metrics

if TYPE_CHECKING:
    from analysis.study import Study

Subject = Literal["headline", "curve", "transfer advice", "nobody is slow", "cost ranking"]
"""Statements of the report that a caveat can forbid."""

ALIKE: Mapping[str, Callable[[Run], Any]] = {
    "compute threads of a rank (OMP_NUM_THREADS)": lambda run: get_key(
        run.config, "resources.threads_per_rank"
    ),
    "devices": lambda run: run.metrics and run.metrics.device,
    "versions of torch": lambda run: run.metrics and run.metrics.torch,
    "warm-up steps": lambda run: run.metrics and run.metrics.warmup_steps,
    "hashes of the code": lambda run: run.code_hash,
}
"""Properties that are equal in runs whose speeds are compared, by their names in a sentence."""
SPEED_UP_MARGIN = 1.05
"""A speed-up without an interval over repeats is implausible above the number of devices times this."""
LOSS_MARGIN = 0.05
LOSS_SPREADS = 3
"""Final losses differ if their means are apart by the margin and by so many standard deviations."""
FEW_STEPS = 30
"""A run with too few steps to test them draws a note, and a warning below this number."""
LATE_SHARE = 0.01
"""Emulated passes draw a warning if they end later than planned by more than this share of the step."""
SKIPPED_SHARE = 0.01
"""Skipped updates draw a warning from this share on. The search for a loss scale skips a few."""
_NO_RATIO: frozenset[Subject] = frozenset({"headline", "cost ranking"})


class Gravity(IntEnum):
    """Weight of a caveat: a note explains a number, a warning doubts it, a grave one forbids it."""

    NOTE = 1
    WARNING = 2
    GRAVE = 3


@dataclass(frozen=True)
class Caveat:
    """One limit of the numbers."""

    kind: str
    gravity: Gravity
    runs: frozenset[str] = frozenset()
    """Paths of the runs that it holds for."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Values of its sentence."""
    forbids: frozenset[Subject] = frozenset()


def find(study: Study) -> tuple[Caveat, ...]:
    """Caveats of a study, the gravest first; none without a finished run."""
    if not study.included:
        return ()
    found = [*_of_runs(study), *_overlaps(study), *_left_out(study), *_repeats(study)]
    found += [caveat for curve in study.curves for caveat in _of_curve(study, curve)]
    return tuple(sorted(found, key=lambda caveat: -caveat.gravity))


class _Row(NamedTuple):
    """A caveat on the runs with a score above 0; the run with the highest score is its example."""

    kind: str
    score: Callable[[Run, Metrics], float | None]
    gravity: Gravity = Gravity.WARNING
    warns_from: float = math.inf
    """Highest score from which a note becomes a warning."""
    forbids: Subject | None = None


def _above(value: float | None, bound: float) -> float:
    return value if value is not None and value > bound else 0.0


def _late_share(metrics: Metrics) -> float:
    return (metrics.emulation_late_s or 0.0) * metrics.measured_steps / (metrics.measured_s or math.inf)


_ROWS = (
    _Row("emulated", lambda run, of: of.emulated, Gravity.GRAVE),
    _Row("ingested", lambda run, of: run.ingested is not None),
    _Row("shared processors", lambda run, of: of.oversubscribed * of.world_size, forbids="transfer advice"),
    _Row("other load", lambda run, of: _above(run.busy_share, OTHER_LOAD), forbids="transfer advice"),
    _Row("late emulation", lambda run, of: _above(_late_share(of), LATE_SHARE)),
    _Row("pre-flight", lambda run, of: run.preflight.get("preflight") == "warned"),
    _Row("unreadable records", lambda run, of: len(run.problems), forbids="nobody is slow"),
    _Row("missing records", lambda run, of: len(run.incomplete), forbids="nobody is slow"),
    _Row("skipped updates", lambda run, of: of.skipped_steps / of.steps, Gravity.NOTE, SKIPPED_SHARE),
    _Row("no pre-flight", lambda run, of: run.preflight.get("preflight") == "skipped", Gravity.NOTE),
    _Row("remark", lambda run, of: bool(run.note), Gravity.NOTE),
    _Row("CPU", lambda run, of: of.device == "cpu" and not of.emulated, Gravity.NOTE),
    _Row("one machine", lambda run, of: _above(of.nodes * run.one_machine, 1), Gravity.NOTE),
)


def _of_runs(study: Study) -> Iterator[Caveat]:
    def untested(run: Run, metrics: Metrics) -> float:
        known = study.statistics.get(run.path)
        return (
            known is not None and known.stationarity.verdict == "too few steps" and 1 / metrics.measured_steps
        )

    for row in (*_ROWS, _Row("few steps", untested, Gravity.NOTE, 1 / FEW_STEPS)):
        scores = [(row.score(run, run.metrics) or 0.0, run) for run in study.included if run.metrics]
        found = [(score, run) for score, run in scores if score > 0]
        if found:
            highest, example = max(found, key=lambda each: each[0])
            numbers = {"count": len(found), "total": len(scores), "example": example, "highest": highest}
            gravity = Gravity.WARNING if highest >= row.warns_from else row.gravity
            forbids = frozenset({row.forbids} if row.forbids else ())
            yield Caveat(row.kind, gravity, _paths(run for _, run in found), numbers, forbids)


def _overlaps(study: Study) -> Iterator[Caveat]:
    """Runs at the same time on one node. They forbid a headline of two sizes of which one had it alone."""
    overlaps = study.overlaps
    if not overlaps:
        return
    paths = frozenset(str(path) for overlap in overlaps for path in overlap.runs)
    shared, alone = (
        {run.metrics.nodes for run in study.included if run.metrics and (run.path in paths) is beside}
        for beside in (True, False)
    )
    unlike: frozenset[str] = frozenset()
    for base, point in filter(None, map(compared_sizes, study.curves)):
        if paths.isdisjoint(base.paths) != paths.isdisjoint(point.paths):
            unlike |= base.paths | point.paths
    numbers = {
        "longest": overlaps[0],
        "pairs": len(overlaps),
        "shared": sorted(shared),
        "alone": sorted(alone - shared),
        "same_gpu": any(overlap.gpus == "same" for overlap in overlaps),
    }
    forbids: frozenset[Subject] = frozenset[Subject](("transfer advice",)).union(_NO_RATIO if unlike else ())
    yield Caveat("overlaps", Gravity.GRAVE if unlike else Gravity.WARNING, paths | unlike, numbers, forbids)


def _left_out(study: Study) -> Iterator[Caveat]:
    """Runs that count in no figure; a warning where finished or failed ones are among them."""
    for runs in [study.runs] + ([study.against.runs] if study.against else []):
        left = [run for run in runs if not run.included]
        finished = [run for run in left if run.state == "done"]
        if left:
            numbers = {"count": len(left), "finished": len(finished), "total": len(runs)}
            doubtful = any(run.state in ("done", "failed") for run in left)
            gravity = Gravity.WARNING if doubtful else Gravity.NOTE
            yield Caveat("left out", gravity, _paths(left), {**numbers, "example": (finished or left)[0]})


def _repeats(study: Study) -> Iterator[Caveat]:
    """Sizes with one repeat, and with two."""
    points = [point for curve in study.curves for point in curve.points]
    once: frozenset[Subject] = frozenset({"cost ranking"})
    for repeats, kind, gravity, forbids in (
        (1, "one repeat", Gravity.WARNING, once),
        (2, "two repeats", Gravity.NOTE, frozenset[Subject]()),
    ):
        runs = [run for point in points if len(point.runs) == repeats for run in point.runs]
        if runs:
            known = (study.statistics.get(run.path) for run in runs)
            numbers = {
                "count": len(runs) // repeats,
                "total": len(points),
                "measured": any(run.ingested is None for run in runs),
                "within": max((each.within_run or 0.0 for each in known if each), default=0.0),
            }
            yield Caveat(kind, gravity, _paths(runs), numbers, forbids)


def _paths(runs: Iterable[Run]) -> frozenset[str]:
    return frozenset(run.path for run in runs)


def compared_sizes(curve: Curve) -> tuple[Point, Point] | None:
    """The base and the size that the headline compares with it: the largest, or the smallest if that is the
    base; None without both."""
    others = [point for point in curve.points if not point.is_base]
    if curve.base is None or not others:
        return None
    return curve.base, others[0] if curve.points[-1].is_base else others[-1]


def _of_curve(study: Study, curve: Curve) -> Iterator[Caveat]:
    """Limits of the comparison of its sizes."""
    pair, label = compared_sizes(curve), curve.label if len(study.curves) > 1 else ""

    def grave(kind: str, points: Iterable[Point] = curve.points, **numbers: Any) -> Caveat:
        runs = _paths(run for point in points for run in point.runs)
        also: set[Subject] = {"curve"} if kind == "other program" else set()
        return Caveat(kind, Gravity.GRAVE, runs, {"curve": label, **numbers}, _NO_RATIO | also)

    if curve.other_program:
        yield grave("other program", reason=curve.other_program)
    differing = _differing(curve)
    named = {
        noun: {value: _named(curve, points) for value, points in values.items()}
        for noun, values in differing.items()
    }
    sides = [points for noun in ALIKE for points in differing.get(noun, {}).values()]
    if pair and any((pair[0] in points) != (pair[1] in points) for points in sides):
        yield grave("unlike runs", differing=named)
    elif named and not curve.other_program:
        yield replace(grave("mixed runs", differing=named), gravity=Gravity.WARNING, forbids=frozenset())
    if (
        pair
        and all(_is_exact(run) for point in pair for run in point.runs)
        and (means := losses_apart(*pair))
    ):
        yield grave("other loss", at=_named(curve, pair), means=means)
    if pair and (speedup := pair[1].speedup):
        most = pair[1].size / pair[0].size
        known = speedup.low if speedup.basis == "repeats" else None
        if (speedup.value / SPEED_UP_MARGIN if known is None else known) > most:
            yield grave("implausible", at=_named(curve, pair[1:]), speedup=speedup.value, most=most)
    moving = [point for point in curve.points if point.samples_per_s.basis == "not stationary"]
    tests = [study.statistics[path] for point in moving for path in point.paths if path in study.statistics]
    if changed := [each for each in tests if not each.stationarity.publishable]:
        numbers = {"reason": changed[0].stationarity.reason, "warmup": max(each.warmup for each in changed)}
        yield grave("not stationary", moving, at=_named(curve, moving), **numbers)
    known_means = (
        (point, two_groups([1 / rate for rate in point.samples_per_s_by_run])) for point in curve.points
    )
    if grouped := [(point, means) for point, means in known_means if means]:
        points, (last, means) = [point for point, _ in grouped], grouped[-1]
        means_s = [last.global_batch_size * mean for mean in means]
        yield grave("two groups", points, at=_named(curve, points), means=means_s)


def _differing(curve: Curve) -> dict[str, dict[str, list[Point]]]:
    """Points by value of each property in which the runs of a curve differ; unknown values are left out."""
    found = {}
    properties = {**ALIKE, "processors": lambda run: run.metrics and run.metrics.cpu_count}
    runs = [run for point in curve.points for run in point.runs]
    if len({_processors_per_rank(run) for run in runs} - {None}) < 2:
        del properties["processors"]
    for noun, read in properties.items():
        values: dict[str, list[Point]] = {}
        for point in curve.points:
            known = {str(value) for run in point.runs if (value := read(run)) is not None} - {""}
            if known:
                values.setdefault(", ".join(sorted(known)), []).append(point)
        if len(values) > 1:
            found[noun] = values
    return found


def _named(curve: Curve, points: Iterable[Point]) -> str:
    """`1 node`, `2 and 4 nodes`."""
    counts = listed([str(point.size) for point in points])
    return f"{counts} {curve.unit}{'' if counts == '1' else 's'}"


def _processors_per_rank(run: Run) -> float | None:
    """A node with more ranks has more processors."""
    return (
        run.metrics.cpu_count / run.metrics.ranks_per_node if run.metrics and run.metrics.cpu_count else None
    )


def losses_apart(base: Point, point: Point) -> tuple[float, float] | None:
    """Means of the final losses of two points if they differ at one global batch and number of steps."""
    if len({(each.global_batch_size, each.steps) for each in (*base.metrics, *point.metrics)}) > 1:
        return None
    losses = [[run.final.get("valid_loss") for run in each.runs] for each in (base, point)]
    known = [np.array([loss for loss in each if loss is not None]) for each in losses]
    if not all(each.size for each in known):
        return None
    means = float(known[0].mean()), float(known[1].mean())
    spread = max(0.0 if each.size < 2 else float(each.std(ddof=1)) for each in known)
    apart = abs(means[0] - means[1]) > max(LOSS_MARGIN * min(map(abs, means)), LOSS_SPREADS * spread)
    return means if apart else None


def _is_exact(run: Run) -> bool:
    """Whether the number of ranks changes the losses by rounding alone."""
    config = run_config(run)
    schemes = config.get("parallel.gradient_communication.scheme")
    return config.get("model.kind") in ("gpt", "mlp") and schemes in (None, "none")
