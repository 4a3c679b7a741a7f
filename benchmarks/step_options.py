"""Effect of channels-last and of `train.gc_every` on the speed of a step.

    python -m benchmarks.step_options [--save LABEL] [--device cuda]
    python -m benchmarks.step_options --options gc_every --ranks 2    # DDP, whose ranks wait for a pause

`channels_last`: two ResNets with the same weights and images take turns, one of them with the transform.
`gc_every`: one training loop takes turns of 100 steps under Python's automatic garbage collection and under
`train.gc_every: 100`, the collection included. Turns are in an order drawn for each round. The unit is the
launch: the ratio (seconds without the option / seconds with it) and its 95 % interval (Student's t) are over
launches. A ratio above 1: the option is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import result_record, step_options_turns
from benchmarks.trainer import mean_ratio

OPTIONS = ("channels_last", "gc_every")


def launch(option: str, number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The result of `step_options_turns.measure` in new processes, one for each rank."""
    ranks = arguments.ranks if option == "gc_every" else 1
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(several if ranks > 1 else []), "-m", step_options_turns.__name__, option]
    command += [f"--launch={number}", f"--device={arguments.device}", f"--rounds={arguments.rounds}"]
    command += ["--tiny"] if arguments.tiny else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """By option: ratio with its interval and, without and with the option, the median over launches of the
    mean, 99th percentile and largest step in ms."""
    found = {}
    for option, launches in raw["options"].items():
        ratio, interval = mean_ratio(
            [math.log(each["off"]["mean_s"] / each["on"]["mean_s"]) for each in launches]
        )
        found[option] = {"ratio": ratio, "ratio_95": interval}
        for side in ("off", "on"):
            for figure in launches[0][side]:
                median_s = statistics.median(each[side][figure] for each in launches)
                found[option][f"{side}_{figure.removesuffix('_s')}_ms"] = 1e3 * median_s
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--options", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side in a launch")
    parser.add_argument("--ranks", type=int, default=1, help="of gc_every")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--tiny", action="store_true", help="sizes for a test of this program")
    result_record.add_option(parser)
    arguments = parser.parse_args()
    if arguments.launches < 2:
        parser.error(f"--launches {arguments.launches}: an interval needs at least 2")
    raw: dict[str, Any] = {"device": arguments.device, "ranks": arguments.ranks, "options": {}}
    for option in arguments.options:
        raw["options"][option] = [launch(option, number, arguments) for number in range(arguments.launches)]
        found = figures(raw)[option]
        low, high = found["ratio_95"]
        print(f"{option:14} off / on {found['ratio']:.4f} (95 % {low:.4f} to {high:.4f})")
        for side in ("off", "on"):
            values = (f"{figure} {found[f'{side}_{figure}_ms']:.2f} ms" for figure in ("mean", "p99", "max"))
            print(f"  {side:4} {', '.join(values)}")
    result_record.save("step_options", arguments.save, figures(raw), raw)
    print(json.dumps(figures(raw)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
