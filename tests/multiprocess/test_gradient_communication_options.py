"""Options of the schemes of gradient communication: each changes factors, errors, bytes or averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from disttrain.config.config_tree import Config
from disttrain.config.sections.parallel import GradientCommunicationConfig
from disttrain.parallel import ddp
from disttrain.parallel.schemes.scheme import FlatGradient, Scheme, build_scheme
from disttrain.runtime.process_group import World
from tests.multiprocess.test_gradient_communication import SHAPE, SIZE, averages, communicating, means
from tests.multiprocess.test_train import train_on
from tests.support.ranks import Ranks
from tests.support.tolerance import assert_close, tolerance

pytestmark = pytest.mark.multiprocess

POWERSGD_RANK = 2


def decaying() -> Tensor:
    """A matrix of SHAPE with singular values 1, 0.7, 0.49, ..."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, 40)).Q for size in SHAPE)
    return left @ torch.diag(0.7 ** torch.arange(40.0)) @ right.T


def approximations(world: World, warm_start: bool) -> tuple[list[float], list[str]]:
    """Distance of the average from an equal gradient of all ranks in each of 20 steps; names of the state.

    The error of the last step is taken off the gradient, so that each step approximates the same matrix.
    """
    options = GradientCommunicationConfig(scheme="powersgd", rank=POWERSGD_RANK, warm_start=warm_start)
    scheme: Scheme = build_scheme(options, world)
    matrix, error, distances = decaying(), torch.zeros(SHAPE), []
    for step in range(1, 21):
        gradient = FlatGradient((matrix - error).flatten(), {"weight": SHAPE})
        scheme.average(gradient, step)
        error = scheme.state_dict()["error.weight"].view(SHAPE).clone()
        distances.append(float((gradient.values.view(SHAPE) - matrix).norm()))
    return distances, sorted(scheme.state_dict())


def test_warm_started_factors_reach_the_best_approximation_and_random_ones_do_not(two_ranks: Ranks) -> None:
    best = float((0.7 ** torch.arange(POWERSGD_RANK, 40.0)).norm())
    [(warm, with_factors), _] = two_ranks.call(approximations, True)
    [(cold, without), _] = two_ranks.call(approximations, False)
    assert warm[0] == cold[0], "the first step has random factors in any case"
    assert warm[-1] == pytest.approx(best, rel=1e-3)
    assert min(cold) > 1.01 * best
    assert len({round(each, 6) for each in cold}) == 20, "other factors in each step"
    assert (with_factors, without) == (["error.weight", "q.weight"], ["error.weight"])


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_the_rank_of_powersgd_is_that_of_its_averages_and_sets_the_bytes(two_ranks: Ranks, rank: int) -> None:
    options = {"scheme": "powersgd", "rank": rank}
    [(results, sent, _), _] = two_ranks.call(averages, options, 1)
    assert int(torch.linalg.matrix_rank(results[0].view(SHAPE), rtol=1e-4)) == rank
    assert sent == {"all_reduce": 4 * rank * sum(SHAPE)}


def test_without_error_feedback_topk_drops_what_it_does_not_send(two_ranks: Ranks) -> None:
    options: dict[str, Any] = {"scheme": "topk", "ratio": 0.1, "error_feedback": False}
    [(dropped, _, state), _] = two_ranks.call(averages, options, 2)
    [(kept, _, _), _] = two_ranks.call(averages, options | {"error_feedback": True}, 2)
    assert state == {}
    assert_close(dropped[0], kept[0])
    sent = dropped[1] != 0
    assert sent.sum() <= 2 * SIZE // 10
    both = 2 * SIZE // 10 - int(sent.sum())  # indices that both ranks sent
    whole = torch.isclose(dropped[1], means(2, 2)[1], rtol=tolerance(), atol=0) & sent
    assert int(whole.sum()) == both
    assert not torch.equal(dropped[1], kept[1])


def test_without_error_feedback_randomk_scales_its_values_by_size_over_count(two_ranks: Ranks) -> None:
    options: dict[str, Any] = {"scheme": "randomk", "ratio": 0.1, "error_feedback": False}
    [(results, _, state), _] = two_ranks.call(averages, options, 2)
    assert state == {}
    for result, mean in zip(results, means(2, 2), strict=True):
        sent = result != 0
        assert int(sent.sum()) == SIZE // 10
        assert_close(result[sent], 10 * mean[sent])
    [(kept, _, _), _] = two_ranks.call(averages, options | {"error_feedback": True}, 1)
    assert_close(kept[0], results[0] / 10)


def averaged_steps(world: World, config: Config, folder: Path) -> list[int]:
    """The steps after which the parameters are averaged in a run."""
    steps: list[int] = []
    average_replicas, on_step = ddp.DDP.average_replicas, ddp.DDP.on_step

    def begun(strategy: ddp.DDP, step: int) -> None:
        begun.step = step  # type: ignore[attr-defined]
        on_step(strategy, step)

    def averaged(*arguments: Any) -> None:
        steps.append(begun.step)  # type: ignore[attr-defined]
        average_replicas(*arguments)

    with patch.object(ddp.DDP, "on_step", begun), patch.object(ddp.DDP, "average_replicas", averaged):
        train_on(world, config, folder)
    return steps


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"average_every": 3}, [3, 6, 9, 12]),
        ({"average_every": 5}, [5, 10, 12]),
        ({"average_every": 3, "warmup_steps": 4}, [6, 9, 12]),
    ],
    ids=str,
)
def test_local_sgd_averages_every_so_many_steps_and_after_the_last(
    two_ranks: Ranks, tmp_path: Path, options: dict[str, Any], expected: list[int]
) -> None:
    config = communicating(2, scheme="local_sgd", **options)
    assert two_ranks.call(averaged_steps, config, tmp_path) == [expected] * 2
