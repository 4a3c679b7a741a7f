"""Errors and factors of the lossy schemes, in a process group of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from disttrain.config.sections.parallel import GradientCommunicationConfig
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme, State, build_scheme
from disttrain.runtime.process_group import ensure_group
from tests.support.stopping import alone

SHAPE = torch.Size((12, 10))


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    ensure_group(alone())
    yield
    dist.destroy_process_group()


def scheme_of(name: str, rank: int = 2) -> Scheme:
    options = GradientCommunicationConfig.model_validate({"scheme": name, "ratio": 0.1, "rank": rank})
    return build_scheme(options, alone())


def average(scheme: Scheme, step: int, bad: float | None = None) -> Tensor:
    gradient = FlatGradient(torch.randn(120, generator=torch.Generator().manual_seed(step)), {"w": SHAPE})
    if bad is not None:
        gradient.values[7] = bad
    scheme.average(gradient, step)
    return gradient.values


def state_of(scheme: Scheme) -> State:
    return {name: tensor.clone() for name, tensor in scheme.state_dict().items()}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["powersgd", "topk", "randomk"])
def test_a_gradient_that_is_not_finite_leaves_errors_and_factors_as_they_were(name: str, bad: float) -> None:
    scheme = scheme_of(name)
    average(scheme, 1)
    before = state_of(scheme)
    assert all(tensor.count_nonzero() > 0 for tensor in before.values())
    assert not average(scheme, 2, bad).isfinite().all()
    after = state_of(scheme)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert average(scheme, 3).isfinite().all()
    assert not torch.equal(state_of(scheme)["error.w"], before["error.w"])


def test_factors_of_another_rank_are_drawn_anew() -> None:
    wide, narrow = scheme_of("powersgd", 3), scheme_of("powersgd", 1)
    average(wide, 1)
    narrow.load_state_dict(state_of(wide))
    average(narrow, 2)
    assert narrow.state_dict()["q.w"].shape == (10, 1)
