"""What the trainer and its options cost: turns beside a bare PyTorch loop, Lightning Fabric and Accelerate.

    python -m benchmarks.trainer [CASE ...] [--save LABEL]
    python -m benchmarks.trainer single --size short --peers bare    # microseconds added to each step
    pip install lightning accelerate                                 # for the other frameworks

| case | what takes turns |
|---|---|
| `single`, `ddp`, `fsdp` | the trainer and the other frameworks, on this strategy |
| `channels_last` | two ResNets with the same weights and images, one of them with the transform |
| `gc_every` | the trainer under Python's automatic garbage collection, and collecting once a turn |

All loops train the same GPT on the same batches, with the same optimizer and the same wrapping: none, DDP, or
`fully_shard` by block. In one launch (a process for each rank) they take turns of a few steps in an order
drawn for each round. The trainer measures every step and writes its records; the others only train. The
trainer's clock stops in the turns of the others, so log lines and summaries are due as often as in a run of
its own, and its turn ends when its records are written. The hardware sampler runs beside the steps of all
loops alike, so the ratio does not include the sampler's cost. The unit is the launch: a launch yields the
mean over rounds of the logarithm of (seconds of the other side / seconds of the trainer, or of the option);
the ratio and its 95 % interval (Student's t) are over launches. A ratio above 1: the trainer, or the option,
is faster. `added_us`: microseconds that it adds to a step.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import subprocess
import sys
from typing import Any

from scipy import stats

from benchmarks import result_record, trainer_turns
from benchmarks.trainer_turns import CASES, STRATEGIES

PEERS = ("bare", "fabric", "accelerate")
_PACKAGES = {"fabric": "lightning", "accelerate": "accelerate"}


def installed(peers: list[str]) -> list[str]:
    """The peers whose package is installed; a line on each of the others."""
    found = []
    for peer in peers:
        if peer in _PACKAGES and importlib.util.find_spec(_PACKAGES[peer]) is None:
            print(f"{peer:12} not installed: pip install {_PACKAGES[peer]}")
        else:
            found.append(peer)
    return found


def wraps_alike(peer: str, strategy: str, device: str) -> bool:
    """Whether a peer has the strategy on the device; Accelerate wraps in DDP where fsdp is requested on a
    CPU."""
    return not (peer == "accelerate" and strategy == "fsdp" and device == "cpu")


def launch(case: str, peers: list[str], number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each round of each side, from new processes."""
    ranks = arguments.ranks if case in ("ddp", "fsdp") else arguments.gc_ranks if case == "gc_every" else 1
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(several if ranks > 1 else []), "-m", trainer_turns.__name__, case]
    command += [f"--launch={number}", f"--device={arguments.device}", f"--rounds={arguments.rounds}"]
    command += [f"--size={arguments.size}", "--peers", *peers]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """By case: samples/s of the trainer, and its ratio to each other side; of an option, the ratio of a step
    without it to one with it."""
    found: dict[str, Any] = {}
    for case, launches in raw["cases"].items():
        if "on" in launches[0]["seconds"]:
            found[case] = beside(launches, "off", "on")
            continue
        ours = statistics.median(s for each in launches for s in each["seconds"]["disttrain"])
        found[case] = {"samples_per_s": launches[0]["samples_per_round"] / ours}
        for peer in launches[0]["seconds"]:
            if peer != "disttrain":
                both = [each for each in launches if peer in each["seconds"]]  # some records have a part
                found[case][peer] = beside(both, peer, "disttrain")
    return found


def beside(launches: list[dict[str, Any]], other: str, side: str) -> dict[str, Any]:
    """Ratio of the seconds of `other` to those of `side`, and microseconds that `side` adds to a step."""
    ratio, interval = mean_ratio([log_ratio(each["seconds"], other, side) for each in launches])
    found = {"ratio": ratio, "ratio_95": interval}
    if all("steps" in each for each in launches):
        added = [1e6 * added_s(each["seconds"], other, side) / each["steps"] for each in launches]
        low, high = mean_interval(added)
        found |= {"added_us": statistics.fmean(added), "added_us_95": [low, high]}
    return found


def pooled(raws: list[dict[str, Any]]) -> dict[str, Any]:
    """`figures` of the launches of several records, each launch with the same weight.

    The interval over launches contains the differences between the records, which are of several commits.
    """
    launches: dict[str, list[dict[str, Any]]] = {}
    for raw in raws:
        for case, found in raw["cases"].items():
            launches.setdefault(case, []).extend(found)
    return figures({"cases": launches})


def log_ratio(seconds: dict[str, list[float]], other: str, side: str) -> float:
    """Mean over the rounds of a launch of log(seconds of `other` / seconds of `side`)."""
    pairs = zip(seconds[other], seconds[side], strict=True)
    return statistics.fmean(math.log(theirs / ours) for theirs, ours in pairs)


def added_s(seconds: dict[str, list[float]], other: str, side: str) -> float:
    """Median over the rounds of a launch of the seconds that a turn of `side` takes longer."""
    pairs = zip(seconds[other], seconds[side], strict=True)
    return statistics.median(ours - theirs for theirs, ours in pairs)


def mean_ratio(logs: list[float]) -> tuple[float, list[float]]:
    """Geometric mean of ratios given as logarithms, and its 95 % interval."""
    low, high = mean_interval(logs)
    return math.exp(statistics.fmean(logs)), [math.exp(low), math.exp(high)]


def mean_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of a mean, by Student's t."""
    mean = statistics.fmean(values)
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; default: strategies")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument(
        "--size", choices=("100-ms", "short"), default="100-ms", help="of the step of the GPT"
    )
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60, help="turns of each side in a launch")
    parser.add_argument("--ranks", type=int, default=2, help="of ddp and fsdp")
    parser.add_argument("--gc-ranks", type=int, default=1, help="of gc_every: with DDP on several")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument(
        "--tiny", action="store_const", dest="size", const="tiny", help="sizes for a test of this program"
    )
    result_record.add_option(parser)
    return parser


def main() -> int:
    parser = build_parser()
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"{min(unknown)}: no such case; there are {', '.join(CASES)}")
    if arguments.launches < 2:
        parser.error(f"--launches {arguments.launches}: an interval needs at least 2")
    peers = installed(arguments.peers)
    raw: dict[str, Any] = {"device": arguments.device, "ranks": arguments.ranks, "cases": {}}
    for case in arguments.cases or STRATEGIES:
        numbers = range(arguments.launches)
        alike = [peer for peer in peers if wraps_alike(peer, case, arguments.device)]
        raw["cases"][case] = [launch(case, alike, number, arguments) for number in numbers]
        found = figures(raw)[case]
        for peer, each in ({case: found} if "ratio" in found else found).items():
            if peer == "samples_per_s":
                print(f"{case:8} {each:10.1f} samples/s")
                continue
            (low, high), (least, most) = each["ratio_95"], each["added_us_95"]
            print(f"  {peer:12} {each['ratio']:.4f} (95 % {low:.4f} to {high:.4f}), ", end="")
            print(f"{each['added_us']:+.1f} us a step ({least:.1f} to {most:.1f})")
    packages = ("torch", "lightning", "accelerate")
    result_record.save("trainer", arguments.save, figures(raw), raw, packages)
    print(json.dumps(figures(raw)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
