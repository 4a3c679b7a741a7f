"""A `Trainer` in a script of one's own: on one rank, in this process."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from disttrain import Trainer
from disttrain.errors import ConfigError, NonFinite
from disttrain.records.json_files import read_json
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
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


def trainer(run_dir, model=None, steps=6, config=None, **options) -> Trainer:
    model = model or network()
    options = {"optimizer": adamw(model), "loss": loss, "batch_size": 4, **options}
    return Trainer(model, steps=steps, run_dir=run_dir, config={**QUIET, **(config or {})}, **options)


def train(own: Trainer, until: int, dataset=None, workers=0) -> None:
    batches = own.batches(dataset or samples(), workers=workers)
    while own.steps_done < until:
        own.step(batches)


def state(model: nn.Module) -> list:
    return [value.tolist() for value in model.state_dict().values()]


@pytest.mark.parametrize("workers", [0, 2])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path, workers):
    """The dataset draws random numbers, too."""
    augmented, weights, curves = Augmented(*samples().tensors), [], []
    for name, starts in {"whole": {1: 6}, "parts": {1: 3, 2: 6}}.items():
        for seed, until in starts.items():
            model = network()
            seed_all(seed)
            with trainer(tmp_path / name, model) as own:
                assert own.load() == own.steps_done == (3 if seed == 2 else 0)
                train(own, until, augmented, workers)
                path = own.save()
                assert own.save() == path == tmp_path / name / f"checkpoints/step-{until:08d}"
        weights.append(state(model))
        curves.append(own.metrics().loss_history)
    assert weights[0] == weights[1]
    assert curves[0] == curves[1]
    metrics = own.metrics()
    assert (metrics.steps, metrics.resumed_step, metrics.attempt) == (6, 3, 1)


def test_the_weights_alone_are_loaded_at_any_time(tmp_path):
    with trainer(tmp_path / "one") as own:
        train(own, 2)
        saved, path = state(own.model), own.save()
    with trainer(tmp_path / "two", batch_size=8) as own:
        train(own, 1)
        assert state(own.model) != saved
        assert own.load(path, model_only=True) == 1
        assert state(own.model) == saved
        with pytest.raises(RuntimeError, match="precedes the first step"):
            own.load(path)


def test_validation_is_the_mean_over_the_samples(tmp_path):
    model, data = network(), TensorDataset(*samples()[:39])  # the last batch is shorter
    with trainer(tmp_path, model) as own:
        before = own.validate(data)
        train(own, 2)
        model[1].eval()
        after, some = own.validate(data), own.validate(data, samples=3)
        own.save()
        assert [module.training for module in model] == [True] * 3
        model.eval()
        assert own.validate(data).loss == after.loss
        assert not model.training
    assert after.loss == pytest.approx(loss(model, list(data.tensors)).item(), rel=tolerance())
    spread = [column[[0, 13, 26]] for column in data.tensors]
    assert some.loss == pytest.approx(loss(model, spread).item(), rel=tolerance())
    assert [(point.step, point.samples) for point in (before, after, some)] == [(0, 39), (2, 39), (2, 3)]
    assert read_json(tmp_path / "checkpoints/step-00000002/manifest.json")["valid_loss"] == some.loss
    assert [point.loss for point in own.metrics().eval_history] == [after.loss, some.loss, after.loss]


def test_metrics_are_those_of_the_run_directory(tmp_path):
    with trainer(tmp_path, accumulation=2) as own:
        train(own, 3)
        during = own.metrics()
    final = own.metrics()
    assert (during.status, during.steps, during.measured_steps) == ("running", 3, 2)
    assert (final.status, final.strategy, final.global_batch_size) == ("completed", "single", 8)
    assert final == Metrics.model_validate(read_json(tmp_path / "metrics.json"))


@pytest.mark.parametrize(
    "parallel",
    [{"strategy": "fsdp", "fsdp": {"accumulation": "no_sync"}}, {"strategy": "hsdp"}],
    ids=["fsdp", "hsdp"],
)
def test_an_accumulation_that_ends_early_leaves_no_gradient(tmp_path, parallel):
    """Of three batches, the third begins a step that the next pass over the loader does not continue."""
    batches, curves = list(DataLoader(samples(), 4))[:3], []
    for section in ({"strategy": "single"}, parallel):
        model = nn.Sequential(network()[0], network()[2])
        own = trainer(
            tmp_path / section["strategy"], model, 2, {"parallel": section}, accumulation=2,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        )  # fmt: skip
        with own:
            first = own.step(iterator := iter(batches))
            assert (own.step(iterator), own.steps_done) == (None, 1)
            second = own.step(iter(batches))
            weights = (w.full_tensor() if isinstance(w, DTensor) else w for w in own.model.parameters())
            curves.append([first.loss.item(), second.loss.item(), sum(w.abs().sum().item() for w in weights)])
    assert curves[1] == pytest.approx(curves[0], rel=tolerance(2))


def test_the_schedule_scales_the_rates_of_all_groups_of_an_optimizer_made_by_a_function(tmp_path):
    model, made = network(), []

    def factory(parameters):
        weights = list(parameters)
        groups = [{"params": weights[:2], "lr": 0.1}, {"params": weights[2:], "lr": 0.02}]
        made.append(torch.optim.SGD(groups))
        return made[0]

    config = {"optim": {"schedule": "linear"}}
    with trainer(tmp_path, model, 4, config, optimizer=factory) as own:
        batches = own.batches(samples())
        rates = [(own.step(batches).lr, made[0].param_groups[1]["lr"]) for _ in range(3)]
    assert rates == [pytest.approx((0.1 * f, 0.02 * f)) for f in (0.75, 0.5, 0.25)]


def not_a_number(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return loss(model, batch) * torch.nan


@pytest.mark.parametrize(("log_every", "ends_at"), [(2, 2), (5, 3)])
def test_gradients_that_are_not_finite_end_the_training_by_policy(tmp_path, log_every, ends_at):
    """After `log_every` steps, after the last one, or before a checkpoint."""
    config = {"precision": {"on_non_finite": "stop"}, "train": {"log_every": log_every}}
    own = trainer(tmp_path / "run", steps=3, loss=not_a_number, config=config)
    with pytest.raises(NonFinite, match=f"step {ends_at}"), own:
        train(own, 3)
    assert (own.steps_done, (tmp_path / "run/FAILED").exists()) == (ends_at, True)
    with trainer(tmp_path / "saved", loss=not_a_number, config=config) as own:
        train(own, 1)
        with pytest.raises(NonFinite, match="step 1"):
            own.save()
    assert not (tmp_path / "saved/checkpoints").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, r"^steps=0: "),
        ({"batch_size": 2.0}, r"^batch_size=2\.0: "),
        ({"config": {"optimm": {}}}, r"optimm.*'optim'"),
        ({"config": {"data": {"kind": "text"}}}, "section 'data'"),
        ({"config": {"optim": {"lr": 0.1}}}, r"optim\.lr"),
        ({"config": {"parallel": {"strategy": "pipeline"}}}, r"parallel\.strategy=pipeline"),
        ({"config": {"optim": None}}, "optim must be a mapping"),
        ({"optimizer": lambda parameters: None}, "^optimizer: .* NoneType"),
        ({"optimizer": adamw(nn.Linear(2, 2))}, "^optimizer: it holds parameters that are not those"),
    ],
)
def test_refusals_are_one_line_before_anything_is_written(tmp_path, options, named):
    with pytest.raises(ConfigError, match=named) as caught:
        trainer(tmp_path / "run", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "problem"), [({"batch_size": 8}, "batch_size was 4"), ({"steps": 1}, "beyond")]
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, options, problem):
    with trainer(tmp_path) as own:
        train(own, 2)
        own.save()
    with trainer(tmp_path, **options) as own, pytest.raises(ConfigError, match=problem):
        own.load()


def test_calls_out_of_order_are_refused(tmp_path):
    with trainer(tmp_path, steps=1) as own:
        with pytest.raises(RuntimeError, match="follows the first step"):
            own.save()
        with pytest.raises(ConfigError, match="at least 1 sample"):
            own.validate([])
        train(own, 1)
        with pytest.raises(RuntimeError, match="all of them are done"):
            own.step(iter([]))
    with pytest.raises(RuntimeError, match="after close"):
        own.step(iter([]))


def test_parameters_of_single_ranks_are_neither_validated_nor_saved(tmp_path, monkeypatch):
    with trainer(tmp_path) as own:
        train(own, 1)
        monkeypatch.setattr(own.stepper.strategy, "replicas_agree", lambda step: step == 2)
        for call in (lambda: own.validate(samples()), own.save):
            with pytest.raises(RuntimeError, match="after step 1: the ranks hold different"):
                call()
        train(own, 2)
        assert own.validate(samples()).step == 2


def test_a_save_below_a_checkpoint_of_an_earlier_attempt_is_refused(tmp_path):
    """Retention would keep the checkpoint of the earlier attempt."""
    keep_one = {"checkpoint": {"keep": 1}}
    with trainer(tmp_path, config=keep_one) as own:
        train(own, 4)
        own.save()
    own = trainer(tmp_path, config=keep_one)
    with pytest.raises(RuntimeError, match="checkpoint of step 4 of an earlier attempt"), own:  # noqa: PT012
        train(own, 2)
        own.save()
    with trainer(tmp_path, config=keep_one) as own:
        assert own.load() == 4
        train(own, 5)
        assert own.save().is_dir()


def test_a_start_in_the_directory_of_a_finished_run_replaces_its_records(tmp_path):
    for steps in (2, 4):
        with trainer(tmp_path, steps=steps) as own:
            assert not (tmp_path / "DONE").exists()
            train(own, 2)
    run = RunDir(tmp_path)
    assert read_json(run.run_json)["config"]["train"]["steps"] == 4
    assert read_json(run.metrics)["run_key"] == read_json(run.run_json)["run_key"]
