"""The DDP step under forms of gradient communication, in turns, beside the step without communication."""

from __future__ import annotations

import argparse
import itertools
import random
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from disttrain.comm_bench.timing import median_interval, summary, timed
from disttrain.config.config_tree import Config
from disttrain.engine.spec import spec_of_config
from disttrain.engine.step import build_stepper
from disttrain.parallel.ddp import DDP
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

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--width", type=int, default=cls.width)
        parser.add_argument("--layers", type=int, default=cls.layers)
        parser.add_argument("--rows", type=int, default=cls.rows, help="samples of a rank in a step")

    @classmethod
    def of(cls, given: argparse.Namespace) -> Model:
        return cls(given.width, given.layers, given.rows)

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.layers * self.width**2

    def config(self, **parallel: Any) -> Config:
        """The config of its DDP step; `parallel` has sections of the config's `parallel`."""
        return Config.model_validate(
            {
                "model": {"kind": f"{__name__}:linear_layers", "width": self.width, "layers": self.layers},
                "data": {"kind": "synthetic", "shape": [self.width], "classes": self.width},
                "train": {"steps": 1, "local_batch_size": self.rows},
                "optim": {"name": "sgd", "momentum": 0.0, "lr": 1e-6},
                "parallel": {"strategy": "ddp", **parallel},
                "precision": {"dtype": "fp32", "on_non_finite": "ignore"},
            }
        )


def linear_layers(width: int, layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))


class RepeatedStep:
    """The step of a config under one form of communication, on one rank, with one batch repeated."""

    def __init__(self, config: Config, world: World, name: str = BASELINE) -> None:
        spec = spec_of_config(config, world)
        self.config = spec.config
        self._stepper = build_stepper(spec, world)
        example = spec.example()
        self._stepper.prime(example)
        self._batches = itertools.repeat(example)
        self._in_backward = name not in (NO_OVERLAP, NO_COMMUNICATION)
        if name == NO_OVERLAP:
            group, parameters = CountedGroup(), list(self._stepper.model.parameters())
            self._stepper.optimizer.register_step_pre_hook(
                lambda *_: group.average([p.grad for p in parameters if p.grad is not None])
            )

    def run(self) -> None:
        """One step: forward pass, backward pass with the gradients' communication, update."""
        self._stepper.clock.start()  # forgets the marks of the step before
        with nullcontext() if self._in_backward else self._stepper.strategy.no_comm(self._stepper.model):
            self._stepper.step(1, self._batches)

    def bytes_of_a_step(self) -> int:
        """Bytes that this rank hands to collectives under DDP, counted over one step. All ranks together."""
        assert isinstance(self._stepper.strategy, DDP)
        hook = self._stepper.strategy._hook
        if hook is None:
            return sum(parameter.nbytes for parameter in self._stepper.model.parameters())
        group = getattr(hook.scheme, "leaders", None) or hook.scheme.group
        before = sum(group.bytes.values())
        self.run()
        return sum(group.bytes.values()) - before


def measure_steps(world: World, model: Model, rounds: int) -> tuple[Timing, list[StepTiming]]:
    """The step without communication, and the step under each form. All ranks together.

    The forms take turns; the order of each round is random and equal on all ranks.
    """
    reasons = {name: why_not_measured(name, world.nodes, world.local_size) for name in FORMS}
    steps = {
        name: RepeatedStep(model.config(**FORMS.get(name, {})), world, name)
        for name in (NO_COMMUNICATION, *FORMS)
        if reasons.get(name) is None
    }
    order, chance = list(steps), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_WARM_UP + rounds):
        chance.shuffle(order)
        for name in order:
            seconds[name].append(timed(world, steps[name].run))
    seconds = {name: world.all_reduce_max(values[_WARM_UP:]) for name, values in seconds.items()}
    timings = []
    for name, sections in FORMS.items():
        text = ", ".join(f"{key}={value}" for section in sections.values() for key, value in section.items())
        measured: dict[str, Any] = {}
        if name in steps:
            # of each round, whose steps see the same state of the machine
            rounds_s = [*zip(seconds[name], seconds[BASELINE], seconds[NO_COMMUNICATION], strict=True)]
            exposed = median_interval([own - alone for own, _, alone in rounds_s])
            speed_up = median_interval([base / own for own, base, _ in rounds_s])
            measured = {"step": summary(seconds[name]), "bytes": steps[name].bytes_of_a_step()}
            measured |= zip(("exposed_s", "exposed_low_s", "exposed_high_s"), exposed, strict=True)
            measured |= zip(("speed_up", "speed_up_low", "speed_up_high"), speed_up, strict=True)
        timings.append(StepTiming(name=name, options=text, reason=reasons[name], **measured))
    return summary(seconds[NO_COMMUNICATION]), timings


def why_not_measured(name: str, nodes: int, ranks_per_node: int) -> str | None:
    """The reason why a form has no meaning on this shape; None if it has one."""
    if name == "hierarchical" and (nodes == 1 or ranks_per_node == 1):
        return f"{nodes} x {ranks_per_node} ranks: it needs several on each of several nodes"
    return None
