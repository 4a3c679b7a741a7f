"""The telemetry around a training loop that is not ours, in three lines:

    with LoopTelemetry("runs/mine/n2", model, optimizer, steps=1000, samples_per_step=32) as telemetry:
        for inputs, targets in telemetry.steps(loader):
            ...  # forward, backward, optimizer.step(), as before
            telemetry.note(loss)  # optional: the loss curve

What begins when is heard from hooks: `next(loader)`, the model's forward pass, the end of backward, the
optimizer's step. The records, `metrics.json` and the report are those of any run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from disttrain import records
from disttrain.config import Config
from disttrain.failure import describe
from disttrain.output import Output
from disttrain.parallel import ddp
from disttrain.records import Metrics
from disttrain.rundir import write_json
from disttrain.telemetry.phases import COMM, COMPUTE, INPUT, OPTIMIZER, OTHER, StepClock, after_own_backward
from disttrain.telemetry.run import RunTelemetry
from disttrain.torchrun import place
from disttrain.train import describe_machine
from disttrain.world import World

T = TypeVar("T")


class LoopTelemetry:
    """Measures a loop over steps of one `model` and `optimizer`. Made and left on all ranks together.

    Args:
        run_dir: where the records go; on all ranks rank 0's choice counts.
        model: wrapped in `DistributedDataParallel` by the caller, or alone.
        steps: optimizer steps of the whole loop.
        samples_per_step: samples that this rank trains on in one optimizer step.
        accumulation: batches that share one optimizer step.
        telemetry: keys of the config section of that name, such as `warmup_steps`.
    """

    def __init__(
        self,
        run_dir: str | Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int,
        samples_per_step: int,
        accumulation: int = 1,
        telemetry: dict[str, Any] | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._accumulation = accumulation
        self._step = 0
        self._loss: Tensor | None = None
        device = next(model.parameters()).device
        group = dist.is_initialized()
        self._world = World(**vars(place()), device=device, backend=dist.get_backend() if group else None)
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        kind = f"{type(bare).__module__}:{type(bare).__qualname__}"
        local = samples_per_step // accumulation
        config = Config.model_validate(
            {
                "model": {"kind": kind},
                "train": {"steps": steps, "local_batch_size": local},
                "resources": {
                    "nodes": self._world.nodes,
                    "gpus_per_node": self._world.local_size,
                    "device": device.type,
                    "threads_per_rank": torch.get_num_threads(),
                },
                "telemetry": telemetry or {},
            }
        )
        self._output = Output.by_hand(Path(run_dir), Path("loop"), config, self._world)
        self._communicates = isinstance(model, DistributedDataParallel) and self._world.size > 1
        facts = {
            **self._output.identity(),
            **describe_machine(self._world, config),
            "strategy": "ddp" if self._communicates else "single",
            "strategy_reason": "as the loop wraps its model",
            "comm_method": ddp.COMM_METHOD if self._communicates else None,
            "model": kind,
            "parameters": sum(p.numel() for p in bare.parameters()),
            "model_flops_per_sample": None,
            "flops_method": None,
            "dataset": records.Dataset(
                name="the loop's own", version=None, sha256=None, train_samples=0, valid_samples=0
            ),
            "steps_total": steps,
            "local_batch_size": local,
            "accumulation": accumulation,
            "global_batch_size": samples_per_step * self._world.size,
            "tokens_per_sample": None,
        }
        self._telemetry = RunTelemetry(self._output.run, self._output.attempt, self._world, config, facts)
        self.clock: StepClock = self._telemetry.clock
        self._hooks = [
            model.register_forward_pre_hook(self._forward_begins),
            model.register_forward_hook(self._forward_done),
            optimizer.register_step_pre_hook(lambda *_: self.clock.switch(OPTIMIZER)),
            optimizer.register_step_post_hook(lambda *_: self.clock.switch(OTHER)),
        ]

    def steps(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of one pass over `loader`; each `accumulation` of them are one step.

        What happens between two passes, such as a validation, belongs to no step.
        """
        batches = iter(loader)
        if self._step:
            self.clock.start()
        else:
            self._telemetry.start()
        while True:
            look, step = self._telemetry.look, self._step + 1
            with look.at(step, self) if step in look.steps else nullcontext():
                for _ in range(self._accumulation):
                    self.clock.switch(INPUT)
                    try:
                        batch = next(batches)
                    except StopIteration:
                        return
                    yield batch
            self._step = step
            loss = torch.tensor(torch.nan) if self._loss is None else self._loss
            self._telemetry.step_done(self._step, loss, float(self._optimizer.param_groups[0]["lr"]))

    def note(self, loss: Tensor) -> None:
        """The mean loss of this rank's samples in this step, for the loss curve."""
        self._loss = loss.detach()

    def __enter__(self) -> LoopTelemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        if error is None:
            self.metrics: Metrics = self._telemetry.finish()
            self._output.close(None, self.metrics)
        else:
            self._telemetry.abort()
            record = describe(error, self._world.rank)
            write_json(self._output.attempt.error(self._world.rank), record.model_dump(mode="json"))
            self._output.close(record)

    def _forward_begins(self, model: nn.Module, inputs: Any) -> None:
        if model.training:
            self.clock.switch(COMPUTE)

    def _forward_done(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if self._communicates and model.training and isinstance(output, Tensor) and output.requires_grad:
            after_own_backward(output, self._own_backward_done)

    def _own_backward_done(self) -> None:
        self.clock.switch(COMM)
        # the reducer's own callback is queued by now, so this one runs when it is done
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.clock.switch(OTHER))
