"""`emulate`: write the layer table of a measured run, which a model of kind `emulated` replays."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from jobs import PROGRAM
from jobs.cli import options

if TYPE_CHECKING:
    from disttrain.records.layers import Layers, LayerTable
    from disttrain.records.metrics import Metrics

_WARN_SCALE = 1.5
"""A warning is printed when steps computed longer than the timed layers by more than this factor."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        path="the file written",
        scale="compute time of the measured steps, divided by that of the isolated layer passes",
        table="the layer table",
    )
    text = "a run with telemetry.layer_passes > 0"
    options.value(parser, "--from", "RUN", text, dest="from_run", required=True)
    options.value(parser, "--out", "FILE", "output file (RUN-table.yaml)", type=Path)


def run(args: argparse.Namespace) -> int:
    from disttrain.errors import ConfigError
    from disttrain.records.json_files import read_json
    from disttrain.records.layers import Layers
    from disttrain.records.metrics import Metrics
    from jobs.cli import selection
    from jobs.cli.command_output import add_json, print_warning
    from jobs.cli.formatting import number

    run = selection.find_run(args.runs, args.from_run)
    (state,) = selection.read_states([run])
    paths = [attempt.layers for attempt in run.attempts() if attempt.layers.exists()]
    if not paths:
        raise ConfigError(
            f"{state.label} did not time its layers; use a run with --set telemetry.layer_passes=10"
        )
    layers = Layers.model_validate(read_json(paths[-1]))
    metrics = Metrics.model_validate(read_json(run.metrics))
    scale = scale_of(layers, metrics, state.label)
    table = table_of(layers, metrics, state.label)
    out = args.out or Path(f"{run.name}-table.yaml")
    write_table(table, out)
    if scale > _WARN_SCALE:
        print_warning(
            f"the steps computed {number(scale, 3)} times as long as the isolated layer passes, because "
            "ranks shared processors or caches were cold; times of single layers are less certain"
        )
    add_json([state], path=str(out), scale=scale, table=table.model_dump(mode="json"))
    print(
        f"wrote {out}: {len(table.layers)} layers, {number(table.bytes / 2**20)} MiB, "
        f"{number(table.forward_s)} s forward, {number(table.backward_s)} s backward and "
        f"{number(table.input_s)} s of input for {table.samples} samples, "
        f"{number(table.optimizer_s)} s of the optimizer"
    )
    print(f"layer times are scaled by {number(scale)} to sum to the compute time of the measured steps")
    print(
        f"run it:  {PROGRAM} run sweeps/emulated.yaml --name NAME --set model.table={out} "
        f"model.optimizer_s=null train.local_batch_size={metrics.local_batch_size}"
    )
    return 0


def scale_of(layers: Layers, metrics: Metrics, label: str) -> float:
    """Compute time of a measured step, per micro-batch, divided by that of the timed layer passes.

    Raises `ConfigError` when no step was measured.
    """
    from disttrain.errors import ConfigError

    compute_s = metrics.composition["compute_s"]
    timed_s = sum(layer.forward_s + layer.backward_s for layer in layers.layers)
    if not compute_s or not timed_s:
        raise ConfigError(f"{label} has no measured steps: set train.steps above telemetry.warmup_steps")
    return compute_s / metrics.accumulation / timed_s


def table_of(layers: Layers, metrics: Metrics, label: str) -> LayerTable:
    """The layer table of a measured run. Times are seconds per micro-batch.

    The timed layer passes, with hooks on each layer, determine the division of time among layers. The
    measured steps determine the sums: mean compute, input wait and optimizer time.
    """
    from disttrain.records.layers import LayerTable, LayerTime

    scale, composition = scale_of(layers, metrics, label), metrics.composition
    return LayerTable(
        layers=tuple(
            LayerTime(
                name=layer.name or "model",
                bytes=layer.bytes,
                forward_s=layer.forward_s * scale,
                backward_s=layer.backward_s * scale,
            )
            for layer in layers.layers
        ),
        samples=layers.samples,
        dtype_bytes=2 if layers.dtype_bytes == 2 else 4,
        optimizer_s=composition["optimizer_s"],
        input_s=(composition["input_s"] or 0.0) / metrics.accumulation,
        source=f"{label} on {layers.device}, {layers.passes} passes x {scale:.3f} to sum to the run's compute"
        + (" (itself emulated)" if layers.emulated else ""),
    )


def write_table(table: LayerTable, path: Path) -> None:
    """Write YAML, or JSON if the file name ends in `.json`. Raises `ConfigError`."""
    import yaml

    from disttrain.errors import ConfigError
    from disttrain.records.json_files import write_text

    if path.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"--out={str(path)!r} must end in .yaml, .yml or .json")
    text = table.model_dump_json(indent=2) + "\n"
    if path.suffix != ".json":
        record = table.model_dump(mode="json")
        text = yaml.safe_dump(record, sort_keys=False, default_flow_style=None, width=110)
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None
