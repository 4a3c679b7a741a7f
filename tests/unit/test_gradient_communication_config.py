"""Options of `parallel.gradient_communication`: values that are refused, in one line that says what would
work."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.config.parsing import Draft, check
from disttrain.errors import ConfigError

BASE: dict[str, Any] = {"train": {"steps": 1, "local_batch_size": 1}}


def checked(strategy: str = "ddp", **options: Any) -> None:
    check(Draft({**BASE, "parallel": {"strategy": strategy, "gradient_communication": options}}))


@pytest.mark.parametrize("strategy", ["auto", "ddp"])
@pytest.mark.parametrize("scheme", ["none", "fp16", "bf16", "powersgd", "topk", "randomk", "hierarchical"])
def test_every_scheme_goes_with_ddp(strategy: str, scheme: str) -> None:
    checked(strategy, scheme=scheme)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("single", {"scheme": "fp16"}, "needs parallel.strategy=ddp or auto, not single.*use"),
        (
            "ddp",
            {"scheme": "fp16", "ratio": 0.1},
            "with .*scheme=fp16.*use .*scheme=topk or randomk",
        ),
        ("ddp", {"rank": 2}, "no effect with .*scheme=none.*use .*scheme=powersgd"),
        ("ddp", {"scheme": "topk", "ratio": 0}, "ratio=0"),
        ("ddp", {"scheme": "fp8"}, "scheme='fp8': allowed"),
    ],
)
def test_refusals(strategy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        checked(strategy, **options)
    assert "\n" not in str(caught.value)
