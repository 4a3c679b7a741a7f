"""`python -m disttrain.comm_bench.arm_rank`: one rank of one arm of `disttrain fabric ab`.

Each rank of the job starts this process with the environment of an arm, because NCCL and gloo read their
variables once in a process. The ranks of an arm form a process group of their own. Rank 0 reads commands as
JSON lines from standard input; answers go to standard output:

    {"steps": 20}     run a block of 20 steps; rank 0 answers {"seconds_per_step": 0.04}
    {"relay": X}      every rank answers {"relayed": X}
    {"end": true}     every rank exits

Each rank first answers {"ready": {...}}, or {"error": "..."} and exits. A rank that waits for a command sits
in a collective of gloo, which takes no processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from disttrain.comm_bench.ddp_steps import Model, RepeatedStep
from disttrain.comm_bench.timing import conditions, parse, timed
from disttrain.config.config_tree import Config
from disttrain.errors import in_one_line
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from disttrain.runtime.kernels import attention_kernel
from disttrain.runtime.process import die_with_parent
from disttrain.runtime.process_group import World, launcher_store, open_world
from disttrain.runtime.stop_signals import ignore_stop_signals

IDLE_S = 7200.0
"""Timeout of a collective: an arm waits for its turn in one."""
Step = Callable[[], object]


def main() -> int:
    """Join the arm, and run blocks until the command to end."""
    die_with_parent()
    ignore_stop_signals()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not come between the answers
    parser = argparse.ArgumentParser(prog="python -m disttrain.comm_bench.arm_rank", description=__doc__)
    parser.add_argument("--store-prefix", required=True, help="prefix of the keys by which the ranks meet")
    parser.add_argument("--like", type=Path, help="run directory whose config gives the step")
    Model.add_arguments(parser)
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="largest bucket in MiB")
    given, job = parse(parser)
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))  # it may be the variable under test
    if given.like is None:
        config = Model.of(given).config(ddp={"bucket_mb": given.bucket_mb})
    else:
        config = config_of(RunDir(given.like))
    resources = job.resources.model_copy(update={"threads_per_rank": threads})
    config = config.with_values("job", collective_timeout_s=IDLE_S).model_copy(
        update={"resources": resources}
    )
    try:
        with (
            open_world(config, launcher_store(given.store_prefix)) as world,
            attention_kernel(config.train.attention),
        ):
            step, text = build_step(given, config, world)
            print(json.dumps({"ready": conditions(world) | {"step": text}}), file=answers, flush=True)
            serve(world, step, answers)
        return 0
    except Exception as error:
        print(json.dumps({"error": in_one_line(error)}), file=answers, flush=True)
        raise


def config_of(run: RunDir) -> Config:
    """The config of a run. Gradients travel as after `warmup_steps`, because each call of the step is the
    first of its run."""
    config = Config.model_validate(read_json(run.run_json)["config"])
    communication = config.parallel.gradient_communication.model_copy(update={"warmup_steps": 0})
    return config.with_values("parallel", gradient_communication=communication)


def build_step(given: argparse.Namespace, config: Config, world: World) -> tuple[Step, str]:
    """The step to measure, and its description. All ranks together."""
    step = RepeatedStep(config, world)
    if given.like is not None:
        run = f"{given.like.parent.name}/{given.like.name}"
        return step.run, f"{step.config.parallel.strategy} step of {run}, with one batch repeated"
    model = Model.of(given)
    return step.run, (
        f"DDP step of {model.layers} layers {model.width} x {model.width}, {model.rows} samples a rank, "
        f"{model.gradient_bytes / 1e6:.1f} MB of gradients in buckets of {given.bucket_mb:g} MiB"
    )


def serve(world: World, step: Step, answers: IO[str]) -> None:
    """Carry out the commands of rank 0's standard input until `end` or its end. All ranks together."""
    while True:
        line = sys.stdin.readline() if world.rank == 0 else ""
        command: dict[str, Any] = json.loads(world.all_gather_object(line)[0] or '{"end": true}')
        if "steps" in command:
            seconds = block(world, step, command["steps"])
            if world.rank == 0:
                print(json.dumps({"seconds_per_step": seconds}), file=answers, flush=True)
        elif "relay" in command:
            print(json.dumps({"relayed": command["relay"]}), file=answers, flush=True)
        else:
            return


def block(world: World, step: Step, steps: int) -> float:
    """Seconds per step of the slowest rank; an untimed step comes first, because the other arm has just
    filled the caches. All ranks together."""
    step()

    def act() -> None:
        for _ in range(steps):
            step()

    return world.all_reduce_max([timed(world, act)])[0] / steps


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of a backend may outlive the process group
