"""`python -m disttrain.engine.batch_probe FOLDER`: the process that probes batch sizes for one rank.

A process of its own may run out of memory, or be killed for it, without an effect on the rank that waits for
it. All probe processes of a run form a process group of their own and train as the run does. The request is
`request.json` of the folder. `answer.json` has the size that is tried, and at the end `fit`, the result, or
`refused`, the reason why the config cannot be run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from disttrain.config.batch_plan import BatchPlan, plan_batch
from disttrain.config.config_tree import Config
from disttrain.engine import batch_fit
from disttrain.engine.batch_fit import EXIT_OUT_OF_MEMORY, STORE_PREFIX
from disttrain.engine.host_limit import peak_resident_bytes, reset_peak
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import build_stepper
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from disttrain.records.checkpoint import BatchFit, BatchProbe
from disttrain.records.json_files import read_json, write_json
from disttrain.runtime.kernels import attention_kernel
from disttrain.runtime.process import die_with_parent
from disttrain.runtime.process_group import World, launcher_store, open_world
from disttrain.runtime.stop_signals import ignore_stop_signals
from disttrain.transforms.compilation import compiling

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


def main(folder: Path) -> int:
    """Answer the request of `folder`. Exit code: 0 found, 2 refused, `EXIT_OUT_OF_MEMORY`."""
    die_with_parent()
    ignore_stop_signals()
    with contextlib.suppress(OSError):  # the OOM killer shall choose this process, not the rank that waits
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    request = read_json(folder / "request.json")
    config = Config.model_validate(request["config"])

    def answer(**values: Any) -> None:
        write_json(folder / "answer.json", values, durable=False)

    try:
        with (
            open_world(config, launcher_store(os.environ.get(STORE_PREFIX, ""))) as world,
            attention_kernel(config.train.attention),
        ):
            fit = Probe(config, request, world, lambda size: answer(trying=size)).run()
            answer(trying=fit.local_batch_size, fit=fit.model_dump(mode="json"))
        return 0
    except ConfigError as error:
        answer(refused=str(error))
        return EXIT_BAD_INPUT
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"out of memory: {error}", file=sys.stderr)
        return EXIT_OUT_OF_MEMORY


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)


class Probe:
    """Trains with one local batch size after another. All probe processes together."""

    def __init__(
        self, config: Config, request: dict[str, Any], world: World, trying: Callable[[int], None]
    ) -> None:
        self._config, self._world, self._trying, self._below = config, world, trying, request["below"]
        self._began = time.monotonic()
        one_sample = config.with_values("train", local_batch_size=1, global_batch_size=None, steps=1)
        self._spec = spec_of_config(one_sample, world)
        self._ranks = self._spec.mesh.data_size
        global_ = config.train.global_batch_size
        self._multiple = None if global_ is None else plan_batch(None, global_, self._ranks).local
        host_limit: tuple[int, str] = request["limit_bytes"], request["limit_source"]
        limit, self._limit_source = _device_limit(config, world) or host_limit
        self._limit = round(-world.all_reduce_max([-limit])[0])
        self._budget = (1 - batch_fit.RESERVE) * self._limit - request["parent_bytes"]
        self._stepper = build_stepper(self._spec, world)

    def run(self) -> BatchFit:
        """The fastest size that fits. Raises `ConfigError` without one."""
        assert self._spec.source is not None
        limit = max(1, self._spec.source.record.train_samples // self._ranks)
        if self._below is not None:
            limit = min(limit, self._below - 1)
        batch_norm = any(isinstance(module, _BatchNorm) for module in self._stepper.model.modules())
        smallest = 2 if batch_norm else 1  # batch norms of vectors need two samples
        probes = batch_fit.search(self.measure, self._multiple, limit, self._budget, smallest)
        for probe in batch_fit.by_preference(probes, self._budget):
            verified = self.measure(probe.local_batch_size, VERIFIED_STEPS, validate=True)
            if verified.peak_bytes <= self._budget:
                return self._fit(verified, probes)
        needed = f" ({probes[0].peak_bytes >> 20} MiB)" if probes else ""
        raise ConfigError(
            f"train.local_batch_size=auto: no batch size fits; of {self._limit >> 20} MiB "
            f"({self._limit_source}), {round(self._budget) >> 20} MiB may be used, and the smallest size "
            f"needs more{needed}; use memory.activation_checkpointing=full, a smaller model, or devices with "
            "more memory"
        )

    def measure(self, size: int, steps: int | None = None, validate: bool = False) -> BatchProbe:
        """Train with `size` samples a rank, by default for about `TIMED_S`."""
        self._trying(size)
        world, source = self._world, self._spec.source
        assert source is not None
        plan = BatchPlan(size, min(self._accumulation(size), MAX_ACCUMULATION), self._ranks)
        batches = itertools.repeat(dataclasses.replace(self._spec, plan=plan).example())
        self._stepper.plan = plan
        if self._config.compile.scope != "none":
            torch.compiler.reset()  # the graphs of all sizes would exceed the limit, and run uncompiled
        on_gpu = world.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(world.device)
        else:
            reset_peak()
        with compiling(self._config.compile, self._config.train.attention):
            warm_up_s = max(self._seconds(1, batches) for _ in range(WARM_UP_STEPS))
        if steps is None:
            steps = min(max(math.ceil(TIMED_S / warm_up_s), TIMED_STEPS[0]), TIMED_STEPS[1])
        elapsed_s = self._seconds(steps, batches)
        if validate and source.valid is not None:  # two batches on each rank
            self._stepper.validate(source.valid, 1, 2 * size * self._ranks)
        peak = torch.cuda.max_memory_allocated(world.device) if on_gpu else peak_resident_bytes()
        (peak_bytes,) = world.all_reduce_max([peak])
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

    def _fit(self, verified: BatchProbe, probes: list[BatchProbe]) -> BatchFit:
        fixed, slope = batch_fit.fit_memory(probes)
        return BatchFit(
            local_batch_size=verified.local_batch_size,
            accumulation=self._accumulation(verified.local_batch_size),
            limit_bytes=self._limit,
            limit_source=self._limit_source,
            reserve=batch_fit.RESERVE,
            fixed_bytes=round(fixed),
            bytes_per_sample=slope,
            probes=probes,
            verified_steps=VERIFIED_STEPS,
            verified_peak_bytes=verified.peak_bytes,
            seconds=time.monotonic() - self._began,
        )


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
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (1 - batch_fit.RESERVE) * limit / total), world.device
    )
    return limit, f"free memory of {torch.cuda.get_device_name(world.device)}"


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # a process group whose peers are gone would wait in its shutdown
