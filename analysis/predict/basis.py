"""What the records of a curve offer for predictions, or why there can be none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from analysis.predict import ledger
from analysis.predict.forecast import NEXT_SIZES, Basis, Forecast, Refusal, Size, forecast
from analysis.predict.ring import RingTimes, ring_times
from analysis.read.profiled import ProfiledStep, profiled_step
from analysis.read.record import read_record
from analysis.results.curves import Curve, Point
from disttrain.records.comm_bench import CommBench

FALL = 0.05
"""A step time that falls by more than this share from a size to a larger one makes no curve."""
_BLOCKING = ("fsdp", "hsdp")
"""Strategies whose collectives hide nothing on CPUs."""
_COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter"}


def basis_of(curve: Curve, per_node: int | None = None) -> Basis | Refusal:
    """What predictions of a curve start from.

    Args:
        per_node: devices of a node; by default those of the largest measured size.
    """
    per_node = per_node or curve.points[-1].per_node
    points = [point for point in curve.points if point.per_node == per_node]
    if refusal := _refusal(curve, points, per_node):
        return refusal
    largest = points[-1]
    several = next(point for point in points if point.nodes > 1)
    step = next(filter(None, (profiled_step(run.attempts, []) for run in several.runs)), None)
    ring = _ring(largest)
    base = curve.base
    return Basis(
        key=ledger.curve_key(curve),
        sizes=tuple(_size(point) for point in points),
        per_node=per_node,
        samples=largest.global_batch_size / largest.nodes,
        base_rate=base.samples_per_s.value / base.size if base else None,
        efficiency=largest.efficiency.value if largest.efficiency else None,
        step=step,
        step_nodes=several.nodes,
        is_blocking=_strategy(largest) in _BLOCKING,
        ring=ring,
        lacks=_lacks(largest, step, ring),
    )


def _refusal(curve: Curve, points: Sequence[Point], per_node: int) -> Refusal | None:
    if curve.other_program:
        return Refusal(curve.other_program, "compare runs of one program")
    if len(points) < 2 or points[-1].nodes < 2:
        sizes = (
            "one size was" if len(curve.points) == 1 else f"no two sizes with {per_node} devices a node were"
        )
        return Refusal(f"{sizes} measured", "measure 1, 2 and 4 nodes")
    if any(point.basis == "not stationary" for point in points):
        return Refusal("the steps of a run are not stationary", "run longer, or predict --warmup N")
    if any(metrics.oversubscribed for point in points for metrics in point.metrics):
        return Refusal("ranks share the processors of one machine", "give each rank processors of its own")
    if len({point.global_batch_size // point.size for point in points}) > 1:
        reason = "the batch of a rank changes with the size, and its compute at other batches is not measured"
        return Refusal(reason, "a sweep with scaling: weak")
    for one, larger in itertools.pairwise(points):
        if larger.step_s.value < one.step_s.value * (1 - FALL):
            reason = f"a step on {larger.nodes} nodes is shorter than one on {one.nodes}"
            return Refusal(reason, "repeat the runs")
    return None


def _size(point: Point) -> Size:
    wait_s, transfer_s = (point.composition.get(name) for name in ("comm_wait_s", "comm_transfer_s"))
    return Size(point.nodes, point.step_s.value, wait_s, transfer_s, point.samples_per_s_by_run)


def _strategy(point: Point) -> str | None:
    return next((metrics.strategy for metrics in point.metrics), None)


def _lacks(point: Point, step: ProfiledStep | None, ring: RingTimes | None) -> str:
    """What a replay of these runs lacks; empty where it has all."""
    strategy, emulated = _strategy(point), point.runs[0].emulated
    if strategy not in ("ddp", *_BLOCKING):
        return f"no replay of strategy {strategy}" if strategy else "runs without telemetry"
    if strategy in _BLOCKING and not emulated and any(each.device != "cpu" for each in point.metrics):
        return "no replay of sharded steps on GPUs"
    if point.composition.get("comm_transfer_s") is None:
        return "runs without telemetry"
    if step is None:
        return "no profiled step (telemetry.profiled_steps)"
    if {each.kind for each in step.collectives} - _COLLECTIVES:
        return f"a replay knows {', '.join(sorted(_COLLECTIVES))} alone"
    if any(each.bytes is None or each.ranks is None for each in step.collectives):
        return "collectives of unknown size"
    return "" if ring else "no measured collectives; predict --calibrate measures them"


def _ring(point: Point) -> RingTimes | None:
    """Of the benchmark on most nodes with the backend and the ranks a node of these runs, in the sweep of the
    calibration or in `comm-bench` beside theirs; None without one."""
    run = point.runs[0]
    if run.shape is None or run.metrics is None:
        return None
    names = (calibration_of(run.sweep), "comm-bench")
    files = [
        file for name in names for file in run.folder.path.parent.with_name(name).glob("*/comm-bench.json")
    ]
    alike = [
        record
        for record in (read_record(file, CommBench)[0] for file in files)
        if record
        and record.nodes > 1
        and (record.backend, record.ranks_per_node) == (run.metrics.backend, run.shape.ranks_per_node)
    ]
    return ring_times(max(alike, key=lambda record: record.nodes)) if alike else None


def calibration_of(sweep: str) -> str:
    """Name of the sweep whose run measures collectives for predictions of another sweep."""
    return f"{sweep}-calibration"


class CurveForecast(NamedTuple):
    """Predictions of a curve; of one that cannot be predicted, `basis` is the reason."""

    curve: Curve
    basis: Basis | Refusal
    results: Sequence[tuple[int, Forecast | Refusal]]
    """By number of nodes."""

    @property
    def made(self) -> list[Forecast]:
        return [each for _, each in self.results if not isinstance(each, Refusal)]


def forecast_curve(
    curve: Curve,
    known: Sequence[ledger.Score] = (),
    basis: Basis | Refusal | None = None,
    sizes: Sequence[int] = (),
) -> CurveForecast:
    """Predictions of a curve at `sizes` in nodes, by default `NEXT_SIZES`."""
    basis = basis or basis_of(curve)
    if isinstance(basis, Refusal):
        return CurveForecast(curve, basis, ())
    sizes = sizes or [basis.largest.nodes * ratio for ratio in NEXT_SIZES]
    return CurveForecast(curve, basis, [(nodes, forecast(basis, nodes, known)) for nodes in sizes])
