"""Overhead of the instrumented trainer against a bare PyTorch loop: same model, data, order and wrapping.

    python -m benchmarks.overhead                                        one rank
    python -m benchmarks.overhead --every-step                           without work that is due by the clock
    python -m benchmarks.overhead --ranks 2                              two ranks, DDP

Three loops run in one process and take turns of a few steps: the instrumented one and two bare ones. Two
equal loops of one process differ by some tenths of a percent, the same in every round, because their memory
lies at different addresses. The unit is therefore the launch: launches build the instrumented loop first,
second and third in rotation, and draw the order of turns in each round. A launch yields the mean over
rounds of the logarithm of instrumented / geometric mean of the bare loops. The ratio and its interval
(Student's t) are over launches. Turns that another process disturbs dominate the variance of a mean; the
ratio of median turns leaves them out, and with them work that happens in few steps. The ratio of the two
bare loops shows the accuracy of the method. The losses of all loops must be identical.

The telemetry's clock stops in the turns of the bare loops, so log lines and summaries are due as often as
in a real run. The parts of the telemetry are also timed by themselves (`benchmarks/parts.py`). Process
samples are taken beside the steps of all loops, and profiled steps (on several ranks) are in no round; both
have their own part.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from typing import Any

from scipy import stats

from benchmarks import result_record, turns


def launch(number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The result of `turns.measure` in new processes, one for each rank."""
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}"]
    python = [sys.executable, *(several if arguments.ranks > 1 else [])]
    command = [*python, "-m", turns.__name__, f"--launch={number}", *turns.command_line(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Ratios with intervals over launches; medians of step times and of parts."""
    launches: list[dict[str, Any]] = raw["launches"]
    ratio, ratio_95 = mean_ratio([each["log_ratio"] for each in launches])
    medians, medians_95 = mean_ratio([each["log_ratio_of_medians"] for each in launches])
    control, control_95 = mean_ratio([each["log_bare_to_bare"] for each in launches])
    seconds: dict[str, list[float]] = {}
    for each in launches:
        for name, taken in each["parts"].items():
            seconds.setdefault(name, []).extend(taken)
    return {
        "bare_step_ms": statistics.median(each["bare_step_ms"] for each in launches),
        "ratio": ratio,
        "ratio_95": ratio_95,
        "ratio_of_medians": medians,
        "ratio_of_medians_95": medians_95,
        "bare_to_bare": control,
        "bare_to_bare_95": control_95,
        "extra_us_per_step_median": statistics.median(each["extra_us_median"] for each in launches),
        "launches": len(launches),
        "rounds": sum(each["rounds"] for each in launches),
        "losses_identical": all(each["losses_identical"] for each in launches),
        "parts": {name: summary(taken) for name, taken in seconds.items()},
    }


def mean_ratio(logs: list[float]) -> tuple[float, list[float]]:
    """Geometric mean of ratios given as logarithms, and its 95 % interval."""
    mean = statistics.fmean(logs)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), [math.exp(mean - half), math.exp(mean + half)]


def summary(taken: list[float]) -> dict[str, float]:
    """Number, median, maximum and sum of the seconds of a part's calls."""
    return {
        "calls": len(taken),
        "median_ms": 1e3 * statistics.median(taken),
        "max_ms": 1e3 * max(taken),
        "total_s": sum(taken),
    }


def show(ranks: int, result: dict[str, Any]) -> None:
    """Print the figures."""
    low, high = result["ratio_95"]
    print(
        f"{ranks} rank(s): bare step {result['bare_step_ms']:.2f} ms; instrumented / bare = "
        f"{result['ratio']:.4f} (95 % {low:.4f} to {high:.4f}, {result['launches']} launches, "
        f"{result['rounds']} rounds); {result['extra_us_per_step_median']:+.0f} us a step (median); "
        f"losses identical: {result['losses_identical']}"
    )
    low, high = result["ratio_of_medians_95"]
    print(f"  median turns: {result['ratio_of_medians']:.4f} (95 % {low:.4f} to {high:.4f})")
    low, high = result["bare_to_bare_95"]
    print(f"  a bare loop / another: {result['bare_to_bare']:.4f} (95 % {low:.4f} to {high:.4f})")
    for name, part in result["parts"].items():
        print(
            f"  {name}: {part['median_ms']:.2f} ms (median of {part['calls']}; at most {part['max_ms']:.2f})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1, help="of one node")
    parser.add_argument("--launches", type=int, default=12, help="each a process of its own per rank")
    turns.options(parser)
    result_record.add_option(parser)
    arguments = parser.parse_args()
    if arguments.launches < 2:
        parser.error(f"--launches {arguments.launches}: an interval needs at least 2")
    raw = {
        "world_size": arguments.ranks,
        "block_steps": arguments.block_steps,
        "launches": [launch(number, arguments) for number in range(arguments.launches)],
    }
    result = figures(raw)
    show(arguments.ranks, result)
    result_record.save("overhead", arguments.save, result, raw)
    return 0 if result["losses_identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
