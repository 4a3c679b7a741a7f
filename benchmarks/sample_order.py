"""Order of samples: memory of the order, and time of a step's indices on one rank.

    python -m benchmarks.sample_order [--samples 1000000000] [--local 32] [--ranks 8] [--save LABEL]

Goals at 10^9 samples: under 1 MB and under 1 ms a step. `tracemalloc` counts the bytes while the steps are
drawn, after a first draw has loaded the modules. A table of all indices would hold 4 bytes a sample. The
reading of samples is excluded.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from typing import Any

from benchmarks import result_record
from disttrain.config.batch_plan import BatchPlan
from disttrain.data.sampler import GlobalOrder, RankBatches

STEPS = 512


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """The largest memory of the order, and the median over the repeats of the mean time of a step."""
    return {
        "samples": raw["samples"],
        "order_kb": round(raw["peak_bytes"] / 1e3, 1),
        "table_mb": round(4 * raw["samples"] / 1e6, 1),
        "step_ms": round(1e3 * statistics.median(raw["step_s"]), 4),
    }


def draw(samples: int, plan: BatchPlan, steps: int) -> None:
    """Draw the indices of rank 0 for `steps` steps of a new order."""
    for _ in RankBatches(GlobalOrder(samples, seed=0), plan, rank=0, steps=steps):
        pass


def measure(samples: int, local: int, ranks: int, repeats: int) -> dict[str, Any]:
    """Peak bytes, and seconds of a step in each repeat."""
    plan = BatchPlan(local=local, accumulation=1, world=ranks)
    draw(samples, plan, 1)
    tracemalloc.start()
    draw(samples, plan, STEPS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    step_s = []
    for _ in range(repeats):
        began = time.perf_counter()
        draw(samples, plan, STEPS)
        step_s.append((time.perf_counter() - began) / STEPS)
    return {"samples": samples, "local": local, "ranks": ranks, "peak_bytes": peak, "step_s": step_s}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10**9)
    parser.add_argument("--local", type=int, default=32, help="samples of a rank in a step")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=20)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = measure(given.samples, given.local, given.ranks, given.repeats)
    for name, value in figures(raw).items():
        print(f"{name:10} {value}")
    result_record.save("sample_order", given.save, figures(raw), raw, packages=("numpy",))


if __name__ == "__main__":
    main()
