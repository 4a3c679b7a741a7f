"""Telemetry of a user's own loop on one rank, also as Accelerate, Fabric or Lightning wraps its parts."""

from collections import UserDict, namedtuple
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn

from analysis.read.frames import load_frames
from analysis.read.load import load_runs
from disttrain.engine.exposed_comm import grad_tensors
from disttrain.engine.own_loop import LoopTelemetry, unwrap_model
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.run_directory import ATTEMPT, RUN_DIR, RunDir
from disttrain.telemetry.profiled.profiled_steps import ProfiledSteps
from disttrain.telemetry.step_clock import COMPUTE, INPUT
from jobs.status.run_state import read_state

QUIET = {"warmup_steps": 1, "profiled_steps": 0, "sinks": [], "gpu_every_s": 0}


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def loop(folder, act=lambda telemetry, number, loss: None, optimizer=sgd, **options):
    """Run a loop over 12 batches, with `act` after each; its run directory."""
    model = nn.Linear(4, 1)
    optimizer = optimizer(model)
    options = {"steps": 12, "samples_per_step": 2, "telemetry": QUIET} | options
    with LoopTelemetry(folder, model, optimizer, **options) as telemetry:
        for number, inputs in enumerate(telemetry.steps([torch.ones(2, 4)] * 12), 1):
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            act(telemetry, number, loss)
    return RunDir(folder)


def lines_of(run, attempt=0):
    return read_jsonl(run.attempt(attempt).steps(0))


def test_a_step_without_a_recorded_loss_has_none(tmp_path):
    recorded = {}

    def record(telemetry, number, loss):
        if number % 5 == 0:
            telemetry.record_loss(loss)
            recorded[number] = pytest.approx(loss.item())

    run = loop(tmp_path, record)
    assert {line["step"]: line["loss"] for line in lines_of(run)} == {
        s: recorded.get(s) for s in range(1, 13)
    }
    history = read_json(run.metrics)["loss_history"]
    assert {point["step"]: point["loss"] for point in history} == recorded


def test_a_validation_between_two_passes_is_recorded_and_belongs_to_no_step(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    with LoopTelemetry(
        tmp_path / "n1", model, optimizer, steps=2, samples_per_step=2, telemetry=QUIET
    ) as telemetry:
        telemetry.step()
        with telemetry.outside_steps():
            began = telemetry.clock.instant()
            telemetry.record_validation(0.5, {"accuracy": 0.75}, elapsed_s=3.0)
            while telemetry.clock.instant() == began:
                pass
            left_s = telemetry.clock.between_s(began, telemetry.clock.instant())
        telemetry.step()
        for _ in telemetry.steps([0]):
            with pytest.raises(RuntimeError, match="outside_steps"), telemetry.outside_steps():
                pass
    run = RunDir(tmp_path / "n1")
    assert lines_of(run)[1]["gap_s"] >= left_s
    [point] = read_json(run.metrics)["eval_history"]
    assert (point["step"], point["loss"], point["metrics"]) == (1, 0.5, {"accuracy": 0.75})
    assert (point["samples"], point["elapsed_s"]) == (None, 3.0)


def test_an_error_within_a_profiled_step_does_not_wait_for_the_device(tmp_path, monkeypatch):
    @contextmanager
    def take(*_):
        yield
        raise RuntimeError("the device does not answer")

    def fail(telemetry, number, loss):
        telemetry._recorder.profiled.steps = {2}
        if number == 2:
            raise KeyError("broken")

    monkeypatch.setattr(ProfiledSteps, "take", take)
    with pytest.raises(KeyError, match="broken"):
        loop(tmp_path, fail)


def test_the_record_of_a_loop_holds_its_own_optimizer_and_no_defaults(tmp_path):
    config = read_json(loop(tmp_path).run_json)["config"]
    assert set(config) == {"model", "train", "resources", "telemetry", "optim"}
    assert config["train"] == {"local_batch_size": 2, "global_batch_size": 2}
    assert config["model"] == {"kind": "torch.nn.modules.linear:Linear"}
    assert (config["telemetry"]["warmup_steps"], "layer_passes" in config["telemetry"]) == (1, False)
    assert (config["optim"]["name"], config["optim"]["lr"]) == ("torch.optim.sgd:SGD", 0.1)


def test_options_of_the_optimizer_are_in_the_run_key_unless_its_groups_differ_on_them(tmp_path):
    def grouped(model):
        groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias]}]
        return torch.optim.SGD(groups, lr=torch.tensor(0.1), momentum=0.9)

    made = {"a": sgd, "b": lambda model: sgd(model, lr=0.2), "c": sgd, "groups": grouped}
    records = {name: read_json(loop(tmp_path / name, optimizer=each).run_json) for name, each in made.items()}
    keys = {name: record["run_key"] for name, record in records.items()}
    assert keys["a"] == keys["c"] != keys["b"]
    options = records["groups"]["config"]["optim"]
    assert (options["momentum"], {"lr", "weight_decay", "params"} & set(options)) == (0.9, set())


def test_nothing_is_invented_for_a_loop(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(tmp_path / "train.py"), "--lr", "0.1"])
    run = loop(tmp_path / "mine" / "n1")
    record, metrics = read_json(run.run_json), read_json(run.metrics)
    unknown = {"hash": None, "git_commit": None, "git_dirty": None, "git_diff": None}
    assert record["provenance"]["code"].items() >= unknown.items()
    assert record["provenance"]["argv"] == ["train.py", "--lr", "0.1"]
    assert record["cluster"] is record["repeat"] is record["profile"] is None
    assert metrics["dataset"] is metrics["model_flops_per_sample"] is metrics["tokens_per_s"] is None
    assert read_state(run, code_hash="2-0123456789ab").stale is False
    [row] = load_frames([tmp_path / "mine"]).runs.to_dict("records")
    assert row["included"]
    assert all(
        pd.isna(row[name]) for name in ("dataset", "dataset_version", "repeat", "code_hash", "git_commit")
    )


@pytest.mark.parametrize("announced", [30, 10])
def test_a_loop_that_makes_other_steps_than_announced_is_reported_and_compared(tmp_path, announced):
    run, note = loop(tmp_path / "mine" / "a", steps=announced), f"made 12 of {announced} announced steps"
    loop(tmp_path / "mine" / "b")
    assert (read_json(run.metrics)["status"], read_state(run).message) == ("completed", note)
    runs = load_runs([tmp_path / "mine"])
    assert [(each.included, each.note) for each in runs] == [(True, note), (True, "")]


def test_a_loop_that_continues_counts_from_its_resumed_step(tmp_path):
    run = loop(tmp_path, steps=32, resumed_step=20)
    metrics = read_json(run.metrics)
    assert (metrics["status"], metrics["steps"], metrics["resumed_step"]) == ("completed", 32, 20)
    assert (metrics["left_out"], read_state(run).message) == ([[1, 21]], None)
    assert [line["step"] for line in lines_of(run)] == list(range(21, 33))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"steps": 0}, "steps=0: "),
        ({"samples_per_step": 2.5}, "samples_per_step=2.5: "),
        ({"resumed_step": -1}, "resumed_step=-1: "),
        ({"accumulation": 4}, "samples_per_step=2 is not a multiple of accumulation=4"),
        (
            {"telemetry": {"warmup": 3}},
            "unknown key 'telemetry.warmup'; did you mean 'telemetry.warmup_steps'?",
        ),
        ({"telemetry": {"sinks": ["csv"]}}, "telemetry.sinks='csv' is unknown"),
        ({"telemetry": {"layer_passes": 2}}, "config: a script takes no telemetry.layer_passes"),
        ({"optimizer": lambda model: object()}, "optimizer=object: must be a torch"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(tmp_path, options, named):
    with pytest.raises(ConfigError) as refused:
        loop(tmp_path / "run", **options)
    assert str(refused.value).startswith(named)
    assert not (tmp_path / "run").exists()


def test_a_loop_whose_ranks_train_apart_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2"):
        loop(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("announced", "request_", "end"),
    [
        (30, {"cause": "deadline"}, ("stopped", "deadline")),
        (30, {"cause": "another"}, ("completed", None)),
        (12, {"cause": "deadline"}, ("completed", None)),  # after the last step
    ],
)
def test_a_loop_in_a_job_writes_to_the_attempt_of_the_job(tmp_path, monkeypatch, announced, request_, end):
    run = RunDir(tmp_path / "mine" / "job")
    record = {"name": "job", "sweep": "mine", "run_key": "abc"}
    write_json(run.run_json, record)
    run.attempt(3).path.mkdir(parents=True)
    monkeypatch.setenv(RUN_DIR, str(run.path))
    monkeypatch.setenv(ATTEMPT, "3")
    write_json(run.attempt(3).stop, request_)
    loop(tmp_path / "by-hand", steps=announced)
    metrics = read_json(run.metrics)
    assert (metrics["run_key"], metrics["attempt"], metrics["steps"]) == ("abc", 3, 12)
    assert (metrics["status"], metrics["stop_cause"]) == end
    assert len(lines_of(run, 3)) == 12
    assert read_json(run.run_json) == record
    assert not run.done.exists(), "the agent closes the attempt"
    assert not (tmp_path / "by-hand").exists()


def accelerate(model, optimizer):
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(model, optimizer)


def fabric(model, optimizer):
    from lightning.fabric import Fabric

    return Fabric(accelerator="cpu", devices=1).setup(model, optimizer)


def lightning(model, optimizer):
    from lightning.pytorch.core.optimizer import LightningOptimizer

    wrapped = LightningOptimizer(optimizer)
    wrapped._strategy = SimpleNamespace(optimizer_step=lambda own, closure: own.step(closure))
    return model, wrapped


@pytest.mark.parametrize("wrap", [accelerate, fabric, lightning])
def test_a_wrapped_loop_is_measured_like_a_plain_one(tmp_path, wrap):
    model = nn.Linear(4, 2)
    model, optimizer = wrap(model, sgd(model))
    with LoopTelemetry(tmp_path, model, optimizer, steps=4, samples_per_step=2, telemetry=QUIET) as telemetry:
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            telemetry.step()
    lines = lines_of(RunDir(tmp_path))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["compute_s"] > 0 and line["optimizer_s"] > 0 for line in lines)
    config = read_json(tmp_path / "run.json")["config"]
    assert (config["model"]["kind"], config["optim"]["name"]) == (
        "torch.nn.modules.linear:Linear",
        "torch.optim.sgd:SGD",
    )


def test_batches_that_share_a_step_of_a_hugging_face_trainer_are_one_step(tmp_path, monkeypatch):
    import transformers

    from disttrain.integrations.huggingface import train

    arguments = transformers.TrainingArguments(
        str(tmp_path), gradient_accumulation_steps=2, per_device_train_batch_size=3, max_steps=4,
        use_cpu=True, report_to="none", save_strategy="no", logging_steps=2,
    )  # fmt: skip
    sizes = dict.fromkeys(("vocab_size", "n_positions", "n_embd"), 8) | dict.fromkeys(
        ("n_layer", "n_head"), 1
    )
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    monkeypatch.chdir(tmp_path)
    train(trainer)
    [run_dir] = (tmp_path / "runs" / "by-hand").iterdir()
    lines = lines_of(RunDir(run_dir))
    assert [(line["step"], line["samples"]) for line in lines] == [(step, 6) for step in range(1, 5)]
    assert all(line["compute_s"] > 0 and line["optimizer_s"] > 0 for line in lines)
    logged = {
        entry["step"]: pytest.approx(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry
    }
    assert {line["step"]: line["loss"] for line in lines if line["loss"]} == logged
    assert [*logged] == [2, 4]


def test_batches_that_share_a_step_of_a_lightning_trainer_are_one_step(tmp_path, monkeypatch):
    from lightning.pytorch import LightningModule, Trainer

    from disttrain.integrations.lightning import fit

    class Constant(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch, at):
            return self.layer(batch[0]).sum() * 0 + at

        def configure_optimizers(self):
            return sgd(self)

    data = torch.utils.data.TensorDataset(torch.ones(24, 1))
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, accumulate_grad_batches=2, logger=False, enable_progress_bar=False
    )
    monkeypatch.chdir(tmp_path)
    fit(trainer, Constant(), torch.utils.data.DataLoader(data, batch_size=3))
    [run_dir] = (tmp_path / "runs" / "by-hand").iterdir()
    lines = lines_of(RunDir(run_dir))
    assert [(line["step"], line["samples"], line["loss"]) for line in lines] == [
        (1, 6, 0.5), (2, 6, 2.5), (3, 6, 4.5), (4, 6, 6.5)
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["epoch=0-step=4.ckpt"]


def test_the_module_of_a_lightning_trainer_is_the_one_that_it_wraps():
    from lightning.pytorch import LightningModule

    module, wrapped = LightningModule(), nn.Linear(4, 2)
    module._trainer = SimpleNamespace(model=wrapped)
    assert unwrap_model(module) is wrapped
    with pytest.raises(ConfigError, match=r"model=object: must be a torch\.nn\.Module"):
        unwrap_model(object())


def test_a_step_of_a_pass_ends_once(tmp_path):
    model = nn.Linear(4, 2)
    telemetry = LoopTelemetry(tmp_path, model, sgd(model), steps=1, samples_per_step=2, telemetry=QUIET)
    with telemetry:
        batches = telemetry.steps([0])
        next(batches)
        with torch.no_grad():
            model.eval()(torch.ones(1, 4))
        assert telemetry.clock.phase == INPUT, "an evaluation"
        model.train()(torch.ones(1, 4))
        assert telemetry.clock.phase == COMPUTE
        with pytest.raises(RuntimeError, match="within steps"):
            telemetry.step()
        assert list(batches) == []
    assert telemetry.metrics.steps == 1


GRAD, PLAIN = torch.ones(2, requires_grad=True), torch.ones(2)
Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    loss: object
    logits: object


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (PLAIN, 0),
        ((PLAIN, [GRAD, {"a": GRAD}]), 2),
        (Pair(GRAD, None), 1),
        (UserDict(loss=GRAD, name="x"), 1),
        (Output(GRAD, (PLAIN, Output(GRAD, GRAD))), 3),
        (Output, 0),
        (object(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_tensor_of_an_output_that_requires_a_gradient_is_found(output, count):
    assert [tensor is GRAD for tensor in grad_tensors(output)] == [True] * count
