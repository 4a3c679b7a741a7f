"""A `Trainer` in a script of one's own: on one rank, in this process."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from disttrain import Trainer
from disttrain.errors import ConfigError, NonFinite
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.runtime.device import seed_all
from tests.support.tolerance import tolerance

QUIET = {"telemetry": {"sinks": (), "profiled_steps": 0, "warmup_steps": 1, "gpu_every_s": 0}}


def samples() -> TensorDataset:
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


class Augmented(TensorDataset):
    """Samples with noise of each generator that an augmentation may use."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return inputs + torch.rand(4) + random.random() + torch.tensor(np.random.rand(4)).float(), target


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def trainer(run_dir: Path, model: nn.Module, steps: int = 6, config=None, **options) -> Trainer:
    options = {"optimizer": adamw(model), "loss": loss, "batch_size": 4, **options}
    return Trainer(model, steps=steps, run_dir=run_dir, config={**QUIET, **(config or {})}, **options)


def train(own: Trainer, until: int, dataset: Dataset | None = None, workers: int = 0) -> None:
    batches = own.batches(dataset or samples(), workers=workers)
    while own.steps_done < until:
        own.step(batches)


def state(model: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_group_of_fewer_ranks_than_torchrun_started_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="no process group of WORLD_SIZE=2"):
            trainer(tmp_path / "run", network())
    finally:
        dist.destroy_process_group()


def test_a_step_is_that_of_a_plain_loop(tmp_path):
    plain = network()
    optimizer = adamw(plain)
    given = [[x[None].expand(4, -1) * k, y.expand(4)] for k, (x, y) in enumerate(samples(), 1)]
    torch.manual_seed(5)
    for batch in given[:3]:
        loss(plain, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = network()
    with trainer(tmp_path, model) as own:
        torch.manual_seed(5)
        batches = iter(given)
        results = [own.step(batches) for _ in range(3)]
    assert [result.step for result in results] == [1, 2, 3]
    assert equal(state(model), state(plain))


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    whole = network()
    with trainer(tmp_path / "whole", whole) as own:
        train(own, 6)
    with trainer(tmp_path / "parts", network()) as own:
        train(own, 4)
        path = own.save()
        assert own.save() == path == tmp_path / "parts" / "checkpoints" / "step-00000004"
    resumed = network()
    with trainer(tmp_path / "parts", resumed) as own:
        assert own.load() == own.steps_done == 4
        train(own, 6)
    assert equal(state(resumed), state(whole))
    metrics = Metrics.model_validate(read_json(tmp_path / "parts" / "metrics.json"))
    assert (metrics.steps, metrics.resumed_step, metrics.attempt) == (6, 4, 1)
    assert [point.step for point in metrics.loss_history] == [
        point.step
        for point in Metrics.model_validate(read_json(tmp_path / "whole/metrics.json")).loss_history
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_numbers_of_the_dataset_go_on_where_they_stopped(tmp_path, workers):
    augmented, weights = Augmented(*samples().tensors), []
    for name, starts in {"whole": {1: 6}, "parts": {1: 3, 2: 6}}.items():
        for seed, until in starts.items():
            model = network()
            seed_all(seed)
            with trainer(tmp_path / name, model) as own:
                own.load()
                train(own, until, augmented, workers)
                own.save()
        weights.append(state(model))
    assert equal(*weights)


def test_the_weights_alone_are_loaded_at_any_time(tmp_path):
    with trainer(tmp_path / "one", network()) as own:
        train(own, 2)
        saved = state(own.model)
        path = own.save()
    other = network()
    with trainer(tmp_path / "two", other, batch_size=8) as own:
        train(own, 1)
        assert not equal(state(other), saved)
        assert own.load(path, model_only=True) == 1
        assert equal(state(other), saved)
        with pytest.raises(RuntimeError, match="precedes the first step"):
            own.load(path)


def test_a_new_run_directory_has_nothing_to_load(tmp_path):
    with trainer(tmp_path, network()) as own:
        assert own.load() == 0
    assert own.metrics().steps == 0


def test_validation_is_the_mean_over_the_samples(tmp_path):
    model = network()
    data = TensorDataset(*samples()[:39])  # the last batch is shorter
    with trainer(tmp_path, model) as own:
        before = own.validate(data)
        train(own, 2)
        after = own.validate(data)
        own.save()
    model.eval()
    assert after.loss == pytest.approx(loss(model, list(data.tensors)).item(), rel=tolerance())
    assert (before.step, after.step, after.samples) == (0, 2, 39)
    assert before.loss != after.loss
    manifest = read_json(tmp_path / "checkpoints" / "step-00000002" / "manifest.json")
    assert manifest["valid_loss"] == after.loss
    assert [point.loss for point in own.metrics().eval_history] == [after.loss]


def test_metrics_are_those_of_the_run_directory(tmp_path):
    with trainer(tmp_path, network(), accumulation=2) as own:
        train(own, 3)
        during = own.metrics()
    final = own.metrics()
    assert (during.status, during.steps, during.measured_steps) == ("running", 3, 2)
    assert (final.status, final.strategy, final.global_batch_size) == ("completed", "single", 8)
    assert final == Metrics.model_validate(read_json(tmp_path / "metrics.json"))


def test_a_loader_of_the_caller_may_end(tmp_path):
    with trainer(tmp_path, network(), steps=100, accumulation=3) as own:
        for _ in range(2):
            batches = iter(DataLoader(samples(), batch_size=4))
            while own.step(batches):
                pass
        assert all(parameter.grad is None for parameter in own.model.parameters())
    assert own.steps_done == 6, "10 batches are three steps of three, twice"


@pytest.mark.parametrize(
    "parallel",
    [{"strategy": "fsdp", "fsdp": {"accumulation": "no_sync"}}, {"strategy": "hsdp"}],
    ids=["fsdp", "hsdp"],
)
def test_an_accumulation_that_ends_early_leaves_no_gradient(tmp_path, parallel):
    """Of three batches, the third begins a step that the next pass over the loader does not continue."""
    batches = list(DataLoader(samples(), 4))[:3]
    curves = []
    for number, section in enumerate(({"strategy": "single"}, parallel)):
        options = {"accumulation": 2, "config": {"parallel": section}, "steps": 2}
        model = nn.Sequential(network()[0], network()[2])
        with trainer(tmp_path / str(number), model, optimizer=sgd, **options) as own:
            first = own.step(given := iter(batches))
            assert own.step(given) is None
            curves.append([first.loss.item(), own.step(iter(batches)).loss.item(), weight_of(own)])
    assert curves[1] == pytest.approx(curves[0], rel=tolerance(2))


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def weight_of(own: Trainer) -> float:
    """A number that depends on all weights."""
    return sum(
        (full.full_tensor() if isinstance(full, DTensor) else full).abs().sum().item()
        for full in own.model.parameters()
    )


def test_batches_of_any_structure(tmp_path):
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * scale[:, None]

    data = [{"x": torch.ones(4), "scale": torch.tensor(float(i))} for i in range(8)]
    model = Scaled(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Trainer(
        model, optimizer, lambda m, b: m(**b).square().mean(),
        steps=5, batch_size=2, run_dir=tmp_path, config=QUIET,
    ) as own:  # fmt: skip
        batches = own.batches(data)
        losses = [own.step(batches).loss.item() for _ in range(5)]
        assert own.validate(data).loss < losses[0]


def test_the_schedule_scales_the_rates_of_all_groups(tmp_path):
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.02}]
    optimizer = torch.optim.SGD(groups)
    config = {"optim": {"schedule": "linear"}}
    with trainer(tmp_path, model, optimizer=optimizer, steps=4, config=config) as own:
        batches = own.batches(samples())
        rates = [(own.step(batches).lr, optimizer.param_groups[1]["lr"]) for _ in range(3)]
    assert rates == [pytest.approx((0.1 * f, 0.02 * f)) for f in (0.75, 0.5, 0.25)]


def test_an_optimizer_may_be_made_of_the_parallel_parameters(tmp_path):
    made = []

    def factory(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.3))
        return made[0]

    with trainer(tmp_path, network(), optimizer=factory) as own:
        train(own, 1)
    assert made[0].param_groups[0]["lr"] == 0.3


def not_a_number(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return loss(model, batch) * torch.nan


def test_gradients_that_are_not_finite_leave_the_weights(tmp_path):
    model = network()
    before = state(model)
    with trainer(tmp_path, model, loss=not_a_number) as own:
        train(own, 2)
    assert equal(state(model), before)
    assert own.metrics().skipped_steps == 2


def test_gradients_that_are_not_finite_end_the_training_by_policy(tmp_path):
    config = {"precision": {"on_non_finite": "stop"}, "train": {"log_every": 2}}
    own = trainer(tmp_path, network(), loss=not_a_number, config=config)
    with pytest.raises(NonFinite, match="step 2: the gradients are not finite"), own:
        train(own, 6)
    assert own.steps_done == 2
    own = trainer(tmp_path / "saved", network(), loss=not_a_number, config={**config, "train": {}})
    with own:
        train(own, 1)
        with pytest.raises(NonFinite, match="step 1: the gradients"):
            own.save()
    assert not (tmp_path / "saved" / "checkpoints").exists()


def test_an_error_in_the_loop_is_recorded(tmp_path):
    def too_warm(model, batch):
        raise ValueError("too warm")

    with pytest.raises(ValueError, match="too warm"), trainer(tmp_path, network(), loss=too_warm) as own:
        train(own, 1)
    assert "ValueError: too warm" in read_json(tmp_path / "FAILED")["message"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, r"^steps=0: must be a whole number of at least 1$"),
        ({"batch_size": 2.0}, r"^batch_size=2\.0: must be a whole number"),
        ({"config": {"optimm": {}}}, r"no section 'optimm'; did you mean 'optim'\?; allowed: model,"),
        ({"config": {"data": {"kind": "text"}}}, r"a script takes no section 'data'"),
        ({"config": {"optim": {"lr": 0.1}}}, r"a script takes no optim\.lr.*; allowed: grad_clip, schedule"),
        (
            {"config": {"optim": {"schedule": "cosin"}}},
            r"optim\.schedule='cosin' is unknown; allowed:.*'cosine'\?",
        ),
        ({"config": {"parallel": {"strategy": "ddq"}}}, r"parallel\.strategy='ddq'"),
        ({"config": {"optim": None}}, r"^config: optim must be a mapping of keys$"),
        ({"optimizer": lambda parameters: None}, r"^optimizer: the function returned NoneType"),
        ({"optimizer": adamw(nn.Linear(2, 2))}, r"^optimizer: it holds parameters that are not those"),
    ],
)
def test_refusals_are_one_line_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        trainer(tmp_path / "run", network(), **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_batch_size_is_refused(tmp_path):
    with trainer(tmp_path, network()) as own:
        train(own, 2)
        own.save()
    with (
        trainer(tmp_path, network(), batch_size=8) as own,
        pytest.raises(ConfigError, match="global_batch_size was 4 and is"),
    ):
        own.load()
    with trainer(tmp_path, network(), steps=1) as own, pytest.raises(ConfigError, match="beyond the 1 steps"):
        own.load()


def test_steps_and_checkpoints_out_of_order_are_refused(tmp_path):
    with trainer(tmp_path, network(), steps=1) as own:
        with pytest.raises(RuntimeError, match="save\\(\\) follows the first step"):
            own.save()
        train(own, 1)
        with pytest.raises(RuntimeError, match="steps=1, and all of them are done"):
            own.step(iter([]))


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    [example] = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "Trainer" in code]
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a model this small loses more to threads than it gains
    try:
        exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
    finally:
        torch.set_num_threads(threads)
    metrics = Metrics.model_validate(read_json(tmp_path / "runs" / "mine" / "n1" / "metrics.json"))
    assert metrics.status == "completed"
    assert metrics.eval_history[-1].loss < 0.5 * metrics.loss_history[0].loss
