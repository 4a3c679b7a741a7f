"""`python -m disttrain.engine.batch_probe`: the process that probes batch sizes for one rank.

A process of its own may run out of memory, or be killed for it, without an effect on the rank that waits for
it. All probe processes of a run form a process group of their own and train as the run does. The request
comes on standard input as JSON, the answers go to standard output as JSON lines:

    {"trying": 16}         before each batch size
    {"refused": "..."}     the config cannot be run
    {"fit": {...}}         the result, a `BatchFit`
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

import torch
import torch._dynamo
from torch.nn.modules.batchnorm import _BatchNorm

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.engine import batch_fit
from disttrain.engine.host_limit import peak_resident_bytes, reset_peak
from disttrain.engine.probe_protocol import EXIT_OUT_OF_MEMORY, STORE_PREFIX
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import build_stepper
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from disttrain.parallel.base import build_strategy
from disttrain.records.batch_fit import BatchFit, BatchProbe
from disttrain.runtime.attention_kernel import attention_kernel
from disttrain.runtime.launcher_store import launcher_store
from disttrain.runtime.parent_death import die_with_parent
from disttrain.runtime.process_group import World, open_world
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


def main() -> int:
    """Answer the request. Exit code: 0 found, 2 refused, `EXIT_OUT_OF_MEMORY`."""
    die_with_parent()
    ignore_stop_signals()
    _be_killed_first()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # other output must not come between the answers
    request = json.load(sys.stdin)
    config = Config.model_validate(request["config"])
    try:
        with open_world(
            config.resources, config.job.collective_timeout_s, config.precision.dtype,
            launcher_store(os.environ.get(STORE_PREFIX, "")),
            gpus_per_rank=config.gpus_per_rank, attention=config.train.attention,
            backend=config.parallel.backend,
        ) as world:  # fmt: skip
            with attention_kernel(config.train.attention):
                fit = _Probe(config, request, world, answers).run()
            _answer(answers, {"fit": fit.model_dump(mode="json")})
        return 0
    except ConfigError as error:
        _answer(answers, {"refused": str(error)})
        return EXIT_BAD_INPUT
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        print(f"out of memory: {error}", file=sys.stderr)
        return EXIT_OUT_OF_MEMORY


class _Probe:
    """Trains with one local batch size after another. All probe processes together."""

    def __init__(self, config: Config, request: dict[str, Any], world: World, answers: IO[str]) -> None:
        self._config, self._world, self._answers = config, world, answers
        self._below: int | None = request["below"]
        self._began = time.monotonic()
        sizes = {"local_batch_size": 1, "global_batch_size": None, "steps": 1}
        one_sample = config.model_copy(update={"train": config.train.model_copy(update=sizes)})
        self._spec = spec_of_config(one_sample, world)
        self._ranks = self._spec.mesh.data_size
        assert self._spec.source is not None
        self._source = self._spec.source
        limit = _device_limit(world) or (request["limit_bytes"], request["limit_source"])
        (lowest,) = world.all_reduce_max([-limit[0]])
        self._limit = (round(-lowest), limit[1])
        self._budget = (1 - batch_fit.RESERVE) * self._limit[0] - request["parent_bytes"]
        strategy = build_strategy(config.parallel.strategy, config.parallel)
        self._stepper = build_stepper(self._spec, strategy, world)

    def run(self) -> BatchFit:
        multiple = self._multiple()
        samples = self._source.record.train_samples
        limit = max(1, samples // self._ranks)
        if self._below is not None:
            limit = min(limit, self._below - 1)
        probes = batch_fit.search(self._measure, multiple, limit, self._budget, self._smallest())
        for probe in batch_fit.by_preference(probes, self._budget):
            verified = self._measure(probe.local_batch_size, VERIFIED_STEPS, validate=True)
            if verified.peak_bytes <= self._budget:
                return self._fit(probe, probes, verified)
        needed = f" ({probes[0].peak_bytes >> 20} MiB)" if probes else ""
        raise ConfigError(
            f"train.local_batch_size=auto: no batch size fits; of {self._limit[0] >> 20} MiB "
            f"({self._limit[1]}), {round(self._budget) >> 20} MiB may be used, and the smallest size needs "
            f"more{needed}; use memory.activation_checkpointing=full, a smaller model, or devices with more "
            "memory"
        )

    def _smallest(self) -> int:
        """Batch norms of vectors need two samples."""
        return 2 if any(isinstance(module, _BatchNorm) for module in self._stepper.model.modules()) else 1

    def _multiple(self) -> int | None:
        """Samples of one rank in an optimizer step, if `train.global_batch_size` determines them."""
        global_ = self._config.train.global_batch_size
        if global_ is None:
            return None
        if global_ % self._ranks:
            raise ConfigError(f"train.global_batch_size={global_} is not divisible by {self._ranks} ranks")
        return global_ // self._ranks

    def _measure(self, size: int, steps: int | None = None, validate: bool = False) -> BatchProbe:
        _answer(self._answers, {"trying": size})
        world, accumulation = self._world, (self._multiple() or size) // size
        plan = BatchPlan(size, min(accumulation, MAX_ACCUMULATION), self._ranks)
        batches = itertools.repeat(dataclasses.replace(self._spec, plan=plan).example())
        self._stepper.plan = plan
        if self._config.compile.scope != "none":
            torch._dynamo.reset()  # the graphs of all sizes would exceed the limit, and run uncompiled
        _reset_peak(world.device)
        with compiling(self._config.compile, self._config.train.attention):
            warm_up_s = max(self._seconds(1, batches) for _ in range(WARM_UP_STEPS))
        if steps is None:
            steps = min(max(math.ceil(TIMED_S / warm_up_s), TIMED_STEPS[0]), TIMED_STEPS[1])
        elapsed_s = self._seconds(steps, batches)
        if validate and self._source.valid is not None:  # two batches on each rank
            self._stepper.validate(self._source.valid, 1, 2 * size * self._ranks)
        (peak,) = world.all_reduce_max([_peak_bytes(world.device)])
        rate = steps * plan.global_ / elapsed_s
        return BatchProbe(local_batch_size=size, peak_bytes=round(peak), samples_per_s=rate)

    def _seconds(self, steps: int, batches: Any) -> float:
        """Duration of some steps on the slowest rank."""
        began = time.monotonic()
        for _ in range(steps):
            self._stepper.step(1, batches)
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        (elapsed_s,) = self._world.all_reduce_max([time.monotonic() - began])
        return elapsed_s

    def _fit(self, chosen: BatchProbe, probes: list[BatchProbe], verified: BatchProbe) -> BatchFit:
        fixed, slope = batch_fit.fit_memory(probes)
        size = chosen.local_batch_size
        return BatchFit(
            local_batch_size=size,
            accumulation=(self._multiple() or size) // size,
            limit_bytes=self._limit[0],
            limit_source=self._limit[1],
            reserve=batch_fit.RESERVE,
            fixed_bytes=round(fixed),
            bytes_per_sample=slope,
            probes=probes,
            verified_steps=VERIFIED_STEPS,
            verified_peak_bytes=verified.peak_bytes,
            seconds=time.monotonic() - self._began,
        )


def _device_limit(world: World) -> tuple[int, str] | None:
    """Memory that this rank's allocator may reach on its GPU; None on the CPU.

    The allocator is held to the limit without the reserve, so that a probe beyond it fails alone.
    """
    if world.device.type != "cuda":
        return None
    world.all_gather_object(None)  # every rank of a shared GPU measures before any allocates more
    free, total = torch.cuda.mem_get_info(world.device)
    sharing = world.local_size if world.backend == "gloo" and world.local_size > 1 else 1
    limit = torch.cuda.memory_reserved(world.device) + free // sharing
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (1 - batch_fit.RESERVE) * limit / total), world.device
    )
    return limit, f"free memory of {torch.cuda.get_device_name(world.device)}"


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        reset_peak()


def _peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_resident_bytes()


def _be_killed_first() -> None:
    """Let the kernel's OOM killer choose this process, not the rank that waits for it."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    except OSError:
        return


def _is_out_of_memory(error: BaseException) -> bool:
    words = (
        "out of memory",
        "can't allocate memory",
        "not enough memory",
        "Cannot allocate memory",
        "STATUS_ALLOC_FAILED",  # a handle of cuBLAS or cuDNN
    )
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _answer(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a process group whose peers are gone would wait in its shutdown
