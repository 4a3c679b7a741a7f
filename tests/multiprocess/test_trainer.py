"""A `Trainer` in a script of one's own, on two and three ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from disttrain import Trainer
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.runtime.process_group import World
from tests.support.tolerance import approx_losses, tolerance
from tests.unit.test_trainer import QUIET, loss, samples

pytestmark = pytest.mark.multiprocess


TOP_K = {"parallel": {"gradient_communication": {"scheme": "topk", "ratio": 0.1}}}


def train(
    world: World,
    folder: Path,
    steps: int,
    saved_at: int = 0,
    load: bool = False,
    batch: int = 4,
    sections: dict | None = None,
):
    """Parameters and read inputs of this rank after `steps` steps of 12, and the loss of a validation."""
    torch.manual_seed(world.rank)  # every rank takes the weights of rank 0
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    read = []

    def recorded(model, given):
        if model.training:
            read.append(given[0].tolist())
        return loss(model, given)

    with Trainer(
        model,
        optimizer,
        recorded,
        steps=12,
        batch_size=batch,
        run_dir=folder,
        config=QUIET | (sections or {}),
    ) as trainer:
        if load:
            trainer.load()
        batches = trainer.batches(samples())
        while trainer.steps_done < steps:
            trainer.step(batches)
            if trainer.steps_done == saved_at:
                trainer.save()
        valid = trainer.validate(samples()).loss
    return [value.tolist() for value in model.state_dict().values()], read, valid


@pytest.mark.parametrize("sections", [{}, TOP_K], ids=["plain", "topk"])
def test_a_resumed_trainer_equals_one_that_never_stopped(three_ranks, tmp_path, sections):
    whole = three_ranks.call(train, tmp_path / "whole", 6, sections=sections)
    three_ranks.call(train, tmp_path / "parts", 4, 3, sections=sections)
    resumed = three_ranks.call(train, tmp_path / "parts", 6, 0, True, sections=sections)
    assert [each[0] for each in resumed] == [each[0] for each in whole]
    assert whole[0][0] == whole[2][0], "the ranks hold equal weights"
    for was, now in zip(whole, resumed, strict=True):
        assert now[1][-3:] == was[1][-3:], "the samples go on where they stopped"
    assert {each[2] for each in resumed} == {whole[0][2]}


def test_the_loss_curve_does_not_depend_on_the_number_of_ranks(two_ranks, tmp_path):
    two = two_ranks.call(train, tmp_path / "two", 6, 0, False, 4)
    one = train(World(0, 1, 0, 1, torch.device("cpu"), None), tmp_path / "one", 6, batch=8)
    assert two[0][2] == pytest.approx(one[2], rel=tolerance(6))
    spread = [
        sample for step in zip(*(rank[1] for rank in two), strict=True) for each in step for sample in each
    ]
    alone = [sample for step in one[1] for sample in step]
    assert spread[-48:] == alone[-48:]


def example_of_the_page():
    text = (Path(__file__).resolve().parents[2] / "docs" / "your-code.md").read_text()
    [example] = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "with Trainer" in code]
    return example


def run_example(world: World, example: str, folder: str) -> None:
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(example, "your-code.md", "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)


def test_the_example_of_the_page_runs_on_two_ranks(two_ranks, tmp_path):
    two_ranks.call(run_example, example_of_the_page(), str(tmp_path))
    metrics = Metrics.model_validate(read_json(tmp_path / "runs" / "mine" / "n2" / "metrics.json"))
    assert (metrics.status, metrics.world_size, metrics.strategy) == ("completed", 2, "ddp")
    assert metrics.comm_method == "ddp_backward_tail"
    assert metrics.eval_history[-1].loss < 0.5 * metrics.loss_history[0].loss


@pytest.mark.slow
def test_the_example_of_the_page_runs_under_torchrun(tmp_path):
    """The Trainer itself joins the process group and leaves it; a second start goes on from the end."""
    (tmp_path / "train.py").write_text(example_of_the_page())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    for attempt in range(2):
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=200)
        metrics = Metrics.model_validate(read_json(tmp_path / "runs" / "mine" / "n2" / "metrics.json"))
        assert (metrics.status, metrics.world_size, metrics.attempt) == ("completed", 2, attempt)
    assert (metrics.steps, metrics.resumed_step) == (200, 200)


def train_sharded(
    world: World, folder: Path, strategy: str, steps: int, load: bool = False, loss=loss
) -> tuple:
    """The losses of the steps, of a validation, and the shape of a local parameter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    config = {**QUIET, "parallel": {"strategy": strategy}}
    with Trainer(
        model, lambda parameters: torch.optim.AdamW(parameters, lr=0.01), loss,
        steps=6, batch_size=4, run_dir=folder, config=config,
    ) as trainer:  # fmt: skip
        if load:
            trainer.load()
        batches = trainer.batches(samples())
        losses = [trainer.step(batches).loss.item() for _ in range(trainer.steps_done, steps)]
        trainer.save()
        weight = next(trainer.model.parameters())
        shape = tuple(getattr(weight, "to_local", lambda: weight)().shape)
        return losses, trainer.validate(samples()).loss, shape


def test_a_sharded_trainer_has_the_curve_of_a_replicated_one(two_ranks, tmp_path):
    replicated = two_ranks.call(train_sharded, tmp_path / "ddp", "ddp", 6)
    first = two_ranks.call(train_sharded, tmp_path / "fsdp", "fsdp", 4)
    resumed = two_ranks.call(train_sharded, tmp_path / "fsdp", "fsdp", 6, True)
    for ddp, before, after in zip(replicated, first, resumed, strict=True):
        assert before[0] + after[0] == approx_losses(ddp[0])
        assert after[1] == pytest.approx(ddp[1], rel=tolerance(6))
        assert (ddp[2], before[2]) == ((8, 4), (4, 4))


def gathers_early(model: nn.Module, given) -> torch.Tensor:
    model[0].unshard(async_op=True)
    return loss(model, given)


def test_an_asynchronous_unshard_of_the_script_leaves_the_communication_unknown(two_ranks, tmp_path):
    two_ranks.call(train_sharded, tmp_path / "early", "fsdp", 6, loss=gathers_early)
    metrics = Metrics.model_validate(read_json(tmp_path / "early" / "metrics.json"))
    assert metrics.null_reasons["comm"].startswith("an unshard was asynchronous")
    assert metrics.composition["comm_wait_s"] is None
