"""The interface of a strategy, the mesh of the ranks that it lays out, and its construction by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from disttrain.config.sections.parallel import ParallelConfig
from disttrain.runtime.fully_shard_hooks import Dimension
from disttrain.runtime.plug_ins import load_plug_in
from disttrain.runtime.process_group import World


@dataclass(frozen=True)
class Mesh:
    """World rank = (pipeline * replicate size + replicate) * shard size + shard, each index from 0.

    Ranks that differ in `replicate` or `shard` read different samples; ranks that differ in `pipeline` alone
    hold different layers and read the same samples.
    """

    rank: int
    replicate: int = 1
    """Copies of the parameters."""
    shard: int = 1
    """Ranks that share one copy of the parameters."""
    pipeline: int = 1
    """Pipeline stages."""

    @property
    def size(self) -> int:
        """Ranks of the mesh, which is the world."""
        return self.replicate * self.shard * self.pipeline

    @property
    def data_size(self) -> int:
        """Number of ranks that read different samples."""
        return self.replicate * self.shard

    @property
    def stage(self) -> int:
        """Pipeline stage of this rank."""
        return self.rank // self.data_size

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """World ranks of this rank's stage, which hold the same layers."""
        return tuple(range(self.stage * self.data_size, (self.stage + 1) * self.data_size))

    @property
    def data_rank(self) -> int:
        """Position of this rank among those that read different samples: the sampler's rank."""
        return self.rank % self.data_size


BatchLoss = Callable[[nn.Module, Any], Tensor]
Pass = Callable[[], AbstractContextManager[None]]
Timed = Callable[[Dimension | None], AbstractContextManager[None]]
"""Context of a wait for communication over a dimension of the mesh; None: over all ranks."""


class HasTally(Protocol):
    """The part of an `Objective` that a validation needs."""

    def batch_tally(self, model: nn.Module, batch: Any) -> Tensor:
        """(summed loss, items, correct) of a batch, three values of dtype float64."""


class Strategy:
    """Makes a model parallel and runs its passes. The defaults are those of a model that is left as it is.

    `model` is the module that `apply` returned, except in `apply`.
    """

    comm_method: str | None = None
    """Name of the method by which exposed communication is measured; None where nothing communicates, or
    where it is not measured."""
    comm_reason: str | None = None
    """Reason why exposed communication is not measured, if something communicates."""
    gathers_parameters = False
    """Whether a forward pass, also without gradients, is a collective."""
    priming_passes = 0
    """Number of first backward passes of a process that sum gradients in another order than the later ones.
    As many passes without effect precede the first step."""

    runs_schedule = False
    """Whether `run_schedule` runs the passes of all micro-batches of a step, in place of one `micro_step` for
    each."""
    compares_collectives = True
    """Whether all ranks take part in the same collectives of a step, so that the ranks' times in each of them
    can be compared."""

    autocast_dtype: torch.dtype | None = None
    """Dtype of autocast in the passes; set before `apply`."""

    def mesh(self, world: World) -> Mesh:
        """Positions of the ranks. Raises `ConfigError` if the world does not divide into it."""
        return Mesh(rank=world.rank, replicate=world.size)

    def build(self, make: Callable[[], nn.Module], world: World) -> nn.Module:
        """The model of `make`, which `apply` receives after the transforms: on the device, in host memory, or
        without memory. `make` draws random numbers."""
        return make().to(world.device)

    def apply(self, model: nn.Module, mesh: Mesh, world: World) -> nn.Module:
        """The parallel model. All ranks together."""
        return model

    def parameters(self, model: nn.Module) -> Iterable[nn.Parameter]:
        """Parameters that the optimizer of this rank updates."""
        return model.parameters()

    def on_step(self, step: int) -> None:
        """Optimizer step `step` (1 is the first) begins; passes before the first step belong to no step."""

    def averages_replicas(self, step: int, last: bool) -> bool:
        """Whether `average_replicas` follows optimizer step `step`, which may be the last of the run."""
        return False

    def average_replicas(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Average parameters and optimizer state over ranks. All ranks together."""

    def replicas_agree(self, step: int) -> bool:
        """Whether all ranks hold the same parameters and optimizer state after step `step`. A checkpoint is
        taken only then."""
        return True

    def micro_step(self, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Context of the forward and backward pass of one micro-batch; gradients travel with the `last`
        one."""
        return nullcontext()

    def drop_gradients(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Drop the gradients of an accumulation that ends before its last micro-step."""
        optimizer.zero_grad(set_to_none=True)

    def grad_norm(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> Tensor:
        """L2 norm of the gradients of these parameters over the whole model, a scalar on the device, equal on
        all ranks. All ranks together."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def run_schedule(
        self, model: nn.Module, batches: Sequence[Any], loss: BatchLoss, forward: Pass, backward: Pass
    ) -> Tensor:
        """Run the forward and backward passes of a step over its micro-batches, and reduce the gradients.

        Returns the sum of the losses, a scalar on the device, on every rank. `loss` is the share of a model
        and a micro-batch in the step's loss. `forward` and `backward` are the contexts of the passes of one
        micro-batch; all other time counts as exposed communication. Raises `NotImplementedError` unless the
        strategy `runs_schedule`.
        """
        raise NotImplementedError

    def batch_tally(self, model: nn.Module, batch: Any, objective: HasTally) -> Tensor:
        """This rank's contribution to the tally of a validation, by `objective`.

        The first batch of a validation is the largest. Ranks may have different numbers of batches.
        """
        return objective.batch_tally(self.unwrap(model), batch)

    def evaluation(self, model: nn.Module) -> AbstractContextManager[None]:
        """Context of forward passes between steps, without gradients. All ranks run equally many if the
        strategy `gathers_parameters`."""
        return torch.inference_mode()

    def no_comm(self, model: nn.Module) -> AbstractContextManager[None]:
        """Context of passes without communication that leave the wrapper's state unchanged; not of a model
        that `gathers_parameters`."""
        return nullcontext()

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The module given to `apply`, with the parameters that `apply` left in it."""
        return model

    def on_exposed_communication(self, loss: Tensor, call: Callable[[], None]) -> None:
        """Have `call` run in the backward pass from `loss` when only communication is left of it."""

    def time_communication(self, model: nn.Module, timed: Timed) -> None:
        """Have compute wait for communication within `timed`, except for what `on_exposed_communication`
        begins: for a broadcast of buffers, or for gathered parameters."""

    def exposed_comm_reason(self) -> str | None:
        """At the end of a step: the reason why some of its communication was not timed; None if all was."""
        return None

    def comm_groups(self, model: nn.Module) -> Mapping[Dimension, dist.ProcessGroup]:
        """This rank's process groups of the dimensions that `timed` is called with."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """State of this rank that a resumed run needs, by names that begin with `rank.`."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up the state of a checkpoint, which is empty if another number of ranks wrote it."""


def build_strategy(name: str, config: ParallelConfig) -> Strategy:
    """The strategy that `build(config)` of `disttrain/parallel/<name>.py` returns, or `package.module:name`
    with `parallel.options` as keyword arguments. Raises `ConfigError`."""
    build = load_plug_in("parallel.strategy", str(__package__), name)
    built: Strategy = build(**config.options) if ":" in name else build(config)
    return built
