"""Caveats: what limits the numbers of a study. Claims: what its runs settle about the speed-up of a curve.

A row of `_ROWS` scores runs; `_of_curve` compares the sizes of a curve. A caveat forbids statements. Where
none forbids the headline, the first case that holds for the largest size is the claim. Each kind and case has
its words in `analysis/report/templates/sentences.j2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analysis.read.run import Run
from analysis.read.samples import OTHER_LOAD
from analysis.results.curves import Curve, Point
from analysis.stats.estimates import Estimate
from analysis.stats.verdicts import two_groups
from analysis.units import listed
from disttrain.config.dotted_keys import get_key
from disttrain.records.metrics import Metrics

if TYPE_CHECKING:
    from analysis.study import Study

Subject = Literal["headline", "curve", "transfer advice", "nobody is slow", "cost ranking"]
"""Statements of the report that a caveat can forbid."""

ALIKE: Mapping[str, Callable[[Study, Run], Any]] = {
    "compute threads of a rank (OMP_NUM_THREADS)": lambda study, run: get_key(
        run.config, "resources.threads_per_rank"
    ),
    "devices": lambda study, run: run.metrics and run.metrics.device,
    "versions of torch": lambda study, run: run.metrics and run.metrics.torch,
    "warm-up steps": lambda study, run: run.metrics and run.metrics.warmup_steps,
    "hashes of the code": lambda study, run: run.code_hash,
    "machines": lambda study, run: (
        f"shared by the {run.packed} runs of a job"
        if run.packed > 1
        else "shared with other runs"
        if run.path in study.overlap_s
        else "alone"
    ),
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
WIDE = 1.5
"""Ratio of the bounds of an interval above which nothing is stated."""
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
    found = [*_of_runs(study), *_left_out(study)]
    found += [caveat for curve in study.curves for caveat in _of_curve(study, curve)]
    return tuple(sorted(found, key=lambda caveat: -caveat.gravity))


class _Row(NamedTuple):
    """A caveat on the runs with a score above 0; the run with the highest score is its example."""

    kind: str
    score: Callable[[Study, Run, Metrics], float | None]
    gravity: Gravity = Gravity.WARNING
    warns_from: float = math.inf
    """Highest score from which a note becomes a warning."""
    forbids: Subject | None = None


def _above(value: float | None, bound: float) -> float:
    return value if value is not None and value > bound else 0.0


def _late_share(metrics: Metrics) -> float:
    return (metrics.emulation_late_s or 0.0) * metrics.measured_steps / (metrics.measured_s or math.inf)


def _untested(study: Study, run: Run, metrics: Metrics) -> float:
    known = study.statistics.get(run.path)
    few = known is not None and known.stationarity.verdict == "too few steps"
    return few and 1 / metrics.measured_steps


def _alone(study: Study, run: Run, metrics: Metrics) -> float:
    """Half of the interval of the mean by the steps of the one run, as a share; tiny where it is unknown."""
    known = study.statistics.get(run.path)
    return _repeats(study, run) == 1 and ((known and known.within_run) or 1e-9)


def _repeats(study: Study, run: Run) -> int | None:
    """Number of repeats of its size; 0 where their throughputs are equal, None for no size."""
    point = study.points.get(run.path)
    return None if point is None else len(point.runs) * (point.basis != "equal repeats")


_ROWS = (
    _Row("emulated", lambda study, run, of: of.emulated, Gravity.GRAVE),
    _Row("ingested", lambda study, run, of: run.ingested is not None),
    _Row(
        "shared processors",
        lambda study, run, of: of.oversubscribed * of.world_size,
        forbids="transfer advice",
    ),
    _Row("packed", lambda study, run, of: run.packed - 1, forbids="transfer advice"),
    _Row(
        "overlaps",
        lambda study, run, of: run.packed == 1 and study.overlap_s.get(run.path),
        forbids="transfer advice",
    ),
    _Row("other load", lambda study, run, of: _above(run.busy_share, OTHER_LOAD), forbids="transfer advice"),
    _Row("late emulation", lambda study, run, of: _above(_late_share(of), LATE_SHARE)),
    _Row("pre-flight", lambda study, run, of: run.preflight.get("preflight") == "warned"),
    _Row("unreadable records", lambda study, run, of: len(run.problems), forbids="nobody is slow"),
    _Row("missing records", lambda study, run, of: len(run.incomplete), forbids="nobody is slow"),
    _Row("one repeat", _alone, forbids="cost ranking"),
    _Row("two repeats", lambda study, run, of: _repeats(study, run) == 2, Gravity.NOTE),
    _Row("equal repeats", lambda study, run, of: _repeats(study, run) == 0, forbids="cost ranking"),
    _Row("few steps", _untested, Gravity.NOTE, 1 / FEW_STEPS),
    _Row("skipped updates", lambda study, run, of: of.skipped_steps / of.steps, Gravity.NOTE, SKIPPED_SHARE),
    _Row("no pre-flight", lambda study, run, of: run.preflight.get("preflight") == "skipped", Gravity.NOTE),
    _Row("remark", lambda study, run, of: bool(run.note), Gravity.NOTE),
    _Row("CPU", lambda study, run, of: of.device == "cpu" and not of.emulated, Gravity.NOTE),
    _Row("one machine", lambda study, run, of: _above(of.nodes * run.one_machine, 1), Gravity.NOTE),
)


def _of_runs(study: Study) -> Iterator[Caveat]:
    for row in _ROWS:
        scores = [(row.score(study, run, run.metrics) or 0.0, run) for run in study.included if run.metrics]
        found = [(score, run) for score, run in scores if score > 0]
        if found:
            highest, example = max(found, key=lambda each: each[0])
            numbers = {"count": len(found), "total": len(scores), "example": example, "highest": highest}
            gravity = Gravity.WARNING if highest >= row.warns_from else row.gravity
            forbids = frozenset({row.forbids} if row.forbids else ())
            yield Caveat(row.kind, gravity, _paths(run for _, run in found), numbers, forbids)


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
        runs = frozenset().union(*(point.paths for point in points))
        return Caveat(kind, Gravity.GRAVE, runs, {"curve": label, **numbers}, _NO_RATIO)

    if curve.other_program:
        yield replace(grave("other program", reason=curve.other_program), forbids=_NO_RATIO | {"curve"})
    alike = {name: _by_value(study, curve, read) for name, read in ALIKE.items()}
    sides = [points for values in alike.values() for points in values.values()]
    if _by_value(study, curve, _processors_per_rank):
        alike["processors"] = _by_value(study, curve, _processors)
    differing = {
        noun: {value: _named(curve, points) for value, points in values.items()}
        for noun, values in alike.items()
        if values
    }
    if pair and any((pair[0] in points) != (pair[1] in points) for points in sides):
        yield grave("unlike runs", differing=differing)
    elif differing and not curve.other_program:
        yield replace(grave("mixed runs", differing=differing), gravity=Gravity.WARNING, forbids=frozenset())
    exact = pair and all(_is_exact(run) for point in pair for run in point.runs)
    if pair and exact and (means := losses_apart(*pair)):
        yield grave("other loss", at=_named(curve, pair), means=means)
    if pair and (speedup := pair[1].speedup) and pair[1].size >= pair[0].size:
        most = pair[1].size / pair[0].size
        if (speedup.low or speedup.value / SPEED_UP_MARGIN) > most:
            yield grave("implausible", at=_named(curve, pair[1:]), speedup=speedup.value, most=most)
    moving = [point for point in curve.points if point.basis == "not stationary"]
    runs = [run.path for point in moving for run in point.runs]
    tests = [study.statistics[path] for path in runs if path in study.statistics]
    if changed := [each for each in tests if not each.stationarity.publishable]:
        numbers = {"change": changed[0].stationarity.change, "warmup": max(each.warmup for each in changed)}
        yield grave("not stationary", moving, at=_named(curve, moving), **numbers)
    grouped = [(point, groups) for point in curve.points if (groups := two_groups(point.phases.step_s))]
    if grouped:
        points = [point for point, _ in grouped]
        yield grave("two groups", points, at=_named(curve, points), means=grouped[-1][1])


def _by_value(study: Study, curve: Curve, read: Callable[[Study, Run], Any]) -> dict[str, list[Point]]:
    """Points by value of a property in which the runs of a curve differ, else empty; unknown values are left
    out."""
    found: dict[str, list[Point]] = {}
    for point in curve.points:
        for value in dict.fromkeys(str(known) for run in point.runs if (known := read(study, run))):
            found.setdefault(value, []).append(point)
    return found if len(found) > 1 else {}


def _named(curve: Curve, points: Iterable[Point]) -> str:
    """`1 node`, `2 and 4 nodes`."""
    counts = listed([str(point.size) for point in points])
    return f"{counts} {curve.unit}{'' if counts == '1' else 's'}"


def _processors(study: Study, run: Run) -> int | None:
    return run.metrics.cpu_count if run.metrics else None


def _processors_per_rank(study: Study, run: Run) -> float | None:
    """A node with more ranks has more processors."""
    count = _processors(study, run)
    return count / run.metrics.ranks_per_node if count and run.metrics else None


def losses_apart(base: Point, point: Point) -> tuple[float, float] | None:
    """Means of the final losses of two points if they differ at one global batch and number of steps."""
    if len({(each.global_batch_size, each.steps) for each in (*base.metrics, *point.metrics)}) > 1:
        return None
    losses = [[run.final.get("valid_loss") for run in each.runs] for each in (base, point)]
    known = [[loss for loss in each if loss is not None] for each in losses]
    if not all(known):
        return None
    means = fmean(known[0]), fmean(known[1])
    spread = max(stdev(each) if each[1:] else 0.0 for each in known)
    apart = abs(means[0] - means[1]) > max(LOSS_MARGIN * min(map(abs, means)), LOSS_SPREADS * spread)
    return means if apart else None


def _is_exact(run: Run) -> bool:
    """Whether the number of ranks changes the losses by rounding alone."""
    config = run.compared
    schemes = config.get("parallel.gradient_communication.scheme")
    return config.get("model.kind") in ("gpt", "mlp") and schemes in (None, "none")


@dataclass(frozen=True)
class Claim:
    """What may be said of one curve."""

    case: str
    """`forbidden`, `no base`, `one size`, `one repeat`, `unsettled`, `no gain` or `settled`."""
    curve: Curve
    base: Point | None = None
    point: Point | None = None
    """The size that is compared with the base."""
    caveat: Caveat | None = None
    """Of the case `forbidden`."""


def claim(study: Study, curve: Curve) -> Claim:
    """The first case that holds for the largest size of a curve."""
    pair = compared_sizes(curve)
    base, point = pair or (curve.base, None)
    if caveat := study.forbidden("headline", curve, *filter(None, (base, point))):
        return Claim("forbidden", curve, base, point, caveat)
    if base is None:
        return Claim("no base", curve)
    if point is None:
        return Claim("one size", curve, base)
    return Claim(_case(point.speedup), curve, base, point)


def _case(speedup: Estimate | None) -> str:
    if not (speedup and speedup.low and speedup.high):
        return "one repeat"
    if speedup.high > WIDE * speedup.low:
        return "unsettled"
    return "no gain" if speedup.low <= 1 <= speedup.high else "settled"
