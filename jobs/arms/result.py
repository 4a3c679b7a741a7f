"""Text of an experiment: the table, and the profile lines of the variables that gained."""

from __future__ import annotations

import json
import shlex

from disttrain.records.comm_bench import AbComparison, FabricAb
from jobs.arms.experiment import kept

HEAD = ("variable", "ratio", "interval", "pairs", "verdict", "reason")
NONE = "\N{EN DASH}"


def rows(result: FabricAb) -> list[tuple[str, ...]]:
    """One row for each variable, and one for all that gained together."""
    found = [_row(_assignments(each), each) for each in result.alone]
    if result.together is not None:
        many = len(result.together.variables) > 1
        found.append(_row("all that gained, together" if many else "again, new processes", result.together))
    return found


def title(result: FabricAb) -> str:
    """Conditions of the measurement, in one line."""
    device = "CPU" if result.device == "cpu" else f"GPU {result.device}"
    nccl = f" {result.nccl}" if result.backend == "nccl" and result.nccl else ""
    return (
        f"{result.step} ({device}, {result.nodes} nodes x {result.ranks_per_node} ranks, "
        f"{result.backend}{nccl}, torch {result.torch})"
    )


def notes(result: FabricAb) -> list[str]:
    """Meaning of the columns, and what limits them."""
    found = [
        f"ratio: seconds per step without / with the variable, median over pairs of blocks of "
        f"{result.steps_per_block} steps; above 1, the variable makes the step faster",
        f"interval: confidence sequence, valid at any stop; {_share(result.level)} is the probability of any "
        "wrong verdict among the single variables",
        f"gain, loss, equivalent: the interval lies above, below or within {_share(result.margin)}",
    ]
    if result.removed:
        found.append(f"baseline: the environment of the run without {', '.join(result.removed)}")
    if not result.complete:
        found.append("the experiment has not ended: further comparisons are missing")
    return found


def lines_to_keep(result: FabricAb) -> list[str]:
    """YAML for a site profile, and options for a sweep; one line that says so if nothing is to be kept."""
    if result.complete and not result.alone:
        return ["nothing to compare: this network needs no variable for speed; name some as VAR=VALUE"]
    variables = kept(result.alone, result.together)
    if not variables:
        gained = any(each.verdict == "gain" for each in result.alone)
        why = "did not gain again" if result.together else "not compared again"
        return [f"nothing to keep: {why} in new processes" if gained else "nothing to keep: none gained"]
    shape = f"{result.nodes} x {result.ranks_per_node} ranks, {result.backend}"
    lines = ["to keep, in a site profile:", "  environment:"]
    for each in result.alone:
        for name, value in each.variables.items():
            if name in variables:
                _, ratio, interval, *_ = _row("", each)
                reason = f"{ratio} times the steps/s ({interval}) on {shape}"
                lines.append(f"    {name}: {{value: {json.dumps(value)}, reason: {json.dumps(reason)}}}")
    # JSON quotes: commas would separate the values of an axis, and 022 would be a number
    words = shlex.join(f"job.env.{name}={json.dumps(value)}" for name, value in variables.items())
    return [*lines, f"or for one sweep: --set {words}"]


def progress_line(each: AbComparison) -> str:
    """State of a comparison, for the log of rank 0."""
    _, ratio, interval, pairs, verdict, _ = _row("", each)
    return f"{_assignments(each)}: {pairs} pairs, ratio {ratio} ({interval}): {verdict}"


def _row(name: str, each: AbComparison) -> tuple[str, ...]:
    ratio = NONE if each.ratio is None else f"{each.ratio:.3f}"
    interval = NONE if each.low is None or each.high is None else f"{each.low:.3f} to {each.high:.3f}"
    return (name, ratio, interval, str(each.pairs), each.verdict, each.reason or "")


def _assignments(each: AbComparison) -> str:
    return ", ".join(f"{name}={value}" for name, value in each.variables.items())


def _share(margin: float) -> str:
    return f"{100 * margin:g} %"
