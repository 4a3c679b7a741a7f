"""Wall time of a dry run of 10,000 runs: `python -m benchmarks.large_sweep [--runs 10000]`. Goal: under 10 s.

The sweep has five axes of a GPT and five repeats. Its dry run checks each combination, names the runs, and
prints them with one script or command: once for Slurm, which need not be installed, and once for this
machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import result_record, timing

SWEEP = """\
model: {{kind: gpt, layers: 4, width: 128}}
data: {{kind: text}}
train: {{steps: 300, local_batch_size: 16}}
optim: {{schedule: cosine, warmup_steps: 20}}
sweep:
  repeats: 5
  axes:
    resources.nodes: [1, 2, 4, 8]
    parallel.ddp.bucket_mb: [1, 5, 10, 25, 50]
    train.local_batch_size: [1, 2, 4, 8, 16]
    optim.lr: [1e-4, 2e-4, 5e-4, 1e-3, 2e-3]
    train.seed: {seeds}
"""
_RUNS_OF_A_SEED = 4 * 5 * 5 * 5 * 5


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Median and extremes of the wall times, for Slurm and for this machine."""
    local = {f"local_{name}": value for name, value in timing.summary(raw["local_taken_s"]).items()}
    return {"runs": raw["runs"], **timing.summary(raw["taken_s"]), **local}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000, help="a multiple of 2500 (10000)")
    parser.add_argument("--repeats", type=int, default=5)
    result_record.add_option(parser)
    given = parser.parse_args()
    seeds = list(range(max(1, given.runs // _RUNS_OF_A_SEED)))
    raw: dict[str, Any] = {"runs": len(seeds) * _RUNS_OF_A_SEED}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.yaml"
        file.write_text(SWEEP.format(seeds=seeds))
        print(f"{raw['runs']} runs")
        for name, cluster in (("taken_s", "slurm"), ("local_taken_s", "local")):
            arguments = ["sweep", str(file), "--dry-run", "--cluster", cluster, "--runs", f"{folder}/runs"]
            raw[name] = timing.seconds(arguments, given.repeats)
            timing.show(arguments, raw[name], goal_s=10.0)
    result_record.save("large_sweep", given.save, figures(raw), raw, packages=("pydantic",))


if __name__ == "__main__":
    main()
