"""Peak memory of a training step on one of two ranks, by strategy, beside the estimate of `--memory`.

    python benchmarks/memory_ranks.py [--save LABEL]

A GPT of 6 layers takes an optimizer step of 4 x 32 tokens a rank over 512 classes. PyTorch's CPU allocator
counts the live bytes of rank 0: weights, optimizer state, gradients, activations, inputs and outputs of
collectives. Also counted: parameters that `fully_shard` holds gathered, as a share of the model.

The peaks of `fsdp` are those of a process group that exchanges nothing, the same in every run. gloo copies
inputs and outputs of its collectives and frees the copies at varying times: `transport_percent` is the part
by which the peak on two gloo ranks is larger. The peaks of `ddp` are those on gloo ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks and tests are not installed

from benchmarks import result_record
from disttrain.memory_estimate import estimate
from tests.support.ranks import Ranks
from tests.support.step_memory import CASES, config_of, measure, measure_without_transport


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Peaks in bytes; in percent, the error of the estimate, the most that is gathered of the model, and the
    part that gloo adds to a peak."""
    cases = {
        name: {
            "peak_bytes": case["peak"],
            "estimate_error_percent": round(100 * (case["estimate"] / case["peak"] - 1), 1),
            "gathered_percent": round(100 * case["gathered"] / case["model"], 1),
            "transport_percent": round(100 * (case["peak_on_gloo"] / case["peak"] - 1), 1),
        }
        for name, case in raw["cases"].items()
    }
    largest = max(abs(case["estimate_error_percent"]) for case in cases.values())
    return {"cases": cases, "largest_estimate_error_percent": largest}


def measure_cases() -> dict[str, dict[str, int]]:
    """Bytes of each case."""
    cases = {}
    ranks = Ranks(2, 1)
    try:
        for name in CASES:
            config = config_of(name)
            on_gloo = ranks.call(measure, config)[0]
            found = on_gloo if config.parallel.strategy == "ddp" else measure_without_transport(config)
            sizes = {"peak_on_gloo": on_gloo.peak, "estimate": estimate(config).total_bytes}
            cases[name] = asdict(found) | sizes
    finally:
        ranks.close()
    return cases


def main() -> None:
    """Measure every case, print and save the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result_record.add_option(parser)
    arguments = parser.parse_args()
    raw = {"cases": measure_cases()}
    found = figures(raw)
    print(json.dumps(found, indent=2))
    result_record.save("memory_ranks", arguments.save, found, raw)


if __name__ == "__main__":
    main()
