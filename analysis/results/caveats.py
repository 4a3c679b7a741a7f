"""Caveats: what limits the numbers of a study, each found once, with the statements that it forbids.

A row of `_ROWS` scores runs, a test of `_OF_CURVE` compares the sizes of a curve. The macro `caveat` of
`analysis/report/templates/sentences.j2` has the words of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from analysis.read.attempts import machine_of
from analysis.read.differences import run_config
from analysis.read.run import Run
from analysis.read.samples import OTHER_LOAD
from analysis.results.curves import Curve, Point
from analysis.stats.repeats import two_groups
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
    found = [*_of_runs(study), *_one_machine(study), *_overlaps(study), *_records(study), *_left_out(study)]
    found += _repeats(study)
    for curve in study.curves:
        sizes = _Sizes(study, curve)
        found += [*_of_sizes(sizes), *_of_curve(sizes)]
    return tuple(sorted(found, key=lambda caveat: -caveat.gravity))


Score = float | bool | None


class _Row(NamedTuple):
    """A caveat on the runs with a score above 0; the run with the highest score is its example."""

    kind: str
    score: Callable[[Run, Metrics], Score]
    gravity: Gravity = Gravity.WARNING
    warns_from: float = math.inf
    """Highest score from which a note becomes a warning."""
    forbids: tuple[Subject, ...] = ()


def _above(value: float | None, bound: float) -> float:
    return value if value is not None and value > bound else 0.0


def _late_share(metrics: Metrics) -> float:
    return (metrics.emulation_late_s or 0.0) * metrics.measured_steps / (metrics.measured_s or math.inf)


_ROWS = (
    _Row("emulated", lambda run, of: of.emulated, Gravity.GRAVE),
    _Row("ingested", lambda run, of: run.ingested is not None),
    _Row(
        "shared processors", lambda run, of: of.oversubscribed * of.world_size, forbids=("transfer advice",)
    ),
    _Row("other load", lambda run, of: _above(run.busy_share, OTHER_LOAD), forbids=("transfer advice",)),
    _Row("late emulation", lambda run, of: _above(_late_share(of), LATE_SHARE)),
    _Row("pre-flight", lambda run, of: run.preflight.get("preflight") == "warned"),
    _Row("skipped updates", lambda run, of: of.skipped_steps / of.steps, Gravity.NOTE, SKIPPED_SHARE),
    _Row("no pre-flight", lambda run, of: run.preflight.get("preflight") == "skipped", Gravity.NOTE),
    _Row("remark", lambda run, of: bool(run.note), Gravity.NOTE),
    _Row("CPU", lambda run, of: of.device == "cpu" and not of.emulated, Gravity.NOTE),
)


def _of_runs(study: Study) -> Iterator[Caveat]:
    untested = {
        path for path, each in study.statistics.items() if each.stationarity.verdict == "too few steps"
    }
    few = _Row(
        "few steps", lambda run, of: (run.path in untested) / of.measured_steps, Gravity.NOTE, 1 / FEW_STEPS
    )
    for row in (*_ROWS, few):
        scores = [(float(row.score(run, run.metrics) or 0.0), run) for run in study.included if run.metrics]
        found = [(score, run) for score, run in scores if score > 0]
        if not found:
            continue
        highest, example = max(found, key=lambda each: each[0])
        numbers = {"count": len(found), "total": len(scores), "example": example, "highest": highest}
        gravity = Gravity.WARNING if highest >= row.warns_from else row.gravity
        yield Caveat(row.kind, gravity, _paths(run for _, run in found), numbers, frozenset(row.forbids))


def _one_machine(study: Study) -> Iterator[Caveat]:
    several = [run for run in study.included if run.metrics and run.metrics.nodes > 1]
    if any(machine_of(run.attempts) for run in several):
        shown = [run.metrics for run in several if run.metrics]
        nodes = max(each.nodes for each in shown)
        numbers = {"nodes": nodes, "processors": max(each.cpu_count or 0 for each in shown)}
        yield Caveat("one machine", Gravity.NOTE, _paths(several), numbers)


def _overlaps(study: Study) -> Iterator[Caveat]:
    """Runs at the same time on one node. They forbid a headline of two sizes of which one had it alone."""
    overlaps = study.overlaps
    if not overlaps:
        return
    paths = frozenset(str(path) for overlap in overlaps for path in overlap.runs)
    nodes = {shared: set[int]() for shared in (True, False)}
    for run in study.included:
        nodes[run.path in paths].add(run.metrics.nodes if run.metrics else 0)
    pairs = [[point.paths for point in _Sizes(study, curve).pair] for curve in study.curves]
    unlike = [runs for pair in pairs if len({paths.isdisjoint(runs) for runs in pair}) > 1 for runs in pair]
    numbers = {
        "longest": overlaps[0],
        "pairs": len(overlaps),
        "shared": sorted(nodes[True]),
        "alone": sorted(nodes[False] - nodes[True]),
        "same_gpu": any(overlap.gpus == "same" for overlap in overlaps),
    }
    forbids: set[Subject] = {"transfer advice"}
    if unlike:
        forbids |= _NO_RATIO
        paths = paths.union(*unlike)
    gravity = Gravity.GRAVE if unlike else Gravity.WARNING
    yield Caveat("overlaps", gravity, paths, numbers, frozenset(forbids))


def _records(study: Study) -> Iterator[Caveat]:
    """Step records that cannot be read, or that a rank lacks."""
    for kind, lines in (
        ("unreadable records", lambda run: run.problems),
        ("missing records", lambda run: [f"{run.path}/attempts: {text}" for text in run.incomplete]),
    ):
        found = [(run, lines(run)) for run in study.included if lines(run)]
        if found:
            run, texts = found[0]
            first = texts[0].removeprefix(f"{run.folder.path.parents[1]}/")
            numbers = {"count": sum(len(texts) for _, texts in found), "first": first}
            runs = _paths(run for run, _ in found)
            yield Caveat(kind, Gravity.WARNING, runs, numbers, frozenset({"nobody is slow"}))


def _left_out(study: Study) -> Iterator[Caveat]:
    """Runs that count in no figure; a warning where finished or failed ones are among them."""
    for runs in [study.runs] + ([study.against.runs] if study.against else []):
        left = [run for run in runs if not run.included]
        finished = [run for run in left if run.state == "done"]
        if left:
            numbers = {
                "count": len(left),
                "finished": len(finished),
                "total": len(runs),
                "example": (finished or left)[0],
            }
            doubtful = any(run.state in ("done", "failed") for run in left)
            yield Caveat("left out", Gravity.WARNING if doubtful else Gravity.NOTE, _paths(left), numbers)


def _repeats(study: Study) -> Iterator[Caveat]:
    """Sizes with one repeat, and with two."""
    points = [point for curve in study.curves for point in curve.points]
    for repeats, kind, gravity in ((1, "one repeat", Gravity.WARNING), (2, "two repeats", Gravity.NOTE)):
        runs = [run for point in points if len(point.runs) == repeats for run in point.runs]
        if runs:
            known = (study.statistics.get(run.path) for run in runs)
            numbers = {
                "count": len(runs) // repeats,
                "total": len(points),
                "measured": any(run.ingested is None for run in runs),
                "within": max((each.within_run or 0.0 for each in known if each), default=0.0),
            }
            forbids: frozenset[Subject] = frozenset({"cost ranking"} if repeats == 1 else ())
            yield Caveat(kind, gravity, _paths(runs), numbers, forbids)


def _paths(runs: Iterable[Run]) -> frozenset[str]:
    return frozenset(run.path for run in runs)


def compared_point(curve: Curve) -> Point | None:
    """The size that the headline compares with the base: the largest, or the smallest if that is the base;
    None without both."""
    others = [point for point in curve.points if curve.base is not None and not point.is_base]
    largest = curve.points[-1]
    return largest if largest in others else others[0] if others else None


class _Sizes:
    """A curve with the runs of its sizes, and the two sizes that its headline compares."""

    def __init__(self, study: Study, curve: Curve) -> None:
        self.study, self.curve = study, curve
        base, point = curve.base, compared_point(curve)
        self.pair = () if base is None or point is None else (base, point)

    def values(self, read: Callable[[Run], Any]) -> dict[str, list[Point]]:
        """Sizes by the value of a property of their runs; those without a value are left out."""
        found: dict[str, list[Point]] = {}
        for point in self.curve.points:
            known = {str(value) for run in point.runs if (value := read(run)) is not None} - {""}
            if known:
                found.setdefault(", ".join(sorted(known)), []).append(point)
        return found

    def named(self, points: Iterable[Point]) -> str:
        """`1 node`, `2 and 4 nodes`."""
        counts = listed([str(point.size) for point in points])
        return f"{counts} {self.curve.unit}{'' if counts == '1' else 's'}"


def _differing(sizes: _Sizes) -> dict[str, dict[str, str]]:
    """Values, with the sizes that have them, of properties in which the runs of a curve differ."""
    values = {noun: sizes.values(read) for noun, read in ALIKE.items()}
    if len({_processors_per_rank(run) for point in sizes.curve.points for run in point.runs} - {None}) > 1:
        values["processors"] = sizes.values(lambda run: run.metrics and run.metrics.cpu_count)
    return {
        noun: {value: sizes.named(points) for value, points in found.items()}
        for noun, found in values.items()
        if len(found) > 1
    }


def _processors_per_rank(run: Run) -> float | None:
    """A node with more ranks has more processors."""
    return (
        run.metrics.cpu_count / run.metrics.ranks_per_node if run.metrics and run.metrics.cpu_count else None
    )


def _other_program(sizes: _Sizes) -> dict[str, Any]:
    return {"reason": sizes.curve.other_program} if sizes.curve.other_program else {}


def _unlike_runs(sizes: _Sizes) -> dict[str, Any]:
    """Both sizes of the headline differ."""
    for read in ALIKE.values():
        for points in sizes.values(read).values():
            if sum(point in points for point in sizes.pair) == 1:
                return {"differing": _differing(sizes)}
    return {}


def _mixed_runs(sizes: _Sizes) -> dict[str, Any]:
    """Other sizes differ, or the processors."""
    found = {} if sizes.curve.other_program or _unlike_runs(sizes) else _differing(sizes)
    return {"differing": found} if found else {}


def _other_loss(sizes: _Sizes) -> dict[str, Any]:
    """Final losses of an exact training, which other numbers of ranks reproduce."""
    if not sizes.pair or not all(_is_exact(run) for point in sizes.pair for run in point.runs):
        return {}
    means = losses_apart(*sizes.pair)
    return {"at": sizes.named(sizes.pair), "means": means} if means else {}


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


def _implausible(sizes: _Sizes) -> dict[str, Any]:
    """The speed-up lies beyond the number of devices."""
    if not sizes.pair or (speedup := sizes.pair[1].speedup) is None:
        return {}
    base, point = sizes.pair
    most = point.size / base.size
    known = speedup.low if speedup.basis == "repeats" else None
    lowest = speedup.value / SPEED_UP_MARGIN if known is None else known
    return {"at": sizes.named([point]), "speedup": speedup.value, "most": most} if lowest > most else {}


_OF_CURVE: tuple[tuple[str, Callable[[_Sizes], dict[str, Any]], Gravity, frozenset[Subject]], ...] = (
    ("other program", _other_program, Gravity.GRAVE, _NO_RATIO | {"curve"}),
    ("unlike runs", _unlike_runs, Gravity.GRAVE, _NO_RATIO),
    ("other loss", _other_loss, Gravity.GRAVE, _NO_RATIO),
    ("implausible", _implausible, Gravity.GRAVE, _NO_RATIO),
    ("mixed runs", _mixed_runs, Gravity.WARNING, frozenset()),
)


def _of_curve(sizes: _Sizes) -> Iterator[Caveat]:
    runs = _paths(run for point in sizes.curve.points for run in point.runs)
    label = sizes.curve.label if len(sizes.study.curves) > 1 else ""
    for kind, test, gravity, forbids in _OF_CURVE:
        if numbers := test(sizes):
            yield Caveat(kind, gravity, runs, {"curve": label, **numbers}, forbids)


def _of_sizes(sizes: _Sizes) -> Iterator[Caveat]:
    """Sizes whose steps are not stationary, and sizes whose repeats fall into two groups."""
    grouped = []
    moving = [point for point in sizes.curve.points if point.samples_per_s.basis == "not stationary"]
    runs = [run for point in moving for run in point.runs]
    known = [sizes.study.statistics[run.path] for run in runs if run.path in sizes.study.statistics]
    changed = [each for each in known if not each.stationarity.publishable]
    if changed:
        warmup = max(each.warmup for each in changed)
        numbers = {"at": sizes.named(moving), "reason": changed[0].stationarity.reason, "warmup": warmup}
        yield Caveat("not stationary", Gravity.GRAVE, _paths(runs), numbers, _NO_RATIO)
    for point in sizes.curve.points:
        means = two_groups([point.global_batch_size / rate for rate in point.samples_per_s_by_run])
        if means is not None:
            grouped.append((point, means))
    if grouped:
        runs = [run for point, _ in grouped for run in point.runs]
        numbers = {"at": sizes.named(point for point, _ in grouped), "means": grouped[-1][1]}
        yield Caveat("two groups", Gravity.GRAVE, _paths(runs), numbers, _NO_RATIO)
