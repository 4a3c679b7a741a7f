"""DistributedDataParallel: every rank holds the model, gradients are averaged in buckets during backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _DEFAULT_BUCKET_CAP_MB

from disttrain.config.sections.parallel import DDPConfig, GradientCommunicationConfig, ParallelConfig
from disttrain.parallel.base import Mesh, Strategy, Timed
from disttrain.parallel.schemes.ddp_hook import GradientHook
from disttrain.parallel.schemes.scheme import build_scheme, by_prefix
from disttrain.parallel.sync_batch_norm import NormGroup, norm_groups, synchronize_batch_norms
from disttrain.runtime.process_group import World, ensure_group

COMM_METHOD = "ddp_backward_tail"
"""From the end of this rank's own backward pass to the end of `backward()`, which waits for the buckets
still in flight, the broadcast of buffers before a forward pass, and the statistics of synchronised batch
norms. Contains waiting for peers and transfer; communication hidden under compute is not in it."""

_STATE = "rank.gradient_communication."


def wrap_buffer_broadcast(
    model: DistributedDataParallel, context: Callable[[], AbstractContextManager[None]]
) -> Callable[[], None]:
    """Run each broadcast of the model's buffers, which precedes a forward pass, within a `context`.

    Returns a function that undoes this. The model is referred to weakly: in a reference cycle it would
    outlive its process group.
    """
    this = weakref.ref(model)

    def broadcast() -> None:
        wrapped = this()
        assert wrapped is not None, "the model itself calls this"
        with context():
            type(wrapped)._sync_buffers(wrapped)

    def undo() -> None:
        if (wrapped := this()) is not None:
            del wrapped._sync_buffers

    # private in DDP, whose buffer hook would replace the broadcast
    model._sync_buffers = broadcast  # type: ignore[method-assign]
    return undo


class DDP(Strategy):
    """`torch.nn.parallel.DistributedDataParallel` with the options of `parallel.ddp`, and the communication
    hook of `parallel.gradient_communication`."""

    comm_method = COMM_METHOD

    def __init__(self, options: DDPConfig, communication: GradientCommunicationConfig) -> None:
        self.options = options
        self.communication = communication
        self._hook: GradientHook | None = None
        self._norms: list[NormGroup] = []
        # DDP rebuilds its buckets once, in the order in which gradients were ready: after the first backward
        # pass, with a static graph after the second, and never where it looks for unused parameters. The
        # order of summation changes with the buckets: from three ranks on, a resumed process would compute
        # other weights than one that never stopped.
        self.priming_passes = 0 if options.find_unused_parameters else 1 + options.static_graph

    def apply(self, model: nn.Module, mesh: Mesh, world: World) -> nn.Module:
        options = self.options
        ensure_group(world)
        if options.sync_batch_norm:
            synchronize_batch_norms(model, world.device)
        self._norms = norm_groups(model)
        sizes: list[Any] | None = None  # PyTorch's own; fractions are valid, though annotations have `int`
        if options.first_bucket_mb is not None:
            sizes = [options.first_bucket_mb, options.bucket_mb or _DEFAULT_BUCKET_CAP_MB]
        wrapped = DistributedDataParallel(
            model,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            forward_sync_buffers=options.broadcast_buffers,
            bucket_cap_mb=options.bucket_mb,
            bucket_cap_mb_list=sizes,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused_parameters,
        )
        if self.communication.scheme != "none":
            scheme = build_scheme(self.communication, world)
            self._hook = GradientHook(wrapped, scheme, self.communication.warmup_steps, world)
            self.compares_collectives = scheme.compares_collectives
        return wrapped

    def on_step(self, step: int) -> None:
        if self._hook is not None:
            self._hook.step = step

    def averages_replicas(self, step: int, last: bool) -> bool:
        every = self._average_every(step)
        return every > 0 and (last or step % every == 0)

    def replicas_agree(self, step: int) -> bool:
        every = self._average_every(step)
        return every == 0 or step % every == 0

    def average_replicas(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        assert self._hook is not None, "only a scheme averages replicas"
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        moments = [  # by name: a loaded optimizer has another order, and the order of summation follows
            value
            for parameter in parameters
            for _, value in sorted(optimizer.state.get(parameter, {}).items())
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point()
        ]
        self._hook.scheme.group.average([*parameters, *moments])

    def _average_every(self, step: int) -> int:
        """Steps between averages of the parameters; 0 where gradients are averaged in `step`."""
        hook = self._hook
        return hook.scheme.average_every if hook is not None and step > hook.warmup_steps else 0

    def micro_step(self, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else cast(DistributedDataParallel, model).no_sync()

    @contextmanager
    def no_comm(self, model: nn.Module) -> Iterator[None]:
        assert isinstance(model, DistributedDataParallel)
        # The first pass without sync after one with sync broadcasts buffers, and then the next one does not.
        broadcasts = model.require_forward_param_sync
        model.require_forward_param_sync = False
        for norm in self._norms:
            norm.silent = True
        try:
            with model.no_sync():
                yield
        finally:
            model.require_forward_param_sync = broadcasts
            for norm in self._norms:
                norm.silent = False

    def unwrap(self, model: nn.Module) -> nn.Module:
        assert isinstance(model, DistributedDataParallel)
        return model.module

    def on_exposed_communication(self, loss: Tensor, call: Callable[[], None]) -> None:
        after_own_backward([loss], call)

    def time_communication(self, model: nn.Module, timed: Timed) -> None:
        assert isinstance(model, DistributedDataParallel)
        wrap_buffer_broadcast(model, partial(timed, None))
        for norm in self._norms:
            norm.around = timed

    def state_dict(self) -> dict[str, Tensor]:
        if self._hook is None:
            return {}
        return {_STATE + name: value for name, value in self._hook.scheme.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up the state of the scheme of gradient communication, which begins anew without one."""
        if self._hook is not None:
            self._hook.scheme.load_state_dict(by_prefix(state, _STATE))


def build(config: ParallelConfig) -> DDP:
    return DDP(config.ddp, config.gradient_communication)


def after_own_backward(outputs: Sequence[torch.Tensor], call: Callable[[], None]) -> None:
    """Have `call` run once in a backward pass through any of `outputs`, when this rank's gradients are all
    computed, before the reducer waits for the buckets still in flight.

    The autograd engine runs its final callbacks in the order they were queued. The hook on what a model
    returned (or on the loss) comes before any gradient in the model, so ours precedes DDP's, which is queued
    at the last bucket. Which of several outputs the loss is made of is not known, so the first one that a
    gradient reaches counts.
    """
    queued = False

    def queue(grad: torch.Tensor) -> None:
        nonlocal queued
        if not queued:
            queued = True
            at_end_of_backward(run)

    def run() -> None:
        nonlocal queued
        queued = False
        call()

    for output in outputs:
        output.register_hook(queue)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Within a backward pass: have `call` run after it, and after all that was queued so before."""
    torch.autograd.Variable._execution_engine.queue_callback(call)
