"""One rank of the job of `disttrain fabric ab`: `torchrun ... -m jobs.arms VAR=VALUE ...`.

Rank 0 runs the experiment, and writes `fabric-ab.json` into the run directory of the job
(`DISTTRAIN_RUN_DIR`), or into the working directory, after each comparison.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from disttrain.records.comm_bench import FabricAb
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.arms.experiment import ArmFailed, BaselineFailed, Experiment, Options
from jobs.arms.plan import ALLOW_UNKNOWN, Changes, baseline_changes, parse_settings, suggestions
from jobs.arms.processes import ArmRanks
from jobs.arms.result import progress_line
from jobs.fabric.detect import detect_here

ARM_RANK = "disttrain.comm_bench.arm_rank"
"""Module of a rank of an arm."""


def main(words: list[str], arm_rank: str = ARM_RANK) -> int:
    """Run the experiment (rank 0), or carry out the commands that rank 0 relays; the exit code.

    Words that are not of the experiment go to `arm_rank`.
    """
    parser = argparse.ArgumentParser(prog="python -m jobs.arms", description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="VAR=VALUE", help="(the derived ones for speed)")
    parser.add_argument(ALLOW_UNKNOWN, action="store_true", help="compare names close to a known one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=Options.pairs, help="largest number of pairs")
    parser.add_argument("--minutes", type=float, default=Options.seconds / 60, help="of the experiment")
    parser.add_argument("--block-s", type=float, default=Options.block_s, help="seconds of a block")
    given, for_arms = parser.parse_known_args(words)
    settings = parse_settings(given.settings, allow_unknown=given.allow_unknown)
    settings = settings or derived_for_speed(given.device)
    removed = baseline_changes(settings, os.environ)
    command = [sys.executable, "-P", "-m", arm_rank, *for_arms, "--device", given.device]
    leads = os.environ.get("RANK", "0") == "0"
    ranks = ArmRanks(command, os.environ, removed, given.block_s, leads=leads)
    if not leads:
        return ranks.follow()
    # the same order in each experiment would repeat a chance alignment
    seed = secrets.randbits(32)
    options = Options(pairs=given.pairs, seconds=60 * given.minutes, block_s=given.block_s, seed=seed)
    return lead(ranks, settings, removed, options)


def derived_for_speed(device: str) -> dict[str, str]:
    """`suggestions` for the network of this node and the shape of the job."""
    fabric = detect_here()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = int(os.environ.get("WORLD_SIZE", "1")) // ranks
    return suggestions(fabric, nodes, ranks if fabric.gpus and device != "cpu" else 0)


def lead(ranks: ArmRanks, settings: Mapping[str, str], removed: Changes, options: Options) -> int:
    """Run the experiment and write its record; the exit code."""
    run = RunDir(Path(os.environ.get("DISTTRAIN_RUN_DIR", ".")))

    def write(experiment: Experiment, *, complete: bool = False) -> None:
        record = FabricAb(
            **ranks.facts,
            steps_per_block=experiment.steps,
            margin=options.margin,
            level=options.level,
            seed=options.seed,
            removed=sorted(removed),
            alone=experiment.alone,
            together=experiment.together,
            complete=complete,
        )
        write_json(run.fabric_ab, record.model_dump(mode="json"))

    experiment = Experiment(
        ranks, options, removed, write, lambda each: print(progress_line(each), flush=True)
    )
    try:
        experiment.run(settings)
    except (ArmFailed, BaselineFailed) as error:
        print(f"error: the ranks of the baseline failed: {error}", file=sys.stderr)
        return 1
    write(experiment, complete=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
