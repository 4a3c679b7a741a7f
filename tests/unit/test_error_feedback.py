"""Errors and factors of the lossy schemes, in a process group of one rank."""

import pytest
import torch
import torch.distributed as dist

from disttrain.config.sections.parallel import GradientCommunicationConfig
from disttrain.parallel.schemes.scheme import FlatGradient, build_scheme
from disttrain.runtime.process_group import ensure_group
from tests.support.stopping import alone


@pytest.fixture(autouse=True)
def _group():
    ensure_group(alone())
    yield
    dist.destroy_process_group()


def scheme_of(name, rank=2):
    return build_scheme(GradientCommunicationConfig(scheme=name, ratio=0.1, rank=rank), alone())


def average(scheme, step, bad=None):
    values = torch.randn(120, generator=torch.Generator().manual_seed(step))
    if bad is not None:
        values[7] = bad
    scheme.average(FlatGradient(values, {"w": torch.Size((12, 10))}), step)
    return values


def state_of(scheme):
    return {name: tensor.clone() for name, tensor in scheme.state_dict().items()}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["powersgd", "topk", "randomk"])
def test_a_gradient_that_is_not_finite_leaves_errors_and_factors_as_they_were(name, bad):
    scheme = scheme_of(name)
    average(scheme, 1)
    before = state_of(scheme)
    assert all(tensor.any() for tensor in before.values())
    assert not average(scheme, 2, bad).isfinite().all()
    after = state_of(scheme)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert average(scheme, 3).isfinite().all()
    assert not torch.equal(state_of(scheme)["error.w"], before["error.w"])


def test_factors_of_another_rank_are_drawn_anew():
    wide, narrow = scheme_of("powersgd", 3), scheme_of("powersgd", 1)
    average(wide, 1)
    narrow.load_state_dict(state_of(wide))
    average(narrow, 2)
    assert narrow.state_dict()["q.w"].shape == (10, 1)
