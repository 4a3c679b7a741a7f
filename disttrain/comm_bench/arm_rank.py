"""`python -m disttrain.comm_bench.arm_rank`: one rank of one arm of `submit.py fabric ab`.

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
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from disttrain.comm_bench.ddp_steps import DDPStep, Model
from disttrain.comm_bench.timing import conditions, slowest, timed
from disttrain.config.config_tree import Config
from disttrain.config.sections.job import ResourcesConfig
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import build_stepper
from disttrain.errors import in_one_line
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from disttrain.runtime.kernels import attention_kernel
from disttrain.runtime.process import die_with_parent, rank_info
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
    given = parse(sys.argv[1:])
    info = rank_info()
    shape = ResourcesConfig(
        nodes=info.nodes,
        gpus_per_node=info.local_size,
        device=given.device,
        threads_per_rank=int(os.environ.get("OMP_NUM_THREADS", "1")),  # it may be the variable under test
    )
    config = None if given.like is None else config_of(RunDir(given.like), shape)
    settings = config or Config.model_validate({"precision": {"dtype": "fp32"}, "resources": shape})
    settings = settings.with_values("job", collective_timeout_s=IDLE_S)
    store = launcher_store(given.store_prefix)
    try:
        with (
            open_world(settings, store) as world,
            attention_kernel(settings.train.attention),
        ):
            step, text = build_step(given, config, world)
            answer(answers, {"ready": conditions(world) | {"step": text}})
            serve(world, step, answers)
        return 0
    except Exception as error:
        answer(answers, {"error": in_one_line(error)})
        raise


def parse(words: list[str]) -> argparse.Namespace:
    """The arguments, which are the same for both arms but for the prefix."""
    parser = argparse.ArgumentParser(prog="python -m disttrain.comm_bench.arm_rank", description=__doc__)
    parser.add_argument("--store-prefix", required=True, help="prefix of the keys by which the ranks meet")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "shared"])
    parser.add_argument("--like", type=Path, help="run directory whose config gives the step")
    Model.add_arguments(parser)
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="largest bucket in MiB")
    return parser.parse_args(words)


def config_of(run: RunDir, shape: ResourcesConfig) -> Config:
    """The config of a run, on the ranks of this job. Gradients travel as after `warmup_steps`, because each
    call of the step is the first of its run."""
    config = Config.model_validate(read_json(run.run_json)["config"])
    communication = config.parallel.gradient_communication.model_copy(update={"warmup_steps": 0})
    config = config.with_values("parallel", gradient_communication=communication)
    return config.model_copy(update={"resources": shape})


def build_step(given: argparse.Namespace, config: Config | None, world: World) -> tuple[Step, str]:
    """The step to measure, and its description. All ranks together."""
    if config is None:
        model = Model(given.width, given.layers, given.rows)
        text = (
            f"DDP step of {model.layers} layers {model.width} x {model.width}, {model.rows} samples a rank, "
            f"{model.gradient_bytes / 1e6:.1f} MB of gradients in buckets of {given.bucket_mb:g} MiB"
        )
        return DDPStep(world, model, ddp={"bucket_mb": given.bucket_mb}).run, text
    spec = spec_of_config(config, world)
    stepper = build_stepper(spec, world)
    example = spec.example()
    stepper.prime(example)
    batches = itertools.repeat(example)
    run = f"{given.like.parent.name}/{given.like.name}"
    text = f"{spec.config.parallel.strategy} step of {run}, with one batch repeated"

    def step() -> object:
        stepper.clock.start()  # forgets the marks of the step before
        return stepper.step(1, batches)

    return step, text


def serve(world: World, step: Step, answers: IO[str]) -> None:
    """Carry out the commands of rank 0's standard input until `end` or its end. All ranks together."""
    while True:
        line = sys.stdin.readline() if world.rank == 0 else ""
        command: dict[str, Any] = json.loads(world.all_gather_object(line)[0] or '{"end": true}')
        if "steps" in command:
            seconds = block(world, step, command["steps"])
            if world.rank == 0:
                answer(answers, {"seconds_per_step": seconds})
        elif "relay" in command:
            answer(answers, {"relayed": command["relay"]})
        else:
            return


def block(world: World, step: Step, steps: int) -> float:
    """Seconds per step of the slowest rank; an untimed step comes first, because the other arm has just
    filled the caches. All ranks together."""
    step()

    def act() -> None:
        for _ in range(steps):
            step()

    return slowest(world, [timed(world, act)])[0] / steps


def answer(answers: IO[str], message: dict[str, Any]) -> None:
    """Write one line."""
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of a backend may outlive the process group
