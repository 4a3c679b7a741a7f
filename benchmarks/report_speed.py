"""Processor time and memory of a report, figures included: `python -m benchmarks.report_speed`.

Goals: 12 s and 600 MB for 1,000 runs of 2 ranks and 200 steps; 10 s for a run of 512 ranks and 1,000 steps
beside one of 8.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import result_record
from tests.support.fake_runs import fake_run

CASES = {"many": ([(1, 2), (2, 1)], 500, 200), "wide": ([(1, 8), (64, 8)], 1, 1000)}
"""Nodes and ranks of a node at each size, repeats, steps."""
WRITE = "import sys; from analysis.report import write; write([sys.argv[1]], sys.argv[1] + '/report')"


def figures(raw: dict[str, list[float]]) -> dict[str, float]:
    """Medians over the reports."""
    return {name: statistics.median(values) for name, values in raw.items()}


def measure(sweep: str) -> tuple[float, float]:
    """Seconds of processor of one report in a process of its own, and MB of the largest one so far."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", WRITE, sweep], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    result_record.add_option(parser)
    given = parser.parse_args()
    raw: dict[str, Any] = {}
    for case, (sizes, repeats, steps) in CASES.items():
        with tempfile.TemporaryDirectory() as sweep:
            for nodes, ranks in sizes:
                for repeat in range(repeats):
                    run = Path(sweep) / f"n{nodes}-r{repeat}"
                    fake_run(
                        run, nodes=nodes, gpus_per_node=ranks, repeat=repeat, steps=steps, all_ranks=True
                    )
            values = [measure(sweep) for _ in range(3)]
        raw |= {f"{case}_s": [taken for taken, _ in values], f"{case}_mb": [memory for _, memory in values]}
        print(case, figures(raw), flush=True)
    result_record.save("report_speed", given.save, figures(raw), raw, ("numpy", "pandas", "matplotlib"))


if __name__ == "__main__":
    main()
