"""Tables and figure of communication benchmarks: records of `python -m disttrain.comm_bench` by run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from analysis.draw import style
from disttrain.records.comm_bench import CollectiveTiming, CommBench, StepTiming, Timing
from disttrain.records.json_files import read_json, write_text
from disttrain.records.run_directory import RunDir

NONE = "\N{EN DASH}"


class Table(NamedTuple):
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


def read(run: RunDir) -> CommBench:
    """The result of a run. Raises `CorruptFile` or `pydantic.ValidationError`."""
    return CommBench.model_validate(read_json(run.comm_bench))


def conditions(found: CommBench) -> str:
    """Device, shape and software of a result, in one line."""
    alone = ", all on one machine" if found.one_machine and found.nodes > 1 else ""
    nccl = f", NCCL {found.nccl}" if found.backend == "nccl" else ""
    return (
        f"{_device(found)}, {found.nodes} nodes x {found.ranks_per_node} ranks{alone}, "
        f"{found.cpu_count} processors, {found.backend}{nccl}, torch {found.torch}"
    )


def _device(found: CommBench) -> str:
    return "CPU" if found.device == "cpu" else f"GPU {found.device}"


def tables(results: Mapping[str, CommBench]) -> list[Table]:
    """The collectives and the steps of each run."""
    found = []
    for run, result in results.items():
        found.append(_collectives(run, result))
        found.append(_steps(run, result))
    return found


def _collectives(run: str, result: CommBench) -> Table:
    rows = [
        [each.kind.replace("_", "-"), size_text(each.bytes), *_time(each.time), _rate(each)]
        for each in result.collectives
    ]
    head = ["collective", "size", "latency ms", "95 %", "bus MB/s"]
    note = (
        f"{result.collectives[0].time.repeats} repeats after the warm-up; all ranks begin together, and the "
        "time is that of the last rank to arrive"
    )
    return Table(f"{run}: collectives ({conditions(result)})", head, rows, [note])


def _steps(run: str, result: CommBench) -> Table:
    base = next(each for each in result.steps if each.name == "baseline")
    head = [
        "form",
        "options",
        "step ms",
        "95 %",
        "exposed ms",
        "95 % of exposed",
        "MB/step",
        "speed-up",
        "95 % of it",
    ]
    head += ["GB/s", "by exposed"]
    rows = [_step_row(each, base, result.gradient_bytes) for each in result.steps]
    notes = [
        f"{result.layers} layers {result.width} x {result.width}, {result.rows} samples a rank, gradients of "
        f"{result.gradient_bytes / 1e6:.1f} MB; without communication {_time(result.compute)[0]} ms a step",
        "MB/step: handed to collectives by rank 0; exposed: the step less that without communication, median "
        "of the rounds; GB/s (gradient bytes / exposed) and the ratio by exposed only where its interval "
        "lies above 0",
        "speed-up: baseline / form, median of the rounds; an interval that includes 1 shows no difference",
        *(f"{each.name} not measured: {each.reason}" for each in result.steps if each.reason),
    ]
    return Table(f"{run}: DDP step ({conditions(result)})", head, rows, notes)


def _step_row(each: StepTiming, base: StepTiming, gradient_bytes: int) -> list[str]:
    if each.step is None or each.bytes is None or each.speed_up is None:
        return [each.name, each.options, *[NONE] * 9]
    exposed = each.exposed_s
    sure = _above_zero(each)
    ratio = base.exposed_s / exposed if base.exposed_s and exposed and sure and _above_zero(base) else None
    return [
        each.name,
        each.options,
        *_time(each.step),
        NONE if exposed is None else f"{1e3 * exposed:.3g}",
        NONE
        if each.exposed_low_s is None
        else f"{1e3 * each.exposed_low_s:.3g} to {1e3 * (each.exposed_high_s or 0):.3g}",
        f"{each.bytes / 1e6:.3g}",
        f"{each.speed_up:.2f}x",
        NONE if each.speed_up_low is None else f"{each.speed_up_low:.2f} to {each.speed_up_high or 0:.2f}",
        NONE if not exposed or not sure else f"{gradient_bytes / exposed / 1e9:.3g}",
        NONE if ratio is None else f"{ratio:.2g}x",
    ]


def _above_zero(each: StepTiming) -> bool:
    """Whether the interval of the exposed time excludes 0."""
    return each.exposed_low_s is not None and each.exposed_low_s > 0


def _time(time: Timing) -> tuple[str, str]:
    interval = NONE if time.low_s is None else f"{1e3 * time.low_s:.3g} to {1e3 * (time.high_s or 0):.3g}"
    return f"{1e3 * time.median_s:.3g}", interval


def _rate(each: CollectiveTiming) -> str:
    return f"{each.bus_bytes_per_s / 1e6:.3g}"


def size_text(value: int) -> str:
    """Bytes of a message in MiB, KiB or B."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value} B"


def figure(results: Mapping[str, CommBench]) -> Figure:
    """Bus bandwidth against message size, one panel for each collective."""
    kinds = list(dict.fromkeys(each.kind for result in results.values() for each in result.collectives))
    with matplotlib.rc_context(style.STYLE):
        made = Figure(figsize=(10.0, 3.0), layout="constrained")
        panels = made.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for axes, kind in zip(panels, kinds, strict=True):
            for index, (run, result) in enumerate(results.items()):
                timed = [each for each in result.collectives if each.kind == kind]
                axes.plot(
                    [each.bytes for each in timed],
                    [each.bus_bytes_per_s / 1e6 for each in timed],
                    color=style.COLOURS[style.curve_colour(index)],
                    marker=style.MARKERS[index % len(style.MARKERS)],
                    label=run,
                )
            axes.set_xscale("log", base=2)
            sizes = sorted({each.bytes for result in results.values() for each in result.collectives})
            axes.set_xticks(sizes, [size_text(value) for value in sizes], rotation=45, ha="right")
            axes.minorticks_off()
            axes.set_yscale("log")
            axes.set_title(kind.replace("_", "-"))
            axes.set_xlabel("message")
        made.suptitle(" and ".join(dict.fromkeys(_device(result) for result in results.values())))
        made.axes[0].set_ylabel("bus bandwidth (MB/s)")
        made.axes[0].legend(frameon=False)
    return made


def markdown(results: Mapping[str, CommBench], image: str) -> str:
    """A page of the tables and the figure `image`."""
    parts = ["# Communication benchmark", f"![Bus bandwidth against message size]({image})"]
    for part in tables(results):
        lines = [part.head, ["---"] * len(part.head), *part.rows]
        text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        parts += [f"## {part.title}", text, "\n".join(f"- {note}" for note in part.notes)]
    return "\n\n".join(parts) + "\n"


def write(results: Mapping[str, CommBench], folder: Path) -> Path:
    """Write `communication.md` and `communication.svg`; the page."""
    folder.mkdir(parents=True, exist_ok=True)
    image = io.StringIO()
    figure(results).savefig(image, format="svg", metadata={"Date": None})
    write_text(folder / "communication.svg", image.getvalue())
    page = folder / "communication.md"
    write_text(page, markdown(results, "communication.svg"))
    return page
