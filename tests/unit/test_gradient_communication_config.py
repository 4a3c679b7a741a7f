"""Options of `parallel.gradient_communication`: values that are refused, in one line that says what would
work."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError

BASE: dict[str, Any] = {"train": {"steps": 1, "local_batch_size": 1}}


def checked(strategy: str = "ddp", sections: dict[str, Any] | None = None, **options: Any) -> None:
    parallel = {"strategy": strategy, "gradient_communication": options}
    check(Draft({**BASE, **(sections or {}), "parallel": parallel}))


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
@pytest.mark.parametrize("scheme", ["none", "fp16", "bf16", "powersgd", "topk", "randomk", "hierarchical"])
def test_every_scheme_goes_with_ddp(strategy: str, scheme: str) -> None:
    checked(strategy, scheme=scheme)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("fsdp", {"scheme": "powersgd"}, "not fsdp: the reduce-scatter .* no communication hook; use .*=ddp"),
        ("hsdp", {"scheme": "topk"}, "not hsdp: the reduce-scatter .* no communication hook; use .*=ddp"),
        ("single", {"scheme": "fp16"}, "needs parallel.strategy=ddp or auto, not single.*use"),
        (
            "ddp",
            {"scheme": "fp16", "ratio": 0.1},
            "with .*scheme=fp16.*use .*scheme=topk or randomk",
        ),
        ("ddp", {"rank": 2}, "no effect with .*scheme=none.*use .*scheme=powersgd"),
        ("ddp", {"warmup_steps": 2}, "warmup_steps=2 has no effect with .*scheme=none: leave it out"),
        ("ddp", {"scheme": "topk", "ratio": 0}, "ratio=0"),
        ("ddp", {"scheme": "fp8"}, "scheme='fp8': allowed"),
    ],
)
def test_refusals(strategy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        checked(strategy, **options)
    assert "\n" not in str(caught.value)


IGNORE = {"on_non_finite": "ignore"}


@pytest.mark.parametrize(
    ("scheme", "sections", "message"),
    [
        ("topk", {"precision": {"dtype": "fp16"}}, "dtype=fp16 changes the scale.*use precision.dtype=bf16"),
        ("local_sgd", {"precision": {"dtype": "fp16"}}, "fp16 skips steps .*use precision.dtype=bf16$"),
        ("local_sgd", {}, "on_non_finite=skip needs the same gradients.*use precision.on_non_finite=ignore"),
        (
            "local_sgd",
            {"checkpoint": {"every_steps": 12}, "precision": IGNORE},
            "=12 is no multiple",
        ),
        (
            "local_sgd",
            {"train": {"steps": 20, "local_batch_size": 1, "eval_every": 4}, "precision": IGNORE},
            "train.eval_every=4 is no multiple of .*average_every=8",
        ),
    ],
)
def test_refusals_of_sections_together(scheme: str, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        checked(sections=sections, scheme=scheme)
    assert "\n" not in str(caught.value)


def test_local_sgd_with_checkpoints_and_validations_after_averages() -> None:
    train = {"steps": 20, "local_batch_size": 1, "eval_every": 16}
    checked(
        scheme="local_sgd",
        sections={"precision": IGNORE, "checkpoint": {"every_steps": 8}, "train": train},
    )
