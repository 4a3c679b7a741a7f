"""Scaling curves: throughput, speed-up and efficiency of groups of runs against a base.

X is the throughput (samples/s), N the number of devices, N0 that of the base, however they are placed on
nodes. A device is a GPU, or a rank on CPUs and in emulated runs; the rank of `dp` has all GPUs of its node:

    speed-up    S(N) = X(N) / X(N0)
    efficiency  E(N) = S(N) * N0 / N

The formula holds for weak and strong scaling: with b samples per device and step and step time T = b N / X,
E(N) = w T(N0) / T(N), where w = b(N) / b(N0) is 1 for weak and N0 / N for strong scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

import numpy as np

from analysis.read.axes import swept_values
from analysis.read.differences import program_of
from analysis.read.run import Run, value_at
from analysis.results.phases import Phases, losses, partition
from analysis.stats.estimates import Basis, Estimate, geometric_mean, on_basis, ratio, share_mean
from analysis.step_statistics import RunStatistics
from analysis.units import plural
from disttrain.errors import ConfigError
from disttrain.records.metrics import Metrics
from disttrain.records.planned import parse_size
from disttrain.records.steps import PHASES

Scaling = Literal["weak", "strong", "mixed", "one size"]
Unit = Literal["GPU", "rank"]
EQUAL = 1e-9
"""Largest relative difference of repeats that are equal: measured ones differ by more."""
_SHAPE = {"resources.nodes", "resources.gpus_per_node"}


@dataclass(frozen=True)
class Point:
    """All repeats of one group at one size and shape."""

    size: int
    """Devices: GPUs or ranks, as `Curve.unit` says; more than `world_size` for `dp`."""
    nodes: int
    per_node: int
    """Devices of a node."""
    world_size: int
    local_batch_size: int
    accumulation: int
    global_batch_size: int
    runs: tuple[Run, ...]
    """One for each repeat."""
    samples_per_s: Estimate
    """Geometric mean over repeats of each run's ratio of sums."""
    samples_per_s_by_run: tuple[float, ...]
    step_s: Estimate
    tokens_per_s: float | None
    phases: Phases
    composition: dict[str, float | None]
    """Seconds of `step_s` in each phase; null if not measured. The phases sum to `step_s.value`."""
    peak_memory_bytes: int | None
    is_base: bool = False
    """Whether speed-up and efficiency of the curve refer to this point."""
    speedup: Estimate | None = None
    """Against the curve's base; null without a base."""
    efficiency: Estimate | None = None
    loss_by_phase: dict[str, float] | None = None
    """Share of the step that each phase takes beyond the base; the shares sum to 1 - efficiency."""

    @property
    def basis(self) -> Basis:
        """Of the intervals of all means of steps."""
        return self.samples_per_s.basis

    @cached_property
    def metrics(self) -> list[Metrics]:
        """Of each repeat."""
        return [run.metrics for run in self.runs if run.metrics]

    @cached_property
    def paths(self) -> frozenset[str]:
        """Of the runs."""
        return frozenset(run.path for run in self.runs)

    @property
    def shape(self) -> str:
        """`2x8`: nodes and devices of a node."""
        return f"{self.nodes}x{self.per_node}"

    def work_ratio(self, base: Point) -> float:
        """Samples per device and step / those of `base`."""
        return (self.global_batch_size / self.size) / (base.global_batch_size / base.size)


@dataclass(frozen=True)
class Curve:
    """Runs that differ only in size, shape and repeat."""

    sweep: str
    label: str
    """The swept keys in which this curve differs from others, or the name of the sweep."""
    axes: dict[str, Any]
    unit: Unit
    """Unit of `Point.size`."""
    scaling: Scaling
    """By batch sizes: weak keeps the samples per device and step, strong keeps the global batch."""
    points: tuple[Point, ...]
    """Smallest first; of one size, the shape with the fewest nodes is the last."""
    emulated: bool = False
    """Runs whose ranks waited in place of compute or loading; they share no curve with real runs."""
    other_program: str = ""
    """How the programs of its sizes differ; such a curve has no base and no line."""

    @property
    def base(self) -> Point | None:
        return next((point for point in self.points if point.is_base), None)

    @property
    def line(self) -> list[Point]:
        """One point a size, that with the fewest nodes; the others stand beside the line."""
        return list({point.size: point for point in self.points}.values())

    @property
    def node_size(self) -> int | None:
        """Devices of a full node, where the curve goes on from one node to several."""
        size = max(point.per_node for point in self.points)
        grows = {point.nodes == 1 for point in self.points} == {True, False}
        return size if grows and size > 1 else None

    def at(self, size: dict[str, int]) -> Point | None:
        """The point of a size (`disttrain.records.planned.parse_size`), with the fullest nodes."""
        known = [point for point in self.points if all(getattr(point, k) == v for k, v in size.items())]
        return max(known, key=lambda point: point.per_node, default=None)

    def only_difference(self, other: Curve) -> str | None:
        """The one key of the axes in which two curves of a sweep differ; None for none or several."""
        axes = self.axes | other.axes
        keys = [key for key in axes if self.axes.get(key) != other.axes.get(key)]
        same = (self.sweep, self.emulated) == (other.sweep, other.emulated)
        return keys[0] if same and len(keys) == 1 else None

    def name(self, point: Point) -> str:
        """`16 GPUs`; `16 GPUs (2x8)` beside another shape of this size."""
        others = [other for other in self.points if other.size == point.size]
        return plural(point.size, self.unit) + (f" ({point.shape})" if len(others) > 1 else "")


def measured(point: Point, path: str) -> list[Any]:
    """A figure of `metrics.json` in each repeat, as `gpu.power_mean_w`; None where it was not measured."""
    return [value_at(metrics, path) for metrics in point.metrics]


def metric(path: str) -> Callable[[Any], Estimate | None]:
    """The function of a point that gives the mean of `measured`."""
    return lambda point: over_repeats(point, measured(point, path))


def phase_s(*names: str) -> Callable[[Any], Estimate | None]:
    """The function of a point that gives the seconds of a step in these phases together."""
    return lambda point: point.phases.mean_s(*names)


def over_repeats(point: Point, values: Iterable[float | None]) -> Estimate | None:
    """Mean of a quantity of at least 0 over the repeats that measured it; None without any.

    The point has the basis of its interval.
    """
    known = [value for value in values if value is not None]
    return of_steps(point, share_mean(known)) if known else None


def of_steps(point: Point, estimate: Estimate) -> Estimate:
    """The estimate, without its interval where the throughput of the point has none."""
    return on_basis(estimate, point.basis)


def scaling_curves(
    runs: Sequence[Run], base: str | None = None, statistics: RunStatistics | None = None
) -> list[Curve]:
    """Curves of the runs that are included.

    Args:
        base: the size to compare with (`disttrain.records.planned.parse_size`), or a run of that size; each
            curve's smallest by default. Of several shapes, that with the most devices a node.
        statistics: of the steps of the runs. A size with a run that is not stationary then has no interval,
            and the noise floor of waiting is transfer (`analysis.results.phases`).

    Raises:
        ConfigError: no curve has the base.
    """
    values = swept_values(runs)
    by_sweep: dict[str, list[Run]] = {}
    for run in runs:
        if run.included:
            by_sweep.setdefault(run.sweep, []).append(run)
    curves = []
    for sweep, of_sweep in sorted(by_sweep.items()):
        axes = [values[run.path] for run in of_sweep]
        keys = [key for key in axes[0] if key not in _SHAPE and any(each[key] is not None for each in axes)]
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run, each in zip(of_sweep, axes, strict=True):
            groups.setdefault((run.emulated, *(each[key] for key in keys)), []).append(run)
        for emulated, *of_group in sorted(groups, key=lambda group: [*map(_sortable, group)]):
            group = groups[emulated, *of_group]
            curves.append(_curve(sweep, dict(zip(keys, of_group, strict=True)), group, statistics or {}))
    size = None if base is None else _base_size(curves, base)
    return [_with_base(curve, size) for curve in labelled(curves)]


def _sortable(value: Any) -> tuple[bool, bool, Any]:
    """Numbers before texts, and no value last."""
    return value is None, isinstance(value, str), 0 if value is None else value


def rate_ratio(point: Point, base: Point) -> Estimate:
    """Throughput of `point` / throughput of `base`, with an interval where both have one."""
    return of_steps(point, of_steps(base, ratio(point.samples_per_s_by_run, base.samples_per_s_by_run)))


def _curve(sweep: str, axes: dict[str, Any], runs: Sequence[Run], statistics: RunStatistics) -> Curve:
    by_size: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        if run.metrics and run.devices:
            by_size.setdefault((run.devices, -run.metrics.nodes), []).append(run)
    points = [_point(by_size[size], statistics) for size in sorted(by_size)]
    emulated = runs[0].emulated
    no_gpu = any(metrics.device in ("cpu", "unknown") for point in points for metrics in point.metrics)
    unit: Unit = "rank" if emulated or no_gpu else "GPU"
    other = _other_program(points, unit)
    return Curve(sweep, sweep, axes, unit, _scaling(points), tuple(points), emulated, other)


def _scaling(points: Sequence[Point]) -> Scaling:
    if len({point.size for point in points}) < 2:
        return "one size"
    if len({point.global_batch_size // point.size for point in points}) == 1:
        return "weak"
    return "strong" if len({point.global_batch_size for point in points}) == 1 else "mixed"


def _other_program(points: Sequence[Point], unit: Unit) -> str:
    """The first two sizes whose runs differ in command, model, data or dtype, and in which; else empty."""
    programs: dict[str, dict[int, Any]] = {}
    for point in points:
        for name, value in (item for run in point.runs for item in program_of(run).items()):
            programs.setdefault(name, {}).setdefault(point.size, value)
            first, known = next(iter(programs[name].items()))
            if value != known:
                sizes = f"at {first} and {plural(point.size, unit)}" if first != point.size else "of one size"
                return f"runs {sizes} differ in {name}"
    return ""


def _point(runs: Sequence[Run], statistics: RunStatistics) -> Point:
    repeats = [run.metrics for run in runs if run.metrics]
    first, devices = repeats[0], runs[0].devices or 0
    rates = np.array([each.samples_per_s for each in repeats], dtype=np.float64)
    paths = [run.path for run in runs]
    basis: Basis = "repeats"
    if not all(statistics[path].stationarity.publishable for path in paths if path in statistics):
        basis = "not stationary"
    elif len(rates) > 1 and np.allclose(rates, rates[0], rtol=EQUAL, atol=0):
        basis = "equal repeats"
    rate = on_basis(geometric_mean(rates), basis)
    phases = partition(
        first.global_batch_size / rates,
        {name: np.array([each.composition.get(name) for each in repeats], dtype=float) for name in PHASES},
        [each.ranks.floor_s if each and each.ranks else None for each in map(statistics.get, paths)],
        basis=basis,
    )
    tokens = [
        each.tokens_per_s / each.samples_per_s for each in repeats if each.tokens_per_s and each.samples_per_s
    ]
    return Point(
        size=devices,
        nodes=first.nodes,
        per_node=devices // first.nodes,
        world_size=first.world_size,
        local_batch_size=first.local_batch_size,
        accumulation=first.accumulation,
        global_batch_size=first.global_batch_size,
        runs=tuple(runs),
        samples_per_s=rate,
        samples_per_s_by_run=tuple(rates.tolist()),
        step_s=rate.inverse(first.global_batch_size),
        tokens_per_s=fmean(tokens) * rate.value if tokens else None,
        phases=phases,
        composition={name: mean.value if (mean := phases.mean_s(name)) else None for name in PHASES},
        peak_memory_bytes=max(
            (each.peak_memory_bytes for each in repeats if each.peak_memory_bytes), default=None
        ),
    )


def _base_size(curves: Sequence[Curve], base: str) -> dict[str, int]:
    """The size that `base` names."""
    points = [point for curve in curves for point in curve.points]
    of_run = next((point for point in points if base in {run.name for run in point.runs}), None)
    size = {"nodes": of_run.nodes, "size": of_run.size} if of_run else parse_size(base)
    if size is None or not any(curve.at(size) for curve in curves):
        sizes = sorted({(point.size, point.shape) for point in points})
        known = ", ".join(f"{size} ({shape})" for size, shape in sizes) or "none: no run has finished"
        raise ConfigError(f"base={base!r} names no finished run and no measured size; sizes: {known}")
    return size


def _with_base(curve: Curve, size: dict[str, int] | None) -> Curve:
    if curve.other_program:
        return curve
    base = curve.at(size or {"size": curve.points[0].size})
    if base is None:
        return curve
    return replace(curve, points=tuple(_compared(point, base) for point in curve.points))


def _compared(point: Point, base: Point) -> Point:
    if point is base:  # one by definition, with no uncertainty from its own spread
        one = Estimate(1.0, 1.0, 1.0, 0)
        return replace(
            point, is_base=True, speedup=one, efficiency=one, loss_by_phase=dict.fromkeys(PHASES, 0.0)
        )
    speedup = rate_ratio(point, base)
    efficiency = speedup.scaled(base.size / point.size)
    return replace(point, speedup=speedup, efficiency=efficiency, loss_by_phase=loss_by_phase(point, base))


def loss_by_phase(point: Point, base: Point) -> dict[str, float] | None:
    """Share of the point's step that each phase takes beyond the prediction of the base.

    Phases partition the step, so the shares sum to 1 - efficiency. A negative share is a gain. A phase that
    is null counts as zero seconds.
    """
    if not (point.phases.known and base.phases.known):
        return None
    parts = losses(point.phases, base.phases, point.work_ratio(base))
    return dict.fromkeys(PHASES, 0.0) | {part.name: part.share.value for part in parts}


def labelled(curves: Sequence[Curve]) -> list[Curve]:
    """Label each curve by the keys in which the curves differ."""
    keys = sorted({key for curve in curves for key in curve.axes})
    differing = [key for key in keys if len({str(curve.axes.get(key)) for curve in curves}) > 1]
    short = [_short_key(key) for key in differing]
    names = {k: k if short.count(word) > 1 else word for k, word in zip(differing, short, strict=True)}
    several = len({curve.sweep for curve in curves}) > 1
    both = len({curve.emulated for curve in curves}) > 1
    labelled = []
    for curve in curves:
        parts = [curve.sweep] if several else []
        parts += [f"{names[key]} {curve.axes[key]}" for key in differing if key in curve.axes]
        parts += [("emulated" if curve.emulated else "real")] if both else []
        labelled.append(replace(curve, label=", ".join(parts) or curve.sweep))
    return labelled


def _short_key(key: str) -> str:
    """`strategy` for `parallel.strategy`, but `model` for `model.kind` and `model.name`."""
    section, _, leaf = key.rpartition(".")
    return section if leaf in ("kind", "name") else leaf
