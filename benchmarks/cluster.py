"""Wall time of `submit.py cluster up` with four nodes: `sudo python -m benchmarks.cluster [--repeats 5]`.

Goal: under 10 s.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from benchmarks import result_record, timing


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Median and extremes of the wall times of `up`, and the median of `down`."""
    return {
        **timing.summary(raw["up_taken_s"]),
        "down_median_s": timing.summary(raw["down_taken_s"])["median_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    result_record.add_option(parser)
    given = parser.parse_args()
    name = f"b{os.getpid()}"
    up, down = ["cluster", "up"], ["cluster", "down", "--name", name]
    raw: dict[str, list[float]] = {"up_taken_s": [], "down_taken_s": []}
    for _ in range(given.repeats):
        try:
            raw["up_taken_s"].append(timing.once([*up, "--name", name]))
        finally:
            raw["down_taken_s"].append(timing.once(down))
    timing.show(up, raw["up_taken_s"], goal_s=10)
    result_record.save("cluster", given.save, figures(raw), raw, packages=())


if __name__ == "__main__":
    main()
