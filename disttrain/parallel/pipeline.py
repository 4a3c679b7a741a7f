"""Pipeline parallelism: the layers split into stages, one on each rank, by `torch.distributed.pipelining`.

The micro-batches of a step pass through the stages one after another. A rank waits while the pipeline fills
and drains: with p stages of equal cost and m micro-batches, (p - 1) / (m + p - 1) of the schedule (Huang et
al. 2019, arXiv:1811.06965). 1F1B has the same bubble as GPipe, and keeps the activations of at most p
micro-batches instead of m (Narayanan et al. 2021, arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from disttrain.config.sections.parallel import ParallelConfig, PipelineConfig
from disttrain.errors import ConfigError
from disttrain.parallel.base import BatchLoss, HasTally, Mesh, Pass, Strategy, Timed
from disttrain.parallel.broadcast import build_on_rank_0, fill, named_tensors
from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.runtime.process_group import World, set_timeouts

COMM_METHOD = "pipeline_schedule"
"""Time in the schedule outside of this rank's own forward and backward passes: waiting for the neighbouring
stages and transfer of activations, which cannot be separated; then the all-reduce of gradients and of their
norm."""
_SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class _TimedStage(PipelineStage):
    """Runs each pass of a micro-batch within a context."""

    forward_pass: Pass = nullcontext
    backward_pass: Pass = nullcontext

    def _compute_outputs(self, *args: Any, **kwargs: Any) -> Any:
        with self.forward_pass():  # dtypes of the activations that follow are those of autocast
            return super()._compute_outputs(*args, **kwargs)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.forward_pass():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.backward_pass():
            return super().backward_one_chunk(*args, **kwargs)


class _Computed(nn.Module):
    """A model whose output for the next batch is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, inputs: Any) -> Tensor:
        return self._output


class Pipeline(Strategy):
    """Splits the layers by `parallel.pipeline`; replicas of a stage average their gradients once a step."""

    comm_method = COMM_METHOD
    runs_schedule = True
    compares_collectives = False

    def __init__(self, options: PipelineConfig) -> None:
        self.options = options
        self._communicating: Pass = nullcontext
        self._schedule: PipelineScheduleSingle | None = None
        self._validation: PipelineScheduleSingle | None = None
        self._validation_rows = 0

    def mesh(self, world: World) -> Mesh:
        stages = self.options.stages
        return Mesh(rank=world.rank, replicate=world.size // stages, pipeline=stages)

    def build(self, make: Callable[[], nn.Module], world: World) -> nn.Module:
        return build_on_rank_0(make, world)

    def apply(self, model: nn.Module, mesh: Mesh, world: World) -> nn.Module:
        """This rank's stage of `model`: the result of its method `pipeline_stage(stage, stages)`, a module
        with the modules of one stage under the names that they have in the model. It takes and returns one
        tensor; the first stage takes the model's input, the last returns its output.

        Raises `ConfigError` if the model cannot be split.
        """
        if not hasattr(type(model), "pipeline_stage"):  # of a wrapper, the attribute is that of its module
            raise ConfigError(
                f"parallel.strategy=pipeline cannot split a {type(model).__name__}: it has no method "
                "`pipeline_stage`; use model.kind=gpt, or another strategy"
            )
        if "forward" in vars(model):
            raise ConfigError(
                "parallel.strategy=pipeline: one of model.transforms replaced the forward pass of the whole "
                "model, which no stage runs; transform its blocks instead"
            )
        device_mesh = init_device_mesh(
            world.device.type, (mesh.pipeline, mesh.data_size), mesh_dim_names=("pipeline", "replicate")
        )
        set_timeouts(device_mesh, world)
        self._mesh = mesh
        self._device = world.device
        self._stages = device_mesh.get_group("pipeline")
        self._replicas = CountedGroup(device_mesh.get_group("replicate"))
        initial = named_tensors(model)
        stage: nn.Module = cast(Any, model).pipeline_stage(mesh.stage, mesh.pipeline)
        for name, _ in stage.named_buffers():
            raise ConfigError(
                f"parallel.strategy=pipeline: the model has a buffer {name}; checkpoints and validation take "
                "buffers from rank 0, which has other layers"
            )
        stage.to_empty(device=world.device)
        fill(stage, initial, world)
        return stage

    def run_schedule(
        self, model: nn.Module, batches: Sequence[Any], loss: BatchLoss, forward: Pass, backward: Pass
    ) -> Tensor:
        """See `Strategy.run_schedule`. A batch is (inputs, targets), of the same shapes in every step."""
        if self._schedule is None:
            self._schedule = self._new_schedule(model, len(batches), loss, forward, backward)
        inputs = (torch.cat([inputs for inputs, _ in batches]),) if self._is_first else ()
        targets = torch.cat([targets for _, targets in batches]) if self._is_last else None
        losses: list[Tensor] = []
        self._schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
        total = torch.stack(losses).detach().sum() if losses else torch.zeros((), device=self._device)
        dist.broadcast(total, group=self._stages, group_src=self._mesh.pipeline - 1)
        if self._replicas.size > 1:
            with self._communicating():
                self._replicas.average([p.grad for p in model.parameters() if p.grad is not None])
        return total

    def batch_tally(self, model: nn.Module, batch: Any, objective: HasTally) -> Tensor:
        """The tally of the last stage, zeros on the others. All stages together, with the same `batch`."""
        inputs, targets = batch
        if self._validation is None:
            self._validation_rows = len(inputs)
            self._validation = ScheduleGPipe(self._new_stage(model), 1)
        missing = self._validation_rows - len(inputs)  # the schedule takes batches of one shape
        whole = torch.cat([inputs, inputs[:1].expand(missing, *inputs.shape[1:])]) if missing else inputs
        output = self._validation.step(*((whole,) if self._is_first else ()))
        if output is None:
            return torch.zeros(3, dtype=torch.float64, device=self._device)
        return objective.batch_tally(_Computed(output[: len(inputs)]), (inputs, targets))

    def grad_norm(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> Tensor:
        """L2 norm of the gradients of all stages."""
        squared = super().grad_norm(model, parameters).square()
        with self._communicating():
            dist.all_reduce(squared, group=self._stages)
        return squared.sqrt()

    def time_communication(self, model: nn.Module, timed: Timed) -> None:
        """Time the all-reduces of gradients and of their norm."""
        self._communicating = partial(timed, None)

    @property
    def _is_first(self) -> bool:
        return self._mesh.stage == 0

    @property
    def _is_last(self) -> bool:
        return self._mesh.stage == self._mesh.pipeline - 1

    def _new_stage(self, model: nn.Module) -> _TimedStage:
        mesh = self._mesh
        return _TimedStage(model, mesh.stage, mesh.pipeline, self._device, group=self._stages)

    def _new_schedule(
        self, model: nn.Module, micro_batches: int, loss: BatchLoss, forward: Pass, backward: Pass
    ) -> PipelineScheduleSingle:
        def loss_of(output: Tensor, targets: Tensor) -> Tensor:
            with forward():
                return loss(_Computed(output), (None, targets))

        stage = self._new_stage(model)
        stage.forward_pass, stage.backward_pass = forward, backward
        kind = _SCHEDULES[self.options.schedule]
        return kind(stage, micro_batches, loss_fn=loss_of, scale_grads=False)


def build(config: ParallelConfig) -> Pipeline:
    return Pipeline(config.pipeline)
