"""`emulate`: write the layer table of a measured run, which a model of kind `emulated` replays."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from disttrain.emulation.table import Layer, Table
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_text
from disttrain.records.layers import Layers
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from jobs.cli import run_lookup
from jobs.cli.command_output import add_json, print_warning
from jobs.cli.formatting import number
from jobs.cli.submitting import read_states

_WARN_SCALE = 1.5
"""A warning is printed when steps computed longer than the timed layers by more than this factor."""


def run(args: argparse.Namespace) -> int:
    found = run_lookup.find_run(args.runs, args.from_run)
    layers, metrics = _read_measurements(found)
    scale = scale_of(layers, metrics, run_lookup.run_label(found))
    table = table_of(layers, metrics, run_lookup.run_label(found))
    out = args.out or Path(f"{found.name}-table.yaml")
    write_table(table, out)
    if scale > _WARN_SCALE:
        print_warning(
            f"the steps computed {number(scale, 3)} times as long as the isolated layer passes, because "
            "ranks shared processors or caches were cold; times of single layers are less certain"
        )
    if args.json:
        add_json(read_states([found]), path=str(out), scale=scale, table=table.model_dump(mode="json"))
        return 0
    print(
        f"wrote {out}: {len(table.layers)} layers, {number(table.bytes / 2**20)} MiB, "
        f"{number(table.forward_s)} s forward, {number(table.backward_s)} s backward and "
        f"{number(table.input_s)} s of input for {table.samples} samples, "
        f"{number(table.optimizer_s)} s of the optimizer"
    )
    print(f"layer times are scaled by {number(scale)} to sum to the compute time of the measured steps")
    print(
        f"run it:  python submit.py run sweeps/emulated.yaml --name NAME "
        f"--set model.table={out} {_same_settings(metrics)}"
    )
    return 0


def scale_of(layers: Layers, metrics: Metrics, label: str) -> float:
    """Compute time of a measured step, per micro-batch, divided by that of the timed layer passes.

    Raises `ConfigError` when no step was measured.
    """
    compute_s = metrics.composition["compute_s"]
    timed_s = sum(layer.forward_s + layer.backward_s for layer in layers.layers)
    if not compute_s or not timed_s:
        raise ConfigError(f"{label} has no measured steps: set train.steps above telemetry.warmup_steps")
    return compute_s / metrics.accumulation / timed_s


def table_of(layers: Layers, metrics: Metrics, label: str) -> Table:
    """The layer table of a measured run. Times are seconds per micro-batch.

    The timed layer passes, with hooks on each layer, determine the division of time among layers. The
    measured steps determine the sums: mean compute, input wait and optimizer time.
    """
    scale, composition = scale_of(layers, metrics, label), metrics.composition
    return Table(
        layers=tuple(
            Layer(
                name=layer.name or "model",
                bytes=layer.bytes,
                forward_s=layer.forward_s * scale,
                backward_s=layer.backward_s * scale,
            )
            for layer in layers.layers
        ),
        samples=layers.samples,
        dtype_bytes=layers.dtype_bytes,
        optimizer_s=composition["optimizer_s"],
        input_s=(composition["input_s"] or 0.0) / metrics.accumulation,
        source=f"{label} on {layers.device}, {layers.passes} passes x {scale:.3f} to sum to the run's compute"
        + (" (itself emulated)" if layers.emulated else ""),
    )


def write_table(table: Table, path: Path) -> None:
    """Write YAML, or JSON if the file name ends in `.json`. Raises `ConfigError`."""
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"--out={str(path)!r} must end in .yaml, .yml or .json")
    if path.suffix == ".json":
        text = table.model_dump_json(indent=2) + "\n"
    else:
        import yaml

        plain: dict[str, Any] = table.model_dump(mode="json")
        text = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=110)
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _read_measurements(run: RunDir) -> tuple[Layers, Metrics]:
    for attempt in reversed(run.attempts()):
        if attempt.layers.exists():
            return (
                Layers.model_validate(read_json(attempt.layers)),
                Metrics.model_validate(read_json(run.metrics)),
            )
    raise ConfigError(
        f"{run_lookup.run_label(run)} did not time its layers; use a run with --set telemetry.layer_passes=10"
    )


def _same_settings(metrics: Metrics) -> str:
    """Settings with which an emulated run repeats the measured one."""
    return f"model.optimizer_s=null train.local_batch_size={metrics.local_batch_size}"
