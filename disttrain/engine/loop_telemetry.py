"""Telemetry for a user's own training loop, in three lines:

    with LoopTelemetry("runs/mine/n2", model, optimizer, steps=1000, samples_per_step=32) as telemetry:
        for inputs, targets in telemetry.steps(loader):
            ...  # forward, backward, optimizer.step(), as before
            telemetry.record_loss(loss)  # optional: the loss curve

A loop without a loader calls `telemetry.step()` at the end of each step instead.

Hooks find the phases of a step: `next(loader)`, the forward pass, the end of backward, the optimizer's
step, the collectives of `fully_shard`. Records, `metrics.json` and report have the same form as for `train`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.config_tree import Config
from disttrain.engine import fsdp_exposed
from disttrain.engine.ddp_exposed import DdpExposed
from disttrain.engine.loop_config import StepPlan, known_values, loop_config, same_on_all_ranks
from disttrain.engine.unwrap import unwrap_model, unwrap_optimizer
from disttrain.models.hooks import hooks_of
from disttrain.parallel import ddp
from disttrain.parallel.fully_shard_waits import comm_method
from disttrain.records.exit_causes import StopCause
from disttrain.records.json_files import read_json_or_none
from disttrain.records.metrics import Metrics
from disttrain.runtime.fully_shard_hooks import compute_device, groups_of_mesh
from disttrain.runtime.process_group import World, check_group_size
from disttrain.runtime.rank_failure import record_failure
from disttrain.runtime.rank_info import rank_info
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.facts import Communication, RunFacts
from disttrain.telemetry.machine_facts import describe_machine
from disttrain.telemetry.recorder import Recorder
from disttrain.telemetry.script_watch import ScriptWatch
from disttrain.telemetry.step_clock import COMPUTE, INPUT, OPTIMIZER, OTHER, StepClock
from disttrain.telemetry.step_result import StepResult

T = TypeVar("T")


class LoopTelemetry:
    """Measures a loop over steps of one `model` and `optimizer`. All ranks enter and leave it together.

    Args:
        run_dir: run directory; rank 0's value is used on all ranks. None: `runs/by-hand/<script>-<time>`. A
            job of `submit.py` uses its own run directory instead.
        model: a `DistributedDataParallel` module, a module sharded by `fully_shard`, or any on one rank;
            also as Accelerate, Fabric or Lightning wraps it.
        optimizer: that of the loop, also as they wrap it.
        steps: announced optimizer steps of the whole loop. Other numbers of steps are reported.
        samples_per_step: samples that this rank trains on in one optimizer step.
        accumulation: batches that share one optimizer step.
        resumed_step: optimizer steps that a former start of this loop made, if the loop continues from there.
        telemetry: keys of the config section `telemetry`, such as `warmup_steps`.

    Raises:
        ConfigError: for an invalid number or an invalid key of `telemetry`, for numbers that differ between
            the ranks, for a process group that lacks ranks of torchrun, and for a model or an optimizer on
            which torch runs no hooks.
    """

    def __init__(
        self,
        run_dir: str | Path | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int,
        samples_per_step: int,
        accumulation: int = 1,
        resumed_step: int = 0,
        telemetry: dict[str, Any] | None = None,
    ) -> None:
        plan = StepPlan(steps, samples_per_step, accumulation, resumed_step)
        model, optimizer = unwrap_model(model), unwrap_optimizer(optimizer)
        self._optimizer = optimizer
        self._plan = plan
        self._step = resumed_step
        self._in_pass = False
        self._profiling = ExitStack()  # of the step under way
        self._loss: Tensor | None = None  # of the step under way
        self._stepped = False
        device = compute_device(model)
        self._no_loss = torch.full((), torch.nan, device=device)
        info, group = rank_info(), dist.is_initialized()
        check_group_size(info)
        self._world = World(**vars(info), device=device, backend=dist.get_backend() if group else None)
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        self._model = bare
        self._model_hooks = hooks_of(bare)
        config = loop_config(bare, self._world, plan, telemetry or {})
        same_on_all_ranks(plan, self._world)
        self._output = RunOutput.of_environment() or RunOutput.of_loop(
            None if run_dir is None else Path(run_dir),
            Path(sys.argv[0]).resolve(),
            known_values(config, optimizer),
            self._world,
        )
        with self._output.recorded_if_it_fails():
            self._start(config, model, plan)

    def _start(self, config: Config, model: nn.Module, plan: StepPlan) -> None:
        """Start the telemetry, and register the hooks."""
        work, communication = _parallel(model, self._world)
        metrics_fields = {
            **self._output.identity(),
            **describe_machine(self._world, config),
            **work,
            "strategy_reason": "as the loop wraps its model",
            "model": config.model.kind,
            "parameters": sum(p.numel() for p in self._model.parameters()),
            "model_flops_per_sample": None,
            "flops_method": None,
            "dataset": None,
            **plan.metrics_fields(self._world.size),
        }
        facts = RunFacts(metrics_fields, communication)
        self._telemetry = Recorder(self._output, self._world, config, facts)
        self._watch = ScriptWatch(self._world.rank, self._telemetry.clock, plan.steps)
        if plan.resumed_step:
            self._telemetry.resume(plan.resumed_step, {}, {}, same_run=True)
        self.clock: StepClock = self._telemetry.clock
        self._hooks = [
            model.register_forward_pre_hook(self._forward_begins, prepend=True),  # before fully_shard gathers
            self._optimizer.register_step_pre_hook(self._optimizer_begins),
            self._optimizer.register_step_post_hook(lambda *_: self.clock.switch(OTHER)),
        ]
        self._comm = self._exposed_comm(model, work["comm_method"])

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of one pass over `loader`; each `accumulation` of them are one step.

        Time between two passes, such as a validation, belongs to no step.
        """
        batches = iter(loader)
        self.clock.start()
        self._in_pass = True
        try:
            while True:
                self._begin_step()
                for number in range(self._plan.accumulation):
                    self.clock.switch(INPUT)
                    try:
                        batch = next(batches)
                    except StopIteration:
                        return
                    if number == 0:
                        self._model_hooks.on_step(self._step + 1)
                    yield batch
                self._end_step()
        except GeneratorExit as error:  # an error within the loop, or `break`
            self._profiling.__exit__(GeneratorExit, error, None)
            raise
        finally:
            self._in_pass = False
            self._profiling.close()

    def step(self) -> None:
        """End a step of a loop without `steps`; the next one begins. The first begins with the `with` block.

        Time since the previous call that is neither forward pass, backward pass nor optimizer counts as
        `other`. Raises `RuntimeError` within `steps`.
        """
        if self._in_pass:
            raise RuntimeError("step() within steps(), which ends each step itself")
        self._end_step()
        self._begin_step()
        self._model_hooks.on_step(self._step + 1)

    def _begin_step(self) -> None:
        step, profiled = self._step + 1, self._telemetry.profiled
        if step in profiled.steps:
            self._profiling.enter_context(profiled.take(step, self))

    def _end_step(self) -> None:
        self._profiling.close()
        self._step += 1
        loss, self._loss = self._loss, None
        lr = float(self._optimizer.param_groups[0]["lr"])
        missed = self._comm.missed(self._stepped) if self._comm else None
        self._telemetry.step_done(
            StepResult(self._step, self._no_loss if loss is None else loss, lr, comm_reason=missed),
            loss_recorded=loss is not None,
        )
        self._watch.step_done(self._step)
        self._stepped = False

    def record_loss(self, loss: Tensor) -> None:
        """Record the mean loss of this rank's samples in this step, a scalar, for the loss curve.

        All ranks record the same steps. A step without a loss has none in its record and in the curve.
        """
        self._loss = loss.detach()

    def note(self, loss: Tensor) -> None:
        """Raises `AttributeError`: the former name of `record_loss`."""
        raise AttributeError("LoopTelemetry.note(loss) was renamed: use record_loss(loss)")

    def __enter__(self) -> LoopTelemetry:
        self._telemetry.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._profiling.__exit__(kind, error, trace)  # after an error, without waiting for the device
        for hook in self._hooks:
            hook.remove()
        if self._comm is not None:
            self._comm.close()
        if error is None:
            self._telemetry.report_of(self._model)
            self.metrics: Metrics = self._telemetry.finish(self._stop_cause())
            self._output.close(None, self.metrics)
        else:
            record = record_failure(error, self._world.rank, self._output.attempt)
            self._telemetry.abort()
            self._output.close(record)

    def _exposed_comm(
        self, model: nn.Module, method: str | None
    ) -> DdpExposed | fsdp_exposed.FsdpExposed | None:
        if method == ddp.COMM_METHOD and isinstance(model, DistributedDataParallel):
            return DdpExposed(model, lambda: self.clock)
        if method is not None:
            return fsdp_exposed.FsdpExposed(model, lambda: self.clock)
        return None

    def _stop_cause(self) -> StopCause | None:
        """The cause for which the job stopped the loop before its announced last step."""
        if self._step >= self._plan.steps:
            return None
        if self._output.run.stop.exists():
            return "stopped"
        cause = (read_json_or_none(self._output.attempt.stop) or {}).get("cause")
        return cause if cause in get_args(StopCause) else None

    def _forward_begins(self, model: nn.Module, inputs: Any) -> None:
        if model.training or torch.is_grad_enabled():
            self.clock.switch(COMPUTE)

    def _optimizer_begins(self, *_: Any) -> None:
        self._stepped = True
        self.clock.switch(OPTIMIZER)


def _parallel(model: nn.Module, world: World) -> tuple[dict[str, Any], Communication]:
    """The strategy of the wrapped model as fields of `Metrics`, and how its communication is measured."""
    if world.size == 1:
        return {"strategy": "single", "comm_method": None}, Communication()
    if isinstance(model, DistributedDataParallel):
        return {"strategy": "ddp", "comm_method": ddp.COMM_METHOD}, Communication(profiles_collectives=True)
    if not fsdp_exposed.is_sharded(model):
        why = "the model is neither wrapped in DistributedDataParallel nor sharded by fully_shard"
        return {"strategy": None, "comm_method": None}, Communication(why)
    elsewhere = fsdp_exposed.not_among_all(model, world)
    method, why_not = (None, elsewhere) if elsewhere else comm_method(model, world)
    return (
        {"strategy": "fsdp2", "comm_method": method},
        Communication(why_not, profiles_collectives=elsewhere is None, groups=groups_of_mesh(model)),
    )
