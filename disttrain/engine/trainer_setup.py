"""Set-up of a `Trainer`: process group, parallel model, optimizer, run directory, telemetry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from disttrain.config.config_tree import Config
from disttrain.config.refusals import refusal_with
from disttrain.engine.loop_config import known_values
from disttrain.engine.step import Stepper
from disttrain.errors import ConfigError
from disttrain.parallel.base import Strategy
from disttrain.runtime import nccl_log_file
from disttrain.runtime.device_agreement import choose
from disttrain.runtime.process_group import World, check_group_size, open_world
from disttrain.runtime.rank_failure import record_failure
from disttrain.runtime.rank_info import rank_info
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.machine_facts import describe_machine
from disttrain.telemetry.run import RunTelemetry
from disttrain.telemetry.run_metadata import RunMetadata, communication_metadata

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of the parameters of the parallel model."""


def join_world(config: Config) -> AbstractContextManager[World]:
    """A context with the `World`: of the process group that the script has joined, or of a new one."""
    if not dist.is_initialized():
        if (output := RunOutput.of_environment()) and config.telemetry.gpu_every_s:
            nccl_log_file.request(output.attempt, rank_info())
        return open_world(
            config.resources, config.job.collective_timeout_s, config.precision.dtype,
            gpus_per_rank=config.gpus_per_rank, on_gpu=refusal_with(config, "resources", device="cpu"),
            compiles_with=config.compile.used_backend, backend=config.parallel.backend,
        )  # fmt: skip
    info = rank_info()
    check_group_size(info)
    chosen = choose(
        config.resources.device, config.precision.dtype, info, config.gpus_per_rank,
        on_gpu=refusal_with(config, "resources", device="cpu"), compiles_with=config.compile.used_backend,
    )  # fmt: skip
    if chosen.problem:
        raise ConfigError(chosen.message)
    device = torch.device(chosen.device)
    gpus = config.gpus_per_rank if device.type == "cuda" else 1
    return nullcontext(World(**vars(info), device=device, backend=dist.get_backend(), gpus_per_rank=gpus))


@contextmanager
def recorded_if_it_fails(world: ExitStack) -> Iterator[None]:
    """Record an error of this block in the run directory of the job, if there is one.

    After a `ConfigError`, which all ranks raise, they leave the process group of `world`.
    """
    try:
        yield
    except BaseException as error:
        if output := RunOutput.of_environment():
            record_failure(error, rank_info().rank, output.attempt)
        if isinstance(error, ConfigError):
            world.close()
        raise


def choose_optimizer(
    given: torch.optim.Optimizer | OptimizerFactory, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """The given optimizer, or the one that the given function makes of `parameters`.

    Raises `ConfigError` for an optimizer of other parameters.
    """
    made = given if isinstance(given, torch.optim.Optimizer) else given(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"optimizer: the function returned {type(made).__name__}, not an optimizer")
    known = set(map(id, parameters))
    if any(id(parameter) not in known for group in made.param_groups for parameter in group["params"]):
        raise ConfigError(
            "optimizer: it holds parameters that are not those of the parallel model; give a function, such "
            "as lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    return made


def find_run(
    run_dir: str | Path | None, config: Config, optimizer: torch.optim.Optimizer, world: World
) -> RunOutput:
    """The run directory of the job, or a new attempt in `run_dir`. All ranks together."""
    return RunOutput.of_environment() or RunOutput.of_loop(
        None if run_dir is None else Path(run_dir),
        Path(sys.argv[0]).resolve(),
        known_values(config, optimizer),
        world,
    )


def refuse_between_averages(strategy: Strategy, step: int, call: str) -> None:
    """Raise `RuntimeError` where the parameters of the ranks differ after `step`."""
    if not strategy.replicas_agree(step):
        raise RuntimeError(
            f"{call} after step {step}: the ranks hold different parameters until the next average, by "
            "parallel.gradient_communication.average_every"
        )


def start_telemetry(output: RunOutput, config: Config, stepper: Stepper) -> RunTelemetry:
    """The telemetry of a model and data of the user. All ranks together."""
    spec, plan, world = stepper.spec, stepper.plan, stepper.world
    fields = {
        **output.identity(),
        **describe_machine(world, config),
        "strategy": spec.config.parallel.strategy,
        "strategy_reason": spec.strategy_reason,
        **stepper.precision_fields,
        "comm_method": stepper.strategy.comm_method,
        "model": config.model.kind,
        "parameters": stepper.cost.parameters,
        "model_flops_per_sample": None,
        "flops_method": None,
        "dataset": None,
        "steps_total": spec.steps,
        "local_batch_size": plan.local,
        "accumulation": plan.accumulation,
        "global_batch_size": plan.global_,
    }
    metadata = RunMetadata(**communication_metadata(stepper.strategy, stepper.model))
    return RunTelemetry(output, world, config, fields, metadata)
