"""Caveats: what limits the numbers of a study, each found once, with the statements that it forbids.

A row of `_ROWS` scores runs, a test of `_OF_CURVE` compares the sizes of a curve. The macro `caveat` of
`analysis/report/templates/sentences.j2` has the words of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from analysis.read.differences import run_config
from analysis.read.frames import busy_shares, one_machine_of
from analysis.read.run import Run
from analysis.read.samples import OTHER_LOAD
from analysis.results.curves import Curve, Point
from analysis.stats.repeats import two_groups
from analysis.units import listed

if TYPE_CHECKING:
    from analysis.study import Study

Subject = Literal["headline", "curve", "transfer advice", "nobody is slow", "cost ranking"]
"""Statements of the report that a caveat can forbid."""

ALIKE = {
    "threads_per_rank": "compute threads of a rank (OMP_NUM_THREADS)",
    "device": "devices",
    "torch": "versions of torch",
    "warmup_steps": "warm-up steps",
    "code_hash": "hashes of the code",
}
"""Columns that are equal in runs whose speeds are compared, and their names in a sentence."""
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
    if study.included.empty:
        return ()
    found = [*_of_runs(study), *_one_machine(study), *_overlaps(study), *_records(study), *_left_out(study)]
    found += _repeats(study)
    for curve in study.curves:
        sizes = _Sizes(study, curve)
        found += [*_of_sizes(sizes), *_of_curve(sizes)]
    return tuple(sorted(found, key=lambda caveat: -caveat.gravity))


class _Row(NamedTuple):
    """A caveat on the runs with a score above 0; the run with the highest score is its example."""

    kind: str
    score: Callable[[pd.DataFrame], pd.Series]
    gravity: Gravity = Gravity.WARNING
    warns_from: float = math.inf
    """Highest score from which a note becomes a warning."""
    forbids: tuple[Subject, ...] = ()


def _above(values: pd.Series, bound: float) -> pd.Series:
    return values.where(values > bound)


_ROWS = (
    _Row("emulated", lambda runs: runs["emulated"], Gravity.GRAVE),
    _Row("ingested", lambda runs: runs["ingested"].notna()),
    _Row(
        "shared processors",
        lambda runs: runs["oversubscribed"] * runs["world_size"],
        forbids=("transfer advice",),
    ),
    _Row("other load", lambda runs: _above(runs["busy_share"], OTHER_LOAD), forbids=("transfer advice",)),
    _Row("late emulation", lambda runs: _above(runs["emulation_late_s"] / runs["step_s"], LATE_SHARE)),
    _Row("pre-flight", lambda runs: runs["preflight"] == "warned"),
    _Row(
        "few steps",
        lambda runs: runs["untested"] / runs["measured_steps"],
        Gravity.NOTE,
        1 / FEW_STEPS,
    ),
    _Row("skipped updates", lambda runs: runs["skipped_steps"] / runs["steps"], Gravity.NOTE, SKIPPED_SHARE),
    _Row("no pre-flight", lambda runs: runs["preflight"] == "skipped", Gravity.NOTE),
    _Row("remark", lambda runs: runs["note"].fillna("") != "", Gravity.NOTE),
    _Row("CPU", lambda runs: (runs["device"] == "cpu") & ~runs["emulated"], Gravity.NOTE),
)


def _of_runs(study: Study) -> Iterator[Caveat]:
    runs = study.included.assign(
        busy_share=busy_shares(study.included),
        untested=[
            path in study.statistics and study.statistics[path].stationarity.verdict == "too few steps"
            for path in study.included["path"]
        ],
    )
    for row in _ROWS:
        scores = row.score(runs).astype("Float64").fillna(0.0)
        if (highest := float(scores.max())) <= 0:
            continue
        chosen = runs[scores > 0]
        numbers = {
            "count": len(chosen),
            "total": len(runs),
            "example": runs.loc[scores.idxmax()].to_dict(),
            "highest": highest,
        }
        gravity = Gravity.WARNING if highest >= row.warns_from else row.gravity
        yield Caveat(row.kind, gravity, frozenset(chosen["path"]), numbers, frozenset(row.forbids))


def _one_machine(study: Study) -> Iterator[Caveat]:
    several = study.included[study.included["nodes"] > 1]
    if one_machine_of(several):
        numbers = {"nodes": int(several["nodes"].max()), "processors": several["cpu_count"].max()}
        yield Caveat("one machine", Gravity.NOTE, frozenset(several["path"]), numbers)


def _overlaps(study: Study) -> Iterator[Caveat]:
    """Runs at the same time on one node. They forbid a headline of two sizes of which one had it alone."""
    overlaps, included = study.overlaps, study.included
    if not overlaps:
        return
    paths = frozenset(str(path) for overlap in overlaps for path in overlap.runs)
    shared = included["path"].isin(paths)
    alone = sorted(set(included["nodes"]) - set(included.loc[shared, "nodes"]))
    pairs = [[_paths(rows) for rows in _Sizes(study, curve).of_pair()] for curve in study.curves]
    unlike = [runs for pair in pairs if len({paths.isdisjoint(runs) for runs in pair}) > 1 for runs in pair]
    numbers = {
        "longest": overlaps[0],
        "pairs": len(overlaps),
        "shared": sorted(set(included.loc[shared, "nodes"])),
        "alone": alone,
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
    kinds = {"unreadable records": study.unreadable, "missing records": study.incomplete}
    for kind, messages in kinds.items():
        if messages:
            runs = [path for path in study.included["path"] if any(f"{path}/" in text for text in messages)]
            root = Path(runs[0]).parents[1] if runs else ""
            numbers = {"count": len(messages), "first": messages[0].removeprefix(f"{root}/")}
            yield Caveat(kind, Gravity.WARNING, frozenset(runs), numbers, frozenset({"nobody is slow"}))


def _left_out(study: Study) -> Iterator[Caveat]:
    """Runs that count in no figure; a warning where finished or failed ones are among them."""
    for runs in [study.runs] + ([study.against.runs] if study.against else []):
        left = runs[~runs["included"]]
        finished = left[left["state"] == "done"]
        if not left.empty:
            example = (left if finished.empty else finished).iloc[0].to_dict()
            numbers = {"count": len(left), "finished": len(finished), "total": len(runs), "example": example}
            doubtful = left["state"].isin(["done", "failed"]).any()
            gravity = Gravity.WARNING if doubtful else Gravity.NOTE
            yield Caveat("left out", gravity, frozenset(left["path"]), numbers)


def _repeats(study: Study) -> Iterator[Caveat]:
    """Sizes with one repeat, and with two."""
    points = [(curve, point) for curve in study.curves for point in curve.points]
    few = [("one repeat", Gravity.WARNING), ("two repeats", Gravity.NOTE)]
    for repeats, (kind, gravity) in enumerate(few, 1):
        chosen = [each for each in points if len(each[1].runs) == repeats]
        rows = [row for curve, point in chosen for row in study.runs_of(curve, point)]
        if rows:
            numbers = {
                "count": len(chosen),
                "total": len(points),
                "measured": any(pd.isna(row["ingested"]) for row in rows),
                "within": max((_within_run(study, row) for row in rows), default=0.0),
            }
            forbids: frozenset[Subject] = frozenset({"cost ranking"} if repeats == 1 else ())
            yield Caveat(kind, gravity, _paths(rows), numbers, forbids)


def _within_run(study: Study, row: Mapping[str, Any]) -> float:
    """Half of the interval of a run's mean by its steps alone, as a share; 0 where it is unknown."""
    statistics = study.statistics.get(row["path"])
    return (statistics and statistics.within_run) or 0.0


def _paths(rows: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(str(row["path"]) for row in rows)


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
        self.runs = {point.shape: study.runs_of(curve, point) for point in curve.points}
        base, point = curve.base, compared_point(curve)
        self.pair = () if base is None or point is None else (base, point)

    def of_pair(self) -> list[list[dict[str, Any]]]:
        """Runs of both sizes; empty without a pair."""
        return [self.runs[point.shape] for point in self.pair]

    def values(self, column: str) -> dict[str, list[Point]]:
        """Sizes by the value of a column; those without a value are left out."""
        found: dict[str, list[Point]] = {}
        for point in self.curve.points:
            known = {str(row[column]) for row in self.runs[point.shape] if pd.notna(row[column])} - {""}
            if known:
                found.setdefault(", ".join(sorted(known)), []).append(point)
        return found

    def named(self, points: Iterable[Point]) -> str:
        """`1 node`, `2 and 4 nodes`."""
        counts = listed([str(point.size) for point in points])
        return f"{counts} {self.curve.unit}{'' if counts == '1' else 's'}"


def _differing(sizes: _Sizes) -> dict[str, dict[str, str]]:
    """Values, with the sizes that have them, of properties in which the runs of a curve differ."""
    columns = dict(ALIKE)
    processors = {
        row["cpu_count"] / row["ranks_per_node"]
        for runs in sizes.runs.values()
        for row in runs
        if pd.notna(row["cpu_count"])
    }
    if len(processors) > 1:  # a node with more ranks has more processors
        columns["cpu_count"] = "processors"
    values = {noun: sizes.values(column) for column, noun in columns.items()}
    return {
        noun: {value: sizes.named(points) for value, points in found.items()}
        for noun, found in values.items()
        if len(found) > 1
    }


def _other_program(sizes: _Sizes) -> dict[str, Any]:
    return {"reason": sizes.curve.other_program} if sizes.curve.other_program else {}


def _unlike_runs(sizes: _Sizes) -> dict[str, Any]:
    """Both sizes of the headline differ."""
    for column in ALIKE:
        for points in sizes.values(column).values():
            if sum(point in points for point in sizes.pair) == 1:
                return {"differing": _differing(sizes)}
    return {}


def _mixed_runs(sizes: _Sizes) -> dict[str, Any]:
    """Other sizes differ, or the processors."""
    found = {} if sizes.curve.other_program or _unlike_runs(sizes) else _differing(sizes)
    return {"differing": found} if found else {}


def _other_loss(sizes: _Sizes) -> dict[str, Any]:
    """Final losses of an exact training, which other numbers of ranks reproduce."""
    runs = sizes.of_pair()
    if not runs or not all(_is_exact(sizes.study.run(row["path"])) for row in [*runs[0], *runs[1]]):
        return {}
    means = losses_apart(*runs)
    return {"at": sizes.named(sizes.pair), "means": means} if means else {}


def losses_apart(
    base: Sequence[Mapping[str, Any]], point: Sequence[Mapping[str, Any]]
) -> tuple[float, float] | None:
    """Means of the final losses of two groups of runs if they differ at one global batch and number of
    steps."""
    if len({(row["global_batch_size"], row["steps"]) for row in (*base, *point)}) > 1:
        return None
    losses = [pd.Series([row["valid_loss"] for row in rows], dtype=float) for rows in (base, point)]
    means = float(losses[0].mean()), float(losses[1].mean())
    spread = max(0.0 if len(each) < 2 else float(each.std()) for each in losses)
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
    runs = _paths(row for rows in sizes.runs.values() for row in rows)
    label = sizes.curve.label if len(sizes.study.curves) > 1 else ""
    for kind, test, gravity, forbids in _OF_CURVE:
        if numbers := test(sizes):
            yield Caveat(kind, gravity, runs, {"curve": label, **numbers}, forbids)


def _of_sizes(sizes: _Sizes) -> Iterator[Caveat]:
    """Sizes whose steps are not stationary, and sizes whose repeats fall into two groups."""
    grouped = []
    moving = [point for point in sizes.curve.points if point.samples_per_s.basis == "not stationary"]
    rows = [row for point in moving for row in sizes.runs[point.shape]]
    known = [sizes.study.statistics[row["path"]] for row in rows if row["path"] in sizes.study.statistics]
    changed = [each for each in known if not each.stationarity.publishable]
    if changed:
        warmup = max(each.warmup for each in changed)
        numbers = {"at": sizes.named(moving), "reason": changed[0].stationarity.reason, "warmup": warmup}
        yield Caveat("not stationary", Gravity.GRAVE, _paths(rows), numbers, _NO_RATIO)
    for point in sizes.curve.points:
        means = two_groups([point.global_batch_size / rate for rate in point.samples_per_s_by_run])
        if means is not None:
            grouped.append((point, means))
    if grouped:
        rows = [row for point, _ in grouped for row in sizes.runs[point.shape]]
        numbers = {"at": sizes.named(point for point, _ in grouped), "means": grouped[-1][1]}
        yield Caveat("two groups", Gravity.GRAVE, _paths(rows), numbers, _NO_RATIO)
