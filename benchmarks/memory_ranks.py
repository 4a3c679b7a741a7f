"""Peak memory of a training step on one rank, by strategy, beside the estimate of `--memory`.

    python -m benchmarks.memory_ranks [--repeats 10] [--save LABEL]

A GPT of 6 layers takes optimizer steps of 4 x 32 tokens a rank over 512 classes on two ranks, in case `hsdp`
on four. PyTorch's CPU allocator counts the live bytes of rank 0 in each of three steps: weights, optimizer
state, gradients, activations, inputs and outputs of collectives. Also counted: parameters that `fully_shard`
holds gathered, as a share of the model.

gloo copies inputs and outputs of its collectives and frees the copies at varying times, so the peak on gloo
ranks varies over steps and repeats; each repeat has ranks of its own. The peak without these copies is, for
`fsdp` and `hsdp`, that of a process group that exchanges nothing, the same in every run; for `ddp`, which
cannot run in it, the least on gloo. `transport_percent` is the part by which the peak on gloo is larger: the
median, the least and the most over steps and repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from benchmarks import result_record
from disttrain.engine.memory_estimate import estimate
from tests.support.ranks import Ranks
from tests.support.step_memory import CASES, config_of, measure, measure_without_transport


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Peaks in bytes; in percent, the error of the estimate, the most that is gathered of the model, and the
    part that gloo adds to a peak: its median, least and most."""
    cases = {}
    for name, case in raw["cases"].items():
        added = [100 * (peak / case["peak"] - 1) for peaks in case["peaks_on_gloo"] for peak in peaks]
        cases[name] = {
            "peak_bytes": case["peak"],
            "estimate_error_percent": round(100 * (case["estimate"] / case["peak"] - 1), 1),
            "gathered_percent": round(100 * case["gathered"] / case["model"], 1),
            "transport_percent": round(statistics.median(added), 1),
            "transport_least_percent": round(min(added), 1),
            "transport_most_percent": round(max(added), 1),
        }
    largest = max(abs(case["estimate_error_percent"]) for case in cases.values())
    repeats = min(len(case["peaks_on_gloo"]) for case in raw["cases"].values())
    return {"cases": cases, "largest_estimate_error_percent": largest, "repeats": repeats}


def measure_cases(repeats: int) -> dict[str, dict[str, Any]]:
    """Bytes of each case; `peaks_on_gloo` by repeat and step."""
    configs = {name: config_of(name) for name in CASES}
    on_gloo: dict[str, list[Any]] = {name: [] for name in CASES}
    sizes = sorted({config.world_size for config in configs.values()})
    for size in sizes * repeats:
        ranks = Ranks(size, 1)
        try:
            for name, config in configs.items():
                if config.world_size == size:
                    on_gloo[name].append(ranks.call(measure, config)[0])
        finally:
            ranks.close()
    cases = {}
    for name, repeated in on_gloo.items():
        config = configs[name]
        alone = min(repeated, key=lambda each: each.peak)
        if config.parallel.strategy != "ddp":
            alone = measure_without_transport(config)
        cases[name] = {
            "peak": alone.peak,
            "gathered": alone.gathered,
            "model": alone.model,
            "peaks_on_gloo": [each.peaks for each in repeated],
            "estimate": estimate(config).total_bytes,
        }
    return cases


def main() -> None:
    """Measure every case, print and save the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=10, help="default: 10")
    result_record.add_option(parser)
    arguments = parser.parse_args()
    raw = {"cases": measure_cases(arguments.repeats)}
    found = figures(raw)
    print(json.dumps(found, indent=2))
    result_record.save("memory_ranks", arguments.save, found, raw)


if __name__ == "__main__":
    main()
