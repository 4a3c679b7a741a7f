"""Measure communication on the ranks of one job: `torchrun ... -m disttrain.comm_bench`.

Rank 0 writes `comm-bench.json` into the run directory of the job (`DISTTRAIN_RUN_DIR`), or into the working
directory.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from disttrain.comm_bench.collectives import measure_collectives
from disttrain.comm_bench.ddp_steps import Model, measure_steps
from disttrain.comm_bench.timing import conditions
from disttrain.config.config_tree import Config
from disttrain.records.comm_bench import CommBench
from disttrain.records.json_files import write_json
from disttrain.records.process_limits import usable_processors
from disttrain.records.run_directory import RunDir
from disttrain.runtime.device import machine_id
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, open_world

_SMALLEST = 4096
"""Bytes of the smallest message."""


def sizes_up_to(largest: int) -> list[int]:
    """Message sizes in bytes: 4 KiB times powers of 8, then `largest`."""
    sizes, size = [], _SMALLEST
    while size < largest:
        sizes.append(size)
        size *= 8
    return [*sizes, largest]


def measure(world: World, model: Model, largest: int, repeats: int) -> CommBench:
    """Everything, on all ranks together. Needs at least two."""
    machines = world.all_gather_object(machine_id())
    compute, steps = measure_steps(world, model, repeats)
    return CommBench(
        **conditions(world),
        one_machine=len(set(machines)) == 1,
        cpu_count=len(usable_processors()),
        width=model.width,
        layers=model.layers,
        rows=model.rows,
        gradient_bytes=model.gradient_bytes,
        compute=compute,
        collectives=measure_collectives(world, sizes_up_to(largest), repeats),
        steps=steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m disttrain.comm_bench", description=__doc__)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "shared"])
    parser.add_argument("--backend", default="auto", choices=["auto", "nccl", "gloo"])
    parser.add_argument("--max-mb", type=float, default=16.0, help="largest message in MiB")
    parser.add_argument("--repeats", type=int, default=15, help="repeats after the warm-up")
    Model.add_arguments(parser)
    given = parser.parse_args()
    info = rank_info()
    if info.size == 1:
        parser.error("one rank has no communication: start at least two")
    shape = {"nodes": info.nodes, "gpus_per_node": info.local_size, "device": given.device}
    backend, precision = {"backend": given.backend}, {"dtype": "fp32"}
    config = Config.model_validate({"resources": shape, "parallel": backend, "precision": precision})
    model = Model(given.width, given.layers, given.rows)
    with open_world(config) as world:
        found = measure(world, model, int(given.max_mb * 2**20), given.repeats)
        if world.rank == 0:
            run = RunDir(Path(os.environ.get("DISTTRAIN_RUN_DIR", ".")))
            write_json(run.comm_bench, found.model_dump(mode="json"))


if __name__ == "__main__":
    main()
