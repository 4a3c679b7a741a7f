"""`predict`: what sizes would do that were not measured, from the runs of a sweep."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jobs.cli import options
from jobs.cli.options import above_zero, positive

if TYPE_CHECKING:
    from analysis.predict.basis import CurveForecast
    from analysis.predict.forecast import Basis, Forecast, Refusal

_HEAD = (
    "NODES",
    "STEP",
    "50 %",
    "90 %",
    "SAMPLES/S",
    "EFFICIENCY",
    "TIME AT MOST",
    "DEVICE-H",
    "OWN WORK",
    "EXPOSED",
    "WAITING",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        **options.SUBMISSION,
        predictions="each predicted size of each curve, or the reason for none",
        past="scores of earlier predictions of these curves",
    )
    options.value(parser, "sweep", "SWEEP", "measured sweep (the newest one)", nargs="?")
    text = "node counts to predict (2, 4 and 8 times the largest measured one)"
    options.value(parser, "--nodes", "N", text, nargs="+", type=positive, default=[])
    text = "the same in devices"
    options.value(parser, "--gpus", "N", text, nargs="+", type=positive, default=[])
    text = "devices of a node (those of the largest measured size)"
    options.value(parser, "--gpus-per-node", "N", text, type=positive)
    text = "predict with another parallel.ddp.bucket_mb, at least the measured one"
    options.value(parser, "--bucket-mb", "MIB", text, type=above_zero)
    text = "samples of a training: adds its time and device-hours"
    options.value(parser, "--samples", "N", text, type=above_zero)
    text = "name the cheapest size whose training ends within this time: 90min, 6h, 2d"
    options.value(parser, "--deadline", "TIME", text)
    text = "leave out the first N steps after each start, where the recorded warm-up is shorter"
    options.value(parser, "--warmup", "N", text, type=int, default=0)
    text = "measure collectives on the largest measured size in a job, which a replay of the step needs"
    options.flag(parser, "--calibrate", text)
    options.submission(parser)


def run(args: argparse.Namespace) -> int:
    if args.calibrate:
        return _calibrate(args)
    return _predict(args)


def _predict(args: argparse.Namespace) -> int:
    from analysis.predict import ledger
    from analysis.predict.basis import basis_of, forecast_curve
    from analysis.predict.forecast import Refusal, entry
    from analysis.read.load import load_runs
    from analysis.results.cost import seconds_of
    from analysis.study import make_study
    from disttrain.errors import ConfigError, message_of
    from jobs.cli.command_output import add_json, print_warning

    if args.deadline and args.samples is None:
        raise ConfigError("needs --samples, those of the training", at="--deadline")
    deadline_s = seconds_of(args.deadline) if args.deadline else None
    sweep = _sweep(args)
    study = make_study(load_runs([args.runs / sweep], warmup=args.warmup))
    if not study.curves:
        raise ConfigError("no run has finished", at=sweep)
    known = [*ledger.published(), *study.past_predictions]
    found, entries = [], []
    for curve in study.curves:
        basis = basis_of(curve, args.gpus_per_node)
        sizes = () if isinstance(basis, Refusal) else _sizes(args, basis)
        if args.bucket_mb and not isinstance(basis, Refusal):
            basis = _with_buckets(basis, args.bucket_mb)
        found.append(forecast_curve(curve, known, basis, sizes))
        if not isinstance(basis, Refusal) and not args.bucket_mb:  # no run of this sweep will have them
            entries += [entry(basis, each) for each in found[-1].made]
    print("\n\n".join(_text(each, args.samples, deadline_s) for each in found))
    if study.past_predictions:
        past = study.past_predictions
        inside = sum(score.inside for score in past)
        print(f"\nof {len(past)} earlier predictions measured since, {inside} lay in the 90 % interval")
    try:
        ledger.add(args.runs / ledger.FILE, entries)
    except OSError as error:  # the runs of another user
        print_warning(f"the predictions are not recorded: {message_of(error)}")
    add_json(predictions=[line for each in found for line in _json(each)], past=study.past_predictions)
    return 0


def _sweep(args: argparse.Namespace) -> str:
    from jobs.cli import selection
    from jobs.cli.report import newest_sweep

    return selection.find_sweep(args.runs, args.sweep) if args.sweep else newest_sweep(args.runs)


def _sizes(args: argparse.Namespace, basis: Basis) -> list[int]:
    """Nodes to predict, if named. Raises `ConfigError` for sizes that are measured or no full nodes."""
    from disttrain.errors import ConfigError

    largest = basis.largest
    parts = [count for count in args.gpus if count % basis.per_node]
    if parts:
        raise ConfigError(f"{parts[0]} is not a multiple of {basis.per_node} devices a node", at="--gpus")
    sizes = args.nodes + [count // basis.per_node for count in args.gpus]
    measured = [nodes for nodes in sizes if nodes <= largest.nodes]
    if measured:
        raise ConfigError(
            f"{measured[0]} is not above the largest measured size, {largest.nodes} nodes", at="--nodes"
        )
    return sorted(set(sizes))


def _with_buckets(basis: Basis, bucket_mb: float) -> Basis | Refusal:
    from dataclasses import replace

    from analysis.predict.forecast import Refusal
    from analysis.predict.replay import with_buckets

    if basis.lacks or basis.step is None or basis.is_blocking:
        return Refusal("--bucket-mb needs a replay of DDP", basis.lacks)
    try:
        return replace(basis, planned=with_buckets(basis.step, round(bucket_mb * 2**20)))
    except ValueError as error:
        return Refusal(f"--bucket-mb: {error}", "measure smaller buckets")


def _calibrate(args: argparse.Namespace) -> int:
    """Submit the job that measures collectives, with the device and the shape of the largest size."""
    from analysis.predict.basis import basis_of, calibration_of
    from analysis.predict.forecast import Basis
    from analysis.read.load import load_runs
    from analysis.results.curves import scaling_curves
    from disttrain.errors import ConfigError
    from jobs.cli import bench

    sweep = _sweep(args)
    curves = scaling_curves(load_runs([args.runs / sweep], warmup=args.warmup))
    bases = [(curve, basis_of(curve, args.gpus_per_node)) for curve in curves]
    usable = [(curve, basis) for curve, basis in bases if isinstance(basis, Basis)]
    if not usable:
        reasons = [f": {_sentence(basis)}" for _, basis in bases if not isinstance(basis, Basis)]
        raise ConfigError(f"no curve can be predicted{(*reasons, '')[0]}", at=sweep)
    run = usable[0][0].points[-1].runs[0]
    backend = run.metrics.backend if run.metrics else None
    steps = [basis.step for _, basis in usable if basis.step]
    most = max((each.bytes or 0 for step in steps for each in step.collectives), default=0)
    vars(args).update(
        verb="bench",
        name=args.name or calibration_of(sweep),
        nodes=[str(max(basis.largest.nodes for _, basis in usable))],
        gpus_per_node=[str(run.shape.ranks_per_node)] if run.shape else None,
        device="cpu" if backend == "gloo" else "cuda",
        backend=backend or "auto",
        max_mb=max(most / 2**20, 1.0),
        size_factor=2,
        rounds=15,
        width=64,
        layers=1,
        rows=1,
    )
    return bench.run(args)


def _text(found: CurveForecast, samples: float | None, deadline_s: float | None) -> str:
    """Title, table, and a line for each size without a prediction."""
    from analysis.predict.forecast import Refusal, replay_error
    from jobs.cli.formatting import table

    curve, basis = found.curve, found.basis
    if isinstance(basis, Refusal):
        return f"{curve.label}: not predicted: {_sentence(basis)}"
    sizes = ", ".join(str(size.nodes) for size in basis.sizes)
    lines = [f"{curve.label}: from {sizes} nodes" + (", emulated" if curve.emulated else "")]
    if found.made:
        lines.append(table(_HEAD, [_row(each, samples) for each in found.made], right=frozenset(_HEAD)))
    if any(each.parts for each in found.made):
        error = replay_error(basis)
        lines.append(f"check at {basis.largest.nodes} nodes: measured {error:+.1%} beside the replay")
    if samples and deadline_s:
        ends = [each for each in found.made if samples / each.samples_per_s * each.factor() <= deadline_s]
        cheapest = min(ends, key=lambda each: each.nodes / each.samples_per_s, default=None)
        lines.append(
            f"cheapest predicted size within the deadline: {cheapest.nodes} nodes"
            if cheapest
            else "no predicted size is within the deadline by the upper end of its 90 % interval"
        )
    missing = next((each.missing for each in found.made if each.missing), "")
    if missing:
        lines.append(f"by laws of the step time, with their errors on published curves; no replay: {missing}")
    for nodes, each in found.results:
        if isinstance(each, Refusal):
            lines.append(f"{nodes} nodes: not predicted: {_sentence(each)}")
    return "\n".join(lines)


def _row(each: Forecast, samples: float | None) -> list[str]:
    from jobs.cli.formatting import duration, number

    bounds = (f"{low * 1e3:.1f} to {high * 1e3:.1f} ms" for low, high in map(each.bounds, (50, 90)))
    seconds = (samples or 0) / each.samples_per_s
    return [
        str(each.nodes),
        f"{each.step_s * 1e3:.1f} ms",
        *bounds,
        number(each.samples_per_s),
        "" if each.efficiency is None else f"{each.efficiency:.1%}",
        duration(seconds * each.factor()) if samples else "",
        number(each.nodes * each.per_node * seconds / 3600, 3) if samples else "",
        *([f"{part * 1e3:.1f} ms" for part in each.parts.values()] or ["", "", ""]),
    ]


def _sentence(refusal: Refusal) -> str:
    return f"{refusal.reason}; {refusal.remedy}" if refusal.remedy else refusal.reason


def _json(found: CurveForecast) -> list[dict[str, Any]]:
    """A line for each size, or one for a curve without a prediction."""
    from dataclasses import asdict

    from analysis.predict.forecast import Refusal

    names = {"sweep": found.curve.sweep, "curve": found.curve.label}
    if isinstance(found.basis, Refusal):
        return [{**names, "nodes": None, **asdict(found.basis)}]
    return [{**names, "nodes": nodes, **asdict(each)} for nodes, each in found.results]
