"""Strategy dp: what it becomes without GPUs, and with several ranks."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import nn

from disttrain.config.auto_strategy import choose_strategy
from disttrain.config.config_tree import Config
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.errors import ConfigError
from disttrain.parallel.base import build_strategy
from disttrain.parallel.mesh import Mesh
from disttrain.runtime.process_group import World
from disttrain.strategy_choice import resolve_strategy


def world(device: str = "cpu") -> World:
    return World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device(device), backend=None)


def test_on_the_cpu_it_is_single_and_the_reason_names_it():
    config = Config.model_validate({"parallel": {"strategy": "dp"}})
    name, reason = resolve_strategy(config, world())
    assert (name, reason.partition(":")[0]) == ("dp", "asked for, but dp is single on the CPU")
    model = nn.Linear(2, 2)
    strategy = build_strategy("dp", ParallelConfig())
    assert strategy.unwrap(strategy.apply(model, Mesh(0), world())) is model


@pytest.mark.parametrize(("gpus", "said"), [(1, "is single with one GPU"), (4, "DataParallel over 4 GPUs")])
def test_the_reason_counts_the_gpus_that_the_process_sees(gpus, said):
    config = Config.model_validate({"parallel": {"strategy": "dp"}})
    with patch("torch.cuda.device_count", return_value=gpus):
        assert said in resolve_strategy(config, world("cuda"))[1]


def test_several_ranks_are_refused():
    with pytest.raises(ConfigError, match=r"parallel.strategy=dp needs 1 rank, not 4; use ddp or auto"):
        choose_strategy("dp", 4)
