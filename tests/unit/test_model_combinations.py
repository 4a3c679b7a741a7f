"""Models that cannot be built are refused before a job: sizes of a GPT, and data of another kind."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.model_combinations import refuse_sizes
from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError

TRAIN = {"steps": 1, "local_batch_size": 1}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 32, "heads": 3}, "use model.width=30 or 36, or model.heads=2 or 4"),
        ({"width": 33, "heads": 2}, "use model.width=32 or 36"),
        ({"width": 2, "heads": 2}, "use model.width=4, or model.heads=1"),
        ({"width": 64, "heads": 0}, "model.heads=0: must be at least 1"),
        ({"layers": 0}, "model.layers=0: must be at least 1"),
        ({"vocab_multiple": -1}, "model.vocab_multiple=-1: must be at least 1"),
    ],
)
def test_sizes_that_exclude_each_other_are_refused_with_the_nearest_that_work(
    sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check(Draft({"model": {"kind": "gpt", **sizes}, "train": TRAIN}))
    assert str(refused.value).endswith(message)


def test_the_sizes_that_a_refusal_names_are_accepted() -> None:
    for width in range(1, 40):
        for heads in range(1, 9):
            _, message = refuse_sizes({"width": width, "heads": heads}) or ("", "")
            for choice in message.partition("; use ")[2].split(", or "):
                name, _, values = choice.removeprefix("model.").partition("=")
                for value in filter(None, values.split(" or ")):
                    assert refuse_sizes({"width": width, "heads": heads, name: int(value)}) is None


@pytest.mark.parametrize(
    ("model", "data", "takes"),
    [
        ("gpt", {"kind": "digits"}, "gpt takes tokens, not images; use data.kind=text"),
        ("gpt", {"kind": "synthetic", "shape": [4]}, "gpt takes tokens, not samples without three dim"),
        ("mlp", {"kind": "text"}, "not tokens; use data.kind=digits or synthetic, or model.kind=gpt"),
        ("resnet", {"kind": "synthetic", "shape": [64]}, "resnet takes images, not samples without three"),
        (
            "huggingface",
            {"kind": "synthetic", "shape": [4]},
            "huggingface takes tokens or images, not",
        ),
        ("resnet", {"kind": "tokens", "path": "x"}, "resnet takes images, not tokens; use data.kind=digits"),
    ],
)
def test_samples_that_a_model_does_not_take_are_refused(model: str, data: dict[str, Any], takes: str) -> None:
    with pytest.raises(ConfigError, match=f"^model.kind={model} with data.kind={data['kind']}: .*{takes}"):
        check(Draft({"model": {"kind": model}, "data": data, "train": TRAIN}))


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
