"""Combinations that are accepted: sizes of a GPT that refusals name, data of models, schemes of ddp."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError

TRAIN = {"steps": 1, "local_batch_size": 1}


def refused(**sizes: int) -> str:
    try:
        check(Draft({"model": {"kind": "gpt", **sizes}, "train": TRAIN}))
    except ConfigError as error:
        return str(error)
    return ""


def test_the_sizes_that_a_refusal_names_are_accepted() -> None:
    for width in range(1, 24):
        for heads in range(1, 6):
            for choice in filter(
                None, refused(width=width, heads=heads).partition("; use ")[2].split(", or ")
            ):
                name, _, values = choice.removeprefix("model.").partition("=")
                for value in values.split(" or "):
                    assert not refused(**{"width": width, "heads": heads, name: int(value)})


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("gpt", {"kind": "synthetic", "task": "language"}),
        ("mlp", {"kind": "synthetic", "shape": [64]}),
        ("resnet", {"kind": "digits"}),
        ("resnet", {"kind": "tests.support.small_models:source"}),
        ("emulated", {"kind": "digits"}),
    ],
)
def test_samples_that_a_model_takes_or_may_take_are_accepted(model: str, data: dict[str, Any]) -> None:
    check(Draft({"model": {"kind": model}, "data": data, "train": TRAIN}))


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
@pytest.mark.parametrize("scheme", ["none", "fp16", "bf16", "powersgd", "topk", "randomk", "hierarchical"])
def test_every_scheme_goes_with_ddp(strategy: str, scheme: str) -> None:
    check(
        Draft(
            {"parallel": {"strategy": strategy, "gradient_communication": {"scheme": scheme}}, "train": TRAIN}
        )
    )


def test_local_sgd_with_checkpoints_and_validations_after_averages() -> None:
    draft = Draft({"train": {**TRAIN, "steps": 20, "eval_every": 16}, "checkpoint": {"every_steps": 8}})
    draft.data["parallel"] = {"strategy": "ddp", "gradient_communication": {"scheme": "local_sgd"}}
    draft.data["precision"] = {"on_non_finite": "ignore"}
    check(draft)
