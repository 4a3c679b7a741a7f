"""Samples per second of the trainer beside a bare PyTorch loop, Lightning Fabric and Accelerate.

    python -m benchmarks.trainer [--save LABEL]
    python -m benchmarks.trainer --strategies single --launches 3 --rounds 20
    pip install lightning accelerate                  # for the other frameworks

All loops train the same GPT on the same batches, with the same optimizer and the same wrapping: none, DDP, or
`fully_shard` by block. In one launch (a process for each rank) they take turns of a few steps in an order
drawn for each round. The trainer measures every step and writes its records; the others only train. The
trainer's clock stops in the turns of the others, so log lines and summaries are due as often as in a run of
its own, and its turn ends when its records are written. The hardware sampler runs beside the steps of all
loops alike, so the ratio does not include the sampler's cost. The unit is the launch: a launch yields the
mean over rounds of the logarithm of (seconds of a loop / seconds of the trainer); the ratio and its 95 %
interval (Student's t) are over launches. A ratio above 1: the trainer has more samples per second.
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

PEERS = ("bare", "fabric", "accelerate")
STRATEGIES = ("single", "ddp", "fsdp")
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


def launch(strategy: str, peers: list[str], number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each round of each loop, from new processes."""
    ranks = 1 if strategy == "single" else arguments.ranks
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(several if ranks > 1 else []), "-m", trainer_turns.__name__, strategy]
    command += [f"--launch={number}", f"--device={arguments.device}", f"--rounds={arguments.rounds}"]
    command += ["--peers", *peers, *(["--tiny"] if arguments.tiny else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """By strategy: samples/s of the trainer, and for each peer the ratio of samples/s with its interval."""
    found = {}
    for strategy, launches in raw["strategies"].items():
        ours = statistics.median(s for each in launches for s in each["seconds"]["disttrain"])
        mine: dict[str, Any] = {"samples_per_s": launches[0]["samples_per_round"] / ours}
        for peer in launches[0]["seconds"]:
            if peer == "disttrain":
                continue
            ratio, interval = mean_ratio([log_ratio(each["seconds"], peer) for each in launches])
            mine[peer] = {"ratio": ratio, "ratio_95": interval}
        found[strategy] = mine
    return found


def pooled(raws: list[dict[str, Any]]) -> dict[str, Any]:
    """`figures` of the launches of several records, each launch with the same weight.

    The interval over launches contains the differences between the records, which are of several commits.
    """
    launches: dict[str, list[dict[str, Any]]] = {}
    for raw in raws:
        for strategy, found in raw["strategies"].items():
            launches.setdefault(strategy, []).extend(found)
    return figures({"strategies": launches})


def log_ratio(seconds: dict[str, list[float]], peer: str) -> float:
    """Mean over the rounds of a launch of log(seconds of `peer` / seconds of the trainer)."""
    pairs = zip(seconds[peer], seconds["disttrain"], strict=True)
    return statistics.fmean(math.log(theirs / ours) for theirs, ours in pairs)


def mean_ratio(logs: list[float]) -> tuple[float, list[float]]:
    """Geometric mean of ratios given as logarithms, and its 95 % interval."""
    mean = statistics.fmean(logs)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), [math.exp(mean - half), math.exp(mean + half)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=60, help="turns of each loop in a launch")
    parser.add_argument("--ranks", type=int, default=2, help="of ddp and fsdp")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--tiny", action="store_true", help="sizes for a test of this program")
    result_record.add_option(parser)
    arguments = parser.parse_args()
    if arguments.launches < 2:
        parser.error(f"--launches {arguments.launches}: an interval needs at least 2")
    peers = installed(arguments.peers)
    raw: dict[str, Any] = {"device": arguments.device, "ranks": arguments.ranks, "strategies": {}}
    for strategy in arguments.strategies:
        numbers = range(arguments.launches)
        alike = [peer for peer in peers if wraps_alike(peer, strategy, arguments.device)]
        raw["strategies"][strategy] = [launch(strategy, alike, number, arguments) for number in numbers]
        found = figures(raw)[strategy]
        print(f"{strategy:8} {found.pop('samples_per_s'):10.1f} samples/s")
        for peer, each in found.items():
            low, high = each["ratio_95"]
            print(f"  disttrain / {peer:12} {each['ratio']:.4f} (95 % {low:.4f} to {high:.4f})")
    packages = ("torch", "lightning", "accelerate")
    result_record.save("trainer", arguments.save, figures(raw), raw, packages)
    print(json.dumps(figures(raw)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
