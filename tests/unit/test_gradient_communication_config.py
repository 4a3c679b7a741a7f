"""Options of `parallel.gradient_communication`: values that are refused, in one line that says what would
work."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.parsing import Draft, check

BASE: dict[str, Any] = {"train": {"steps": 1, "local_batch_size": 1}}


def checked(strategy: str = "ddp", sections: dict[str, Any] | None = None, **options: Any) -> None:
    parallel = {"strategy": strategy, "gradient_communication": options}
    check(Draft({**BASE, **(sections or {}), "parallel": parallel}))


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
@pytest.mark.parametrize("scheme", ["none", "fp16", "bf16", "powersgd", "topk", "randomk", "hierarchical"])
def test_every_scheme_goes_with_ddp(strategy: str, scheme: str) -> None:
    checked(strategy, scheme=scheme)


IGNORE = {"on_non_finite": "ignore"}


def test_local_sgd_with_checkpoints_and_validations_after_averages() -> None:
    train = {"steps": 20, "local_batch_size": 1, "eval_every": 16}
    checked(
        scheme="local_sgd",
        sections={"precision": IGNORE, "checkpoint": {"every_steps": 8}, "train": train},
    )
