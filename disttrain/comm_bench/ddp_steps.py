"""The DDP step under forms of gradient communication, in turns, beside the step without communication."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from disttrain.comm_bench.timing import median_interval, slowest, summary, timed
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.parallel.ddp import DDP
from disttrain.parallel.ddp import build as build_ddp
from disttrain.parallel.mesh import Mesh
from disttrain.parallel.schemes.counted_group import CountedGroup
from disttrain.records.comm_bench import StepTiming, Timing
from disttrain.runtime.process_group import World

BASELINE, NO_OVERLAP, NO_COMMUNICATION = "baseline", "overlap off", "no communication"
FORMS: dict[str, dict[str, Any]] = {
    BASELINE: {},
    NO_OVERLAP: {},
    "small buckets": {"ddp": {"bucket_mb": 1}},
    "large buckets": {"ddp": {"bucket_mb": 1000}},
    "hierarchical": {"gradient_communication": {"scheme": "hierarchical"}},
    "fp16": {"gradient_communication": {"scheme": "fp16"}},
    "powersgd": {"gradient_communication": {"scheme": "powersgd", "rank": 4}},
    "topk": {"gradient_communication": {"scheme": "topk", "ratio": 0.01}},
}
"""Sections of `parallel` of each form."""
_WARM_UP = 2


@dataclass(frozen=True)
class Model:
    """Linear layers without bias, and the samples of a rank."""

    width: int = 1024
    layers: int = 8
    rows: int = 16

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.layers * self.width**2

    def build(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(self.width, self.width, bias=False) for _ in range(self.layers)))


@dataclass
class DDPStep:
    """The step under one form of gradient communication, on one rank."""

    name: str
    world: World
    model: Model
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sections of `parallel`."""
    strategy: DDP = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.strategy = build_ddp(ParallelConfig.model_validate(self.options))
        torch.manual_seed(0)
        self.inputs = torch.randn(self.model.rows, self.model.width, device=self.world.device)
        module = self.model.build().to(self.world.device)
        self.module = self.strategy.apply(module, Mesh(self.world.rank, self.world.size), self.world)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-6)

    def run(self) -> None:
        """One step: forward pass, backward pass with the gradients' communication, update."""
        self.step += 1
        self.strategy.on_step(self.step)
        with self.strategy.micro_step(self.module, last=self.name not in (NO_OVERLAP, NO_COMMUNICATION)):
            self.module(self.inputs).square().mean().backward()
        if self.name == NO_OVERLAP:
            CountedGroup().average([p.grad for p in self.module.parameters() if p.grad is not None])
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bytes_of_a_step(self) -> int:
        """Bytes that this rank hands to collectives, counted over one step. All ranks together."""
        hook = self.strategy._hook
        if hook is None:
            return sum(p.nbytes for p in cast(DistributedDataParallel, self.module).parameters())
        scheme = hook.scheme
        group = getattr(scheme, "leaders", None) or scheme.group
        before = sum(group.bytes.values())
        self.run()
        return sum(group.bytes.values()) - before


def measure_steps(world: World, model: Model, rounds: int) -> tuple[Timing, list[StepTiming]]:
    """The step without communication, and the step under each form. All ranks together.

    The forms take turns; the order of each round is random and equal on all ranks.
    """
    turns: dict[str, DDPStep] = {}
    skipped: dict[str, str] = {}
    for name in [NO_COMMUNICATION, *FORMS]:
        if reason := why_not_measured(name, world.nodes, world.local_size):
            skipped[name] = reason
            continue
        turns[name] = DDPStep(name, world, model, FORMS.get(name, {}))
    seconds = {name: slowest(world, values) for name, values in _in_turns(world, turns, rounds).items()}
    compute = summary(seconds[NO_COMMUNICATION])
    found = []
    for name, options in FORMS.items():
        text = _text(options)
        if name in skipped:
            found.append(StepTiming(name=name, options=text, reason=skipped[name]))
            continue
        step = summary(seconds[name])
        ratios = [base / own for base, own in zip(seconds[BASELINE], seconds[name], strict=True)]
        speed_up, low, high = median_interval(ratios)
        exposed_s = median_interval(paired_differences(seconds[name], seconds[NO_COMMUNICATION]))
        found.append(
            StepTiming(
                name=name,
                options=text,
                step=step,
                exposed_s=exposed_s[0],
                exposed_low_s=exposed_s[1],
                exposed_high_s=exposed_s[2],
                bytes=turns[name].bytes_of_a_step(),
                speed_up=speed_up,
                speed_up_low=low,
                speed_up_high=high,
            )
        )
    return compute, found


def paired_differences(seconds: Sequence[float], of_others: Sequence[float]) -> list[float]:
    """The difference of each round, in seconds: both steps of a round see the same state of the machine."""
    return [own - other for own, other in zip(seconds, of_others, strict=True)]


def why_not_measured(name: str, nodes: int, ranks_per_node: int) -> str | None:
    """The reason why a form has no meaning on this shape; None if it has one."""
    if name == "hierarchical" and (nodes == 1 or ranks_per_node == 1):
        return f"{nodes} x {ranks_per_node} ranks: it needs several on each of several nodes"
    return None


def _in_turns(world: World, turns: dict[str, DDPStep], rounds: int) -> dict[str, list[float]]:
    order, chance = list(turns), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for round_ in range(_WARM_UP + rounds):
        chance.shuffle(order)
        for name in order:
            act: Callable[[], object] = turns[name].run
            taken = timed(world, act)
            if round_ >= _WARM_UP:
                seconds[name].append(taken)
    return seconds


def _text(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for section in options.values() for key, value in section.items())
