"""Pipelines before they run: what cannot be split is refused, and the stages of a model are its layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from disttrain.config.parsing import Draft, check, with_batch
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.errors import ConfigError
from disttrain.models.gpt import GPT
from disttrain.parallel.base import Mesh
from disttrain.parallel.pipeline import build
from disttrain.runtime.process_group import World

ALONE = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend=None)

GOOD: dict[str, dict[str, Any]] = {
    "model": {"kind": "gpt", "tie_weights": False},
    "train": {"steps": 1, "local_batch_size": 2, "global_batch_size": 16},
    "parallel": {"strategy": "pipeline", "pipeline": {"stages": 4}},
    "resources": {"nodes": 2, "gpus_per_node": 4},
}


def draft(**sections: dict[str, Any]) -> Draft:
    return Draft({name: {**GOOD.get(name, {}), **sections.get(name, {})} for name in {*GOOD, *sections}})


def test_the_micro_batches_of_a_step_are_its_accumulation() -> None:
    made = draft()
    _, plan = with_batch(check(made), made)
    assert plan is not None
    assert (plan.local, plan.accumulation, plan.world) == (2, 4, 2)


def test_a_sweep_scales_the_batch_by_the_replicas_of_a_stage() -> None:
    made = draft()
    _, plan = with_batch(check(made), made, base_ranks=4)
    assert plan is not None
    assert (plan.local, plan.accumulation, plan.world, plan.global_) == (2, 8, 2, 32)


def test_gpipe_takes_fewer_micro_batches_than_stages() -> None:
    made = draft(
        train={"local_batch_size": 4},
        parallel={"pipeline": {"stages": 4, "schedule": "gpipe"}},
    )
    with_batch(check(made), made)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_stages_one_after_another_are_the_model(stages: int) -> None:
    torch.manual_seed(0)
    model = GPT(vocabulary=11, layers=5, width=8, heads=2, hidden=16, dropout=0.0, tie_weights=False)
    parts = [model.pipeline_stage(stage, stages) for stage in range(stages)]
    names = [name for part in parts for name in part.state_dict()]
    assert names == list(model.state_dict())
    tokens = torch.randint(11, (2, 6))
    output = tokens
    for part in parts:
        output = part(output)
    assert torch.equal(output, model(tokens))


def test_a_model_with_fewer_layers_than_stages_is_refused() -> None:
    """`model.layers` may be unknown before the run: it can follow from `model.size`."""
    model = GPT(vocabulary=11, layers=2, width=8, heads=2, hidden=16, dropout=0.0, tie_weights=False)
    with pytest.raises(ConfigError, match="3 pipeline stages are more than the model's 2 layers"):
        model.pipeline_stage(0, 3)


def test_a_forward_pass_that_no_stage_would_run_is_refused() -> None:
    model = GPT(vocabulary=11, layers=2, width=8, heads=2, hidden=16, dropout=0.0, tie_weights=False)
    forward = model.forward
    model.forward = lambda tokens: forward(tokens)  # type: ignore[method-assign]
    strategy = build(ParallelConfig(strategy="pipeline"))
    with pytest.raises(ConfigError, match="replaced the forward pass of the whole model"):
        strategy.apply(model, Mesh(0, pipeline=2), ALONE)
    with pytest.raises(ConfigError, match="cannot split a OptimizedModule"):
        strategy.apply(torch.compile(model), Mesh(0, pipeline=2), ALONE)
