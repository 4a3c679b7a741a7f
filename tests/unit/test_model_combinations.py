"""Models that cannot be built are refused before a job: sizes of a GPT, and data of another kind."""

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
