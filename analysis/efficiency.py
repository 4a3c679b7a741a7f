"""Scaling curves: throughput, speed-up and efficiency of groups of runs against a base.

X is the throughput (samples/s), N the number of devices, N0 that of the base. Each rank has one device;
the one rank of `dp` has all GPUs of its node:

    speed-up    S(N) = X(N) / X(N0)
    efficiency  E(N) = S(N) * N0 / N

The formula holds for weak and strong scaling: with b samples per rank and step and step time T = b N / X,
E(N) = w T(N0) / T(N), where w = b(N) / b(N0) is 1 for weak and N0 / N for strong scaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.read.differences import program_of
from analysis.read.run_table import swept_keys
from analysis.results.phases import Phases, partition
from analysis.stats.estimates import (
    Estimate,
    geometric_mean,
    not_stationary,
    ratio,
)
from analysis.step_statistics import RunStatistics
from analysis.units import plural
from disttrain.errors import ConfigError
from disttrain.records.steps import PHASES

Scaling = Literal["weak", "strong", "mixed", "one size"]
Unit = Literal["node", "rank"]


@dataclass(frozen=True)
class Point:
    """All repeats of one group at one size."""

    size: int
    """Nodes or devices, as `Curve.unit` says."""
    nodes: int
    ranks_per_node: int
    world_size: int
    devices: int
    """GPUs, or ranks without GPUs; more than `world_size` for `dp`."""
    local_batch_size: int
    accumulation: int
    global_batch_size: int
    runs: tuple[str, ...]
    """Run names, one for each repeat."""
    samples_per_s: Estimate
    """Geometric mean over repeats of each run's ratio of sums."""
    samples_per_s_by_run: tuple[float, ...]
    step_s: Estimate
    tokens_per_s: float | None
    phases: Phases
    composition: dict[str, float | None]
    """Seconds of `step_s` in each phase; null if not measured. The phases sum to `step_s.value`."""
    peak_memory_bytes: int | None
    speedup: Estimate | None = None
    """Against the curve's base; null without a base."""
    efficiency: Estimate | None = None
    loss_by_phase: dict[str, float] | None = None
    """Share of the step that each phase takes beyond the base; the shares sum to 1 - efficiency."""

    def work_ratio(self, base: Point) -> float:
        """Samples per device and step / those of `base`."""
        return (self.global_batch_size / self.devices) / (base.global_batch_size / base.devices)


@dataclass(frozen=True)
class Curve:
    """Runs that differ only in size and repeat."""

    sweep: str
    label: str
    """The swept keys in which this curve differs from others, or the name of the sweep."""
    axes: dict[str, Any]
    unit: Unit
    """Unit of `Point.size`."""
    scaling: Scaling
    """By batch sizes: weak keeps the samples per rank and step, strong keeps the global batch."""
    base_size: int | None
    """Size that speed-up and efficiency refer to; null if this curve has no such point."""
    points: tuple[Point, ...]
    """Smallest first."""
    emulated: bool = False
    """Runs whose ranks waited in place of compute or loading; they share no curve with real runs."""
    other_program: str = ""
    """How the programs of its sizes differ; such a curve has no base and no line."""

    @property
    def base(self) -> Point | None:
        return next((point for point in self.points if point.size == self.base_size), None)


def scaling_curves(
    table: pd.DataFrame, base: str | None = None, statistics: RunStatistics | None = None
) -> list[Curve]:
    """Curves of the included runs in the table of `load.load`.

    Args:
        base: the size to compare with, as a size (`2`, `n2`) or a run of that size; each curve's smallest by
            default.
        statistics: of the steps of the runs. A size with a run that is not stationary then has no interval.

    Raises:
        ConfigError: no curve has the base.
    """
    included = table[table["included"]]
    curves: list[Curve] = []
    for sweep, runs in included.groupby("sweep"):
        unit: Unit = "node" if runs["nodes"].nunique() > 1 or runs["devices"].nunique() == 1 else "rank"
        size_keys = {"resources.nodes"} | ({"resources.gpus_per_node"} if unit == "rank" else set())
        keys = [key for key in swept_keys(table) if key not in size_keys and runs[key].notna().any()]
        for (emulated, *values), group in runs.groupby(["emulated", *keys], sort=True, dropna=False):
            axes = {key: _plain(value) for key, value in zip(keys, values, strict=True)}
            curve = _curve(str(sweep), axes, unit, group, statistics or {})
            curves.append(replace(curve, emulated=bool(emulated)))
    wanted = _wanted_size(curves, base)
    return [_with_base(curve, wanted) for curve in _labelled(curves)]


def detect_scaling(points: Sequence[Point]) -> Scaling:
    """Weak, strong or mixed scaling, by batch sizes."""
    if len(points) < 2:
        return "one size"
    if len({point.global_batch_size // point.devices for point in points}) == 1:
        return "weak"
    return "strong" if len({point.global_batch_size for point in points}) == 1 else "mixed"


def rate_ratio(point: Point, base: Point) -> Estimate:
    """Throughput of `point` / throughput of `base`.

    A side that is not stationary leaves no interval.
    """
    found = ratio(point.samples_per_s_by_run, base.samples_per_s_by_run)
    moving = "not stationary" in (point.samples_per_s.basis, base.samples_per_s.basis)
    return not_stationary(found) if moving else found


def as_table(curves: Sequence[Curve]) -> pd.DataFrame:
    """The numbers of the report's scaling table, one row a point."""
    rows = []
    for curve in curves:
        for point in curve.points:
            row: dict[str, Any] = {
                "curve": curve.label,
                "emulated": curve.emulated,
                "scaling": curve.scaling,
                "base_size": curve.base_size,
            }
            row |= {"nodes": point.nodes, "ranks": point.world_size, "repeats": len(point.runs)}
            row |= {"global_batch_size": point.global_batch_size}
            for name in ("samples_per_s", "step_s", "speedup", "efficiency"):
                estimate: Estimate | None = getattr(point, name)
                row[name] = estimate.value if estimate else None
                row[f"{name}_low"] = estimate.low if estimate else None
                row[f"{name}_high"] = estimate.high if estimate else None
            rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()


def _curve(
    sweep: str, axes: dict[str, Any], unit: Unit, group: pd.DataFrame, statistics: RunStatistics
) -> Curve:
    column = "nodes" if unit == "node" else "devices"
    points = tuple(_point(int(size), runs, statistics) for size, runs in group.groupby(column, sort=True))
    other = _other_program(points, unit, group)
    return Curve(sweep, sweep, axes, unit, detect_scaling(points), None, points, other_program=other)


def _other_program(points: Sequence[Point], unit: Unit, group: pd.DataFrame) -> str:
    """The first two sizes whose runs differ in command, model, data or dtype, and in which; else empty."""
    programs: dict[str, dict[int, Any]] = {}
    rows = {row["run"]: row for row in group.to_dict("records")}
    for point in points:
        for name, value in (item for run in point.runs for item in program_of(rows[run]).items()):
            programs.setdefault(name, {}).setdefault(point.size, value)
            first, known = next(iter(programs[name].items()))
            if value != known:
                sizes = f"at {first} and {plural(point.size, unit)}" if first != point.size else "of one size"
                return f"runs {sizes} differ in {name}"
    return ""


def _point(size: int, runs: pd.DataFrame, statistics: RunStatistics) -> Point:
    first = runs.iloc[0]
    rates = runs["samples_per_s"].to_numpy(dtype=np.float64)
    rate = geometric_mean(rates)
    if not all(statistics[path].stationarity.publishable for path in runs["path"] if path in statistics):
        rate = not_stationary(rate)
    global_batch = int(first["global_batch_size"])
    stationary = rate.basis != "not stationary"
    phases = partition(
        global_batch / rates,
        {name: runs[name].to_numpy(np.float64, na_value=np.nan) for name in PHASES},
        stationary=stationary,
    )
    per_sample = (runs["tokens_per_s"] / runs["samples_per_s"]).mean()
    memory = runs["peak_memory_bytes"].max()
    return Point(
        size=size,
        nodes=int(first["nodes"]),
        ranks_per_node=int(first["ranks_per_node"]),
        world_size=int(first["world_size"]),
        devices=int(first["devices"]),
        local_batch_size=int(first["local_batch_size"]),
        accumulation=int(first["accumulation"]),
        global_batch_size=global_batch,
        runs=tuple(runs["run"]),
        samples_per_s=rate,
        samples_per_s_by_run=tuple(float(value) for value in rates),
        step_s=rate.inverse(global_batch),
        tokens_per_s=None if pd.isna(per_sample) else float(per_sample) * rate.value,
        phases=phases,
        composition=phases.composition(PHASES),
        peak_memory_bytes=None if pd.isna(memory) else int(memory),
    )


def _with_base(curve: Curve, wanted: int | None) -> Curve:
    if curve.other_program:
        return curve
    curve = replace(curve, base_size=curve.points[0].size if wanted is None else wanted)
    base = curve.base
    if base is None:
        return replace(curve, base_size=None)
    return replace(curve, points=tuple(_compared(point, base) for point in curve.points))


def _compared(point: Point, base: Point) -> Point:
    if point is base:  # one by definition, with no uncertainty from its own spread
        one = Estimate(1.0, None, None, len(base.runs))
        return replace(point, speedup=one, efficiency=one, loss_by_phase=dict.fromkeys(PHASES, 0.0))
    speedup = rate_ratio(point, base)
    efficiency = speedup.scaled(base.devices / point.devices)
    return replace(point, speedup=speedup, efficiency=efficiency, loss_by_phase=loss_by_phase(point, base))


def with_floors(curve: Curve, floors_s: Mapping[tuple[str, ...], NDArray[np.float64]]) -> Curve:
    """The curve with the noise floor of waiting as transfer in the phases of its points.

    Args:
        floors_s: by `Point.runs`, seconds of each repeat; points that are missing stay as they are.
    """
    points = []
    for point in curve.points:
        if (floor_s := floors_s.get(point.runs)) is not None:
            phases = point.phases.with_floor(floor_s)
            point = replace(point, phases=phases, composition=phases.composition(PHASES))
        points.append(point)
    base = next((point for point in points if point.size == curve.base_size), None)
    others = (
        point
        if base is None or point is base or point.loss_by_phase is None
        else replace(point, loss_by_phase=loss_by_phase(point, base))
        for point in points
    )
    return replace(curve, points=tuple(others))


def loss_by_phase(point: Point, base: Point) -> dict[str, float] | None:
    """Share of the point's step that each phase takes beyond the prediction of the base.

    Phases partition the step, so the shares sum to 1 - efficiency. A negative share is a gain. A phase that
    is null counts as zero seconds.
    """
    work = point.work_ratio(base)
    step_s = sum(value or 0.0 for value in point.composition.values())
    if not step_s or not any(base.composition.values()):
        return None
    return {
        name: ((point.composition[name] or 0.0) - work * (base.composition[name] or 0.0)) / step_s
        for name in PHASES
    }


def _wanted_size(curves: Sequence[Curve], base: str | None) -> int | None:
    if base is None:
        return None
    sizes = sorted({point.size for curve in curves for point in curve.points})
    named = {run: point.size for curve in curves for point in curve.points for run in point.runs}
    named |= {text: size for size in sizes for text in (str(size), f"n{size}")}
    if base not in named:
        known = ", ".join(str(size) for size in sizes) or "none: no run has finished"
        raise ConfigError(f"base={base!r} names no finished run and no measured size; sizes: {known}")
    return named[base]


def _labelled(curves: Sequence[Curve]) -> list[Curve]:
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


def _plain(value: Any) -> Any:
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
