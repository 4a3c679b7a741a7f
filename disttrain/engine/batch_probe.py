"""`python -m disttrain.engine.batch_probe FOLDER`: the process that probes batch sizes for one rank.

A process of its own may run out of memory, or be killed for it, without an effect on the rank that waits for
it. All probe processes of a run form a process group of their own and train as the run does.

Peak memory is a + b x batch: weights, gradients and optimizer state do not depend on the batch, activations
are proportional to it. Two probes give a and b.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from disttrain.config.batch_plan import BatchPlan, plan_batch
from disttrain.config.config_tree import Config
from disttrain.engine.memory_limits import host_limit
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import build_stepper
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import BatchFit, BatchProbe
from disttrain.records.json_files import read_json, write_json
from disttrain.runtime.device import peak_memory_bytes, reset_peak_memory
from disttrain.runtime.kernels import attention_kernel
from disttrain.runtime.process import die_with_parent
from disttrain.runtime.process_group import World, launcher_store, open_world
from disttrain.runtime.stop_signals import ignore_stop_signals
from disttrain.transforms.compilation import compiling

RESERVE = 0.07
"""Fraction of the limit kept free, for fragmentation and for growth after the probes."""
SAME_SPEED = 0.02
"""Relative difference of throughput below which the smaller batch is preferred."""
GAIN = 0.03
"""A size that is faster than all before by less than this share counts as no gain."""
STALLS = 2
"""Successive sizes without gain after which no larger one is tried."""
_ROUND_TO = 8
"""Sizes of 8 and more are multiples of it, as matrix units prefer."""
WARM_UP_STEPS = 2
"""Steps before the timed ones: the first creates the optimizer's state and, with DDP, buckets."""
TIMED_S = 0.5
"""Duration of the timed steps of a probe, between `TIMED_STEPS` steps."""
TIMED_STEPS = (3, 20)
VERIFIED_STEPS = 20
MAX_ACCUMULATION = 8
"""Micro-steps of a probe's step: more would take longer and use no more memory."""
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "STATUS_ALLOC_FAILED",  # a handle of cuBLAS or cuDNN
)


def main(folder: Path) -> None:
    """Answer the request of `folder`."""
    die_with_parent()
    ignore_stop_signals()
    with contextlib.suppress(OSError):  # the OOM killer shall choose this process, not the rank that waits
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    request = read_json(folder / "request.json")
    config = Config.model_validate(request["config"])
    answers: dict[str, Any] = {}

    def answer(**values: Any) -> None:
        answers.update(values)
        write_json(folder / "answer.json", answers, durable=False)

    try:
        with (
            open_world(config, launcher_store(request["store_prefix"])) as world,
            attention_kernel(config.train.attention),
        ):
            fit = Probe(config, world, lambda size: answer(trying=size)).run(request["failed"])
            answer(fit=fit)
    except ConfigError as error:
        answer(refused=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        answer(out_of_memory=True)
        print(f"out of memory: {error}", file=sys.stderr)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


class Probe:
    """Trains with one local batch size after another. All probe processes together."""

    def __init__(self, config: Config, world: World, trying: Callable[[int], None]) -> None:
        self._config, self._world, self._trying = config, world, trying
        self._began = time.monotonic()
        limit, self._limit_source = _device_limit(config, world) or host_limit(world.local_size)
        self._limit = round(-world.all_reduce_max([-limit])[0])
        self._budget = (1 - RESERVE) * self._limit
        one_sample = config.with_values("train", local_batch_size=1, global_batch_size=None, steps=1)
        self._spec = spec_of_config(one_sample, world)
        self._ranks, global_ = self._spec.mesh.data_size, config.train.global_batch_size
        self._multiple = None if global_ is None else plan_batch(None, global_, self._ranks).local
        self._stepper = build_stepper(self._spec, world)

    def run(self, failed: Sequence[int] = ()) -> BatchFit:
        """The fastest size that fits, below those that `failed`.

        Raises `ConfigError` without one, and `MemoryError` if its verification needs more than its probe.
        """
        assert self._spec.source is not None
        samples = max(1, self._spec.source.record.train_samples // self._ranks)
        limit = min([samples, *(size - 1 for size in failed)])
        batch_norm = any(isinstance(module, _BatchNorm) for module in self._stepper.model.modules())
        smallest = 2 if batch_norm else 1  # batch norms of vectors need two samples
        probes = search(self.measure, self._multiple, limit, self._budget, smallest)
        size = choose(probes, self._budget)
        if size is None:
            needed = f" ({probes[0].peak_bytes >> 20} MiB)" if probes else ""
            raise ConfigError(
                f"train.local_batch_size=auto: no batch size fits; of {self._limit >> 20} MiB "
                f"({self._limit_source}), {round(self._budget) >> 20} MiB may be used, and the smallest size "
                f"needs more{needed}; use memory.activation_checkpointing=full, a smaller model, or devices "
                "with more memory"
            )
        verified = self.measure(size, verify=True)
        if verified.peak_bytes > self._budget:
            raise MemoryError(f"{size} samples take {verified.peak_bytes >> 20} MiB in the verification")
        fixed, slope = fit_memory(probes)
        return BatchFit(
            local_batch_size=size,
            accumulation=self._accumulation(size),
            limit_bytes=self._limit,
            limit_source=self._limit_source,
            reserve=RESERVE,
            fixed_bytes=round(fixed),
            bytes_per_sample=slope,
            probes=probes,
            out_of_memory=list(failed),
            verified_steps=VERIFIED_STEPS,
            verified_peak_bytes=verified.peak_bytes,
            seconds=time.monotonic() - self._began,
        )

    def measure(self, size: int, verify: bool = False) -> BatchProbe:
        """Train with `size` samples a rank for about `TIMED_S`, or to `verify` it, with a validation."""
        self._trying(size)
        stepper, source, device = self._stepper, self._spec.source, self._world.device
        assert source is not None
        plan = BatchPlan(size, min(self._accumulation(size), MAX_ACCUMULATION), self._ranks)
        batches = itertools.repeat(dataclasses.replace(self._spec, plan=plan).example())
        stepper.plan = plan
        if self._config.compile.scope != "none":
            torch.compiler.reset()  # the graphs of all sizes would exceed the limit, and run uncompiled
        reset_peak_memory(device)
        with compiling(self._config.compile, self._config.train.attention):
            warm_up_s = max(self._seconds(1, batches) for _ in range(WARM_UP_STEPS))
        steps = min(max(math.ceil(TIMED_S / warm_up_s), TIMED_STEPS[0]), TIMED_STEPS[1])
        steps = VERIFIED_STEPS if verify else steps
        elapsed_s = self._seconds(steps, batches)
        if verify and source.valid is not None:  # two batches on each rank
            stepper.validate(source.valid, 1, 2 * size * self._ranks)
        (peak_bytes,) = self._world.all_reduce_max([peak_memory_bytes(device)])
        rate = steps * plan.global_ / elapsed_s
        return BatchProbe(local_batch_size=size, peak_bytes=round(peak_bytes), samples_per_s=rate)

    def _seconds(self, steps: int, batches: Iterator[Any]) -> float:
        """Duration of some steps on the slowest rank."""
        began = time.monotonic()
        for _ in range(steps):
            self._stepper.clock.start()  # forgets the marks of the step before
            self._stepper.step(1, batches)
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        (elapsed_s,) = self._world.all_reduce_max([time.monotonic() - began])
        return elapsed_s

    def _accumulation(self, size: int) -> int:
        return (self._multiple or size) // size


def _device_limit(config: Config, world: World) -> tuple[int, str] | None:
    """Memory that this rank's allocator may reach on its GPU; None on the CPU.

    The allocator is held to the limit without the reserve, so that a probe beyond it fails alone.
    """
    if world.device.type != "cuda":
        return None
    world.all_gather_object(None)  # every rank of a shared GPU measures before any allocates more
    free, total = torch.cuda.mem_get_info(world.device)
    sharing = world.local_size if config.resources.device == "shared" else 1
    limit = torch.cuda.memory_reserved(world.device) + free // sharing
    torch.cuda.set_per_process_memory_fraction(min(1.0, (1 - RESERVE) * limit / total), world.device)
    return limit, f"free memory of {torch.cuda.get_device_name(world.device)}"


def search(
    measure: Callable[[int], BatchProbe],
    multiple: int | None,
    limit: int,
    budget_bytes: float,
    smallest: int = 1,
) -> list[BatchProbe]:
    """Probe growing sizes up to `limit` while their predicted peak fits and they become faster; at the end
    the largest size that fits.

    `multiple`: the local batch size must divide it; None: any size. The result is in ascending order, and is
    empty only without a size between `smallest` and `limit`.
    """
    allowed = [smallest] if multiple is None else [s for s in range(1, multiple + 1) if multiple % s == 0]
    size = next((size for size in allowed if smallest <= size <= limit), None)
    probes: list[BatchProbe] = []
    while size is not None:
        probes.append(measure(size))
        speeds = [probe.samples_per_s for probe in probes]
        stalled = max(speeds[-STALLS:]) < (1 + GAIN) * max(speeds[:-STALLS], default=0.0)
        if stalled or probes[-1].peak_bytes > budget_bytes:
            break
        fixed, slope = fit_memory(probes)
        bound = min(limit, int((budget_bytes - fixed) / slope)) if slope else limit
        if multiple is None:
            allowed = [2 * size, bound - bound % _ROUND_TO or bound]
        larger = [other for other in allowed if size < other <= bound]
        size = next((other for other in larger if other >= 1.5 * size), max(larger, default=None))
    return probes


def fit_memory(probes: Sequence[BatchProbe]) -> tuple[float, float]:
    """(a, b) of peak = a + b x batch, in bytes, through the smallest and the largest probe."""
    first, last = probes[0], probes[-1]
    samples = max(1, last.local_batch_size - first.local_batch_size)
    slope = max(0.0, (last.peak_bytes - first.peak_bytes) / samples)
    return first.peak_bytes - slope * first.local_batch_size, slope


def choose(probes: Sequence[BatchProbe], budget_bytes: float) -> int | None:
    """Of the sizes that fit, the fastest, and of nearly equal ones the smallest."""
    fitting = [probe for probe in probes if probe.peak_bytes <= budget_bytes]
    enough = (1 - SAME_SPEED) * max((probe.samples_per_s for probe in fitting), default=0.0)
    return next((probe.local_batch_size for probe in fitting if probe.samples_per_s >= enough), None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(0)  # a process group whose peers are gone would wait in its shutdown
