"""Models that cannot be built are refused before a job: sizes of a GPT, and data of another kind."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.model_combinations import refuse_sizes
from disttrain.config.parsing import Draft, check

TRAIN = {"steps": 1, "local_batch_size": 1}


def test_the_sizes_that_a_refusal_names_are_accepted() -> None:
    for width in range(1, 40):
        for heads in range(1, 9):
            _, message = refuse_sizes({"width": width, "heads": heads}) or ("", "")
            for choice in message.partition("; use ")[2].split(", or "):
                name, _, values = choice.removeprefix("model.").partition("=")
                for value in filter(None, values.split(" or ")):
                    assert refuse_sizes({"width": width, "heads": heads, name: int(value)}) is None


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
