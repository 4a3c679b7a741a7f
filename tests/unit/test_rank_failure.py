"""Causes of exceptions that end a rank."""

from __future__ import annotations

import pytest
import torch

from disttrain.runtime.rank_failure import describe_failure


def test_an_allocation_that_the_host_refuses_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**55)
    assert describe_failure(raised.value, 0).cause == "out_of_memory"
    assert describe_failure(RuntimeError("shapes differ"), 0).cause == "crashed"
