"""The communication hook of DDP that hands each bucket to a scheme, beside the backward pass.

A scheme makes several collectives in a row. Chained as callbacks of futures, gloo would start the later ones
from its worker threads, in another order on each rank. One thread therefore runs the buckets in order; on
NCCL, where collectives are queued, a stream of its own does.
"""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from disttrain.parallel.schemes.scheme import FlatGradient, Scheme
from disttrain.runtime.process_group import World

BucketFuture = torch.futures.Future[Tensor]
Call = Callable[[], Tensor]


class GradientHook:
    """Averages the buckets of `model` by `scheme` from optimizer step `warmup_steps` + 1 on.

    Before, and in a backward pass that belongs to no step (`step` is 0), buckets are averaged uncompressed:
    the pass that primes the buckets leaves no trace in the state of a scheme.
    """

    def __init__(
        self, model: DistributedDataParallel, scheme: Scheme, warmup_steps: int, world: World
    ) -> None:
        self.step = 0
        self.scheme = scheme
        self.warmup_steps = warmup_steps
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._run = _on_stream(world.device) if world.backend == "nccl" else _on_thread(self, world.device)
        model.register_comm_hook(self, _hook)

    def start(self, bucket: dist.GradBucket) -> BucketFuture:
        """Begin to average `bucket`."""
        shapes = {self._names[id(parameter)]: parameter.shape for parameter in bucket.parameters()}
        gradient = FlatGradient(bucket.buffer(), shapes, bucket.index())
        scheme, step = self.scheme, self.step
        compresses = step > self.warmup_steps

        def average() -> Tensor:
            with torch.no_grad():
                if compresses:
                    scheme.average(gradient, step)
                else:
                    Scheme.average(scheme, gradient, step)
            return gradient.values

        return self._run(average)


def _hook(hook: GradientHook, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    # DDP compares the annotations with types: this module does not postpone them
    return hook.start(bucket)


def _on_thread(owner: object, device: torch.device) -> Callable[[Call], BucketFuture]:
    """Run calls one after the other on a thread, which ends with `owner`."""
    queue: SimpleQueue[tuple[Call, Any] | None] = SimpleQueue()
    devices: list[int | str | torch.device] = [device] if device.type == "cuda" else []

    def serve() -> None:
        if devices:
            torch.cuda.set_device(device)
        while (item := queue.get()) is not None:
            call, future = item
            try:
                future.set_result(call())
            except Exception as error:
                future.set_exception(error)
            del item, call, future  # the thread keeps no bucket while it waits

    def submit(call: Call) -> BucketFuture:
        future: BucketFuture = torch.futures.Future(devices=devices)
        queue.put((call, future))
        return future

    weakref.finalize(owner, queue.put, None)
    threading.Thread(target=serve, name="gradient-communication", daemon=True).start()
    return submit


def _on_stream(device: torch.device) -> Callable[[Call], BucketFuture]:
    """Queue calls one after the other on a stream, behind the work that the device has so far."""
    stream = torch.cuda.Stream(device)

    def submit(call: Call) -> BucketFuture:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            future: BucketFuture = torch.futures.Future(devices=[device])
            future.set_result(call())
        return future

    return submit
