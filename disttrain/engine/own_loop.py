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

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.batch_plan import BatchPlan
from disttrain.engine.exposed_comm import DdpExposed, FsdpExposed, is_sharded, not_among_all, original_class
from disttrain.engine.script_config import config_of_script, full_name, script_output, whole_numbers
from disttrain.engine.spec import facts_of, refuse_unequal, uncounted
from disttrain.errors import ConfigError
from disttrain.models.hooks import hooks_of
from disttrain.parallel.ddp import COMM_METHOD
from disttrain.parallel.fully_shard_waits import comm_method
from disttrain.records.metrics import EvalPoint, Metrics
from disttrain.runtime.fully_shard_hooks import compute_device, groups_of_mesh
from disttrain.runtime.process import rank_info
from disttrain.runtime.process_group import World, check_group_size
from disttrain.telemetry.facts import Communication
from disttrain.telemetry.recorder import Recorder, ScriptWatch
from disttrain.telemetry.step_clock import COMPUTE, INPUT, OPTIMIZER, OTHER, StepClock
from disttrain.telemetry.steps import StepResult

T = TypeVar("T")


class LoopTelemetry:
    """Measures a loop over steps of one `model` and `optimizer`. All ranks enter and leave it together.

    Args:
        run_dir: run directory; rank 0's value is used on all ranks. None: `runs/by-hand/<script>-<time>`. A
            job of `disttrain` uses its own run directory instead.
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
        numbers = {"steps": steps, "samples_per_step": samples_per_step, "accumulation": accumulation}
        whole_numbers(1, **numbers)
        whole_numbers(0, resumed_step=resumed_step)
        if samples_per_step % accumulation:
            raise ConfigError(f"{samples_per_step=} is not a multiple of {accumulation=}")
        model, optimizer = unwrap_model(model), unwrap_optimizer(optimizer)
        self._optimizer, self._steps, self._accumulation = optimizer, steps, accumulation
        self._step = resumed_step
        self._in_pass = False
        self._profiling = ExitStack()  # of the step under way
        self._loss: Tensor | None = None  # of the step under way
        self._stepped = False
        device = compute_device(model)
        self._no_loss = torch.full((), torch.nan, device=device)
        info, group = rank_info(), dist.is_initialized()
        check_group_size(info)
        world = World(**vars(info), device=device, backend=dist.get_backend() if group else None)
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._model_hooks = hooks_of(self._model)
        plan = BatchPlan(samples_per_step // accumulation, accumulation, world.size)
        kind = self._model_hooks.model_section() or {"kind": full_name(original_class(self._model))}
        sections = {"telemetry": telemetry or {}, "resources": {"device": device.type}}
        config = config_of_script(kind, plan, sections)
        refuse_unequal(numbers | {"resumed_step": resumed_step}, world)
        self._output = script_output(run_dir, config, optimizer, world)
        with self._output.recorded_if_it_fails():
            strategy, communication = _communication(model, world)
            facts = facts_of(
                self._output, world, config, plan, steps, uncounted(self._model), communication,
                strategy=strategy, strategy_reason="as the loop wraps its model",
                resumed_step=resumed_step or None,
            )  # fmt: skip
            self._recorder = Recorder(self._output, world, config, facts)
            self._watch = ScriptWatch(world.rank, self._recorder.clock, steps)
            if resumed_step:
                self._recorder.steps.resume(resumed_step)
            self.clock: StepClock = self._recorder.clock
            self._hooks = [
                # first, before fully_shard gathers
                model.register_forward_pre_hook(self._forward_begins, prepend=True),
                optimizer.register_step_pre_hook(self._optimizer_begins),
                optimizer.register_step_post_hook(lambda *_: self.clock.switch(OTHER)),
            ]
            self._comm: DdpExposed | FsdpExposed | None = None
            if communication.method is not None:
                exposed: Any = DdpExposed if isinstance(model, DistributedDataParallel) else FsdpExposed
                self._comm = exposed(model, self.clock)

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
                for number in range(self._accumulation):
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

    @contextmanager
    def outside_steps(self) -> Iterator[None]:
        """Time within, such as a validation or a save after a call of `step`, belongs to no step.

        Raises `RuntimeError` within `steps`.
        """
        if self._in_pass:
            raise RuntimeError("outside_steps() within steps(); use it between two passes over the loader")
        with self._recorder.outside_steps():
            yield

    def record_validation(
        self, loss: float | None, metrics: Mapping[str, float | None], elapsed_s: float
    ) -> None:
        """Record a validation of `elapsed_s` seconds after the newest step: its mean loss, and other figures
        by name."""
        self._recorder.evaluated(
            EvalPoint(step=self._step, loss=loss, metrics={**metrics}, elapsed_s=elapsed_s)
        )

    def _begin_step(self) -> None:
        step, profiled = self._step + 1, self._recorder.profiled
        if step in profiled.steps:
            self._profiling.enter_context(profiled.take(step, self.clock))

    def _end_step(self) -> None:
        self._profiling.close()
        self._step += 1
        loss, self._loss = self._loss, None
        lr = float(self._optimizer.param_groups[0]["lr"])
        missed = self._comm.missed(self._stepped) if self._comm else None
        self._recorder.step_done(
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

    def __enter__(self) -> LoopTelemetry:
        self._recorder.start()
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
            self._recorder.report_of(self._model)
            cause = self._output.stop_cause() if self._step < self._steps else None
            self.metrics: Metrics = self._recorder.finish(cause)
            self._output.close(None, self.metrics)
        else:
            self._output.fail(error)
            self._recorder.abort()

    def _forward_begins(self, model: nn.Module, inputs: Any) -> None:
        if model.training or torch.is_grad_enabled():
            self.clock.switch(COMPUTE)

    def _optimizer_begins(self, *_: Any) -> None:
        self._stepped = True
        self.clock.switch(OPTIMIZER)


def _communication(model: nn.Module, world: World) -> tuple[str | None, Communication]:
    """The strategy of the wrapped model, and how its communication is measured."""
    if world.size == 1:
        return "single", Communication()
    if isinstance(model, DistributedDataParallel):
        return "ddp", Communication(COMM_METHOD, profiles_collectives=True)
    if not is_sharded(model):
        why = "the model is neither wrapped in DistributedDataParallel nor sharded by fully_shard"
        return None, Communication(reason=why)
    elsewhere = not_among_all(model, world)
    method, why_not = (None, elsewhere) if elsewhere else comm_method(model, world)
    return "fsdp2", Communication(method, why_not, elsewhere is None, groups_of_mesh(model))


def unwrap_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer whose `step` updates the parameters.

    `AcceleratedOptimizer`, Fabric's and Lightning's wrappers have it as `optimizer`. Raises `ConfigError` for
    an object that runs no step hooks of torch.
    """
    inner: object = optimizer
    while isinstance(below := getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = below
    if isinstance(inner, torch.optim.Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
        return inner
    raise ConfigError(
        f"optimizer={type(optimizer).__name__}: must be a torch.optim.Optimizer, or have one as its "
        "attribute `optimizer`; give the optimizer that it wraps"
    )


def unwrap_model(model: object) -> nn.Module:
    """The module that all ranks train: DDP, sharded by `fully_shard`, or plain on one rank.

    Fabric's module has it as `_forward_module`; the trainer of a `LightningModule` has it as `model`. Raises
    `ConfigError` for an object that is no module.
    """
    inner = getattr(model, "_forward_module", model)
    inner = getattr(getattr(inner, "_trainer", None), "model", None) or inner
    if isinstance(inner, nn.Module):
        return inner
    raise ConfigError(
        f"model={type(model).__name__}: must be a torch.nn.Module; give the module that it wraps"
    )
