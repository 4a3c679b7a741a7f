"""Telemetry of a user's own loop, on one rank."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import submit
from analysis.read.frames import load
from analysis.read.load import load_runs
from analysis.results.curves import scaling_curves
from analysis.study import make_study
from disttrain.engine.own_loop import LoopTelemetry
from disttrain.engine.script_config import optimizer_options
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.run_directory import RunDir
from disttrain.telemetry.profiled.profiled_steps import ProfiledSteps
from jobs.status.run_state import read_state


@contextmanager
def opened(
    folder: Path, **options: Any
) -> Iterator[Callable[[], Iterator[tuple[LoopTelemetry, int, Tensor]]]]:
    """A loop over 12 batches: the telemetry, the number of the batch from 1 on, and its loss."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    settings = {"warmup_steps": 1, "profiled_steps": 0, "sinks": [], "gpu_every_s": 0}
    options = {"steps": 12, "samples_per_step": 2, "telemetry": settings} | options
    with LoopTelemetry(folder, model, optimizer, **options) as telemetry:

        def steps() -> Iterator[tuple[LoopTelemetry, int, Tensor]]:
            for number, inputs in enumerate(telemetry.steps([torch.ones(2, 4)] * 12), 1):
                loss = model(inputs).square().mean()
                loss.backward()
                optimizer.step()
                yield telemetry, number, loss

        yield steps


def test_a_step_without_a_recorded_loss_has_none(tmp_path: Path) -> None:
    recorded = {}
    with opened(tmp_path) as steps:
        for telemetry, number, loss in steps():
            if number % 5 == 0:
                telemetry.record_loss(loss)
                recorded[number] = pytest.approx(loss.item())
    losses = {line["step"]: line["loss"] for line in read_jsonl(RunDir(tmp_path).attempt(0).steps(0))}
    assert losses == {step: recorded.get(step) for step in range(1, 13)}
    history = read_json(RunDir(tmp_path).metrics)["loss_history"]
    assert {point["step"]: point["loss"] for point in history} == recorded


def test_an_error_within_a_profiled_step_does_not_wait_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def take(*_: Any) -> Iterator[None]:
        yield
        raise RuntimeError("the device does not answer")

    monkeypatch.setattr(ProfiledSteps, "take", take)

    def train() -> None:
        with opened(tmp_path) as steps:
            for telemetry, number, _ in steps():
                telemetry._recorder.profiled.steps = {2}
                if number == 2:
                    raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        train()
    assert read_json(RunDir(tmp_path).attempt(0).error(0))["kind"] == "KeyError"


def test_the_record_of_a_loop_holds_its_own_optimizer_and_no_defaults(tmp_path: Path) -> None:
    with opened(tmp_path) as steps:
        list(steps())
    config = read_json(RunDir(tmp_path).run_json)["config"]
    assert set(config) == {"model", "train", "resources", "telemetry", "optim"}
    assert config["train"] == {"local_batch_size": 2, "global_batch_size": 2}
    assert config["model"] == {"kind": "torch.nn.modules.linear:Linear"}
    assert config["telemetry"]["warmup_steps"] == 1
    assert "layer_passes" not in config["telemetry"]
    optim = config["optim"]
    assert optim["name"] == "torch.optim.adamw:AdamW"
    assert (optim["lr"], optim["weight_decay"], optim["betas"]) == (1e-3, 0.01, [0.9, 0.999])


def test_options_on_which_parameter_groups_differ_are_left_out() -> None:
    weight, bias = nn.Linear(2, 2).parameters()
    groups = [{"params": [weight], "weight_decay": 0.1}, {"params": [bias], "lr": torch.tensor(0.5)}]
    options = optimizer_options(torch.optim.SGD(groups, lr=torch.tensor(0.1), momentum=0.9))
    assert options["momentum"] == 0.9
    assert not {"lr", "weight_decay", "params"} & set(options)


def test_a_loop_whose_ranks_train_apart_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="no process group of WORLD_SIZE=2"), opened(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_other_optimizers_give_other_run_keys(tmp_path: Path) -> None:
    for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.1)):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with LoopTelemetry(tmp_path / name, model, optimizer, steps=1, samples_per_step=2) as telemetry:
            for inputs in telemetry.steps([torch.ones(2, 4)]):
                model(inputs).sum().backward()
                optimizer.step()
    a, b, c = (read_json(RunDir(tmp_path / name).run_json)["run_key"] for name in "abc")
    assert a == c != b


def test_nothing_is_invented_for_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / "train.py"), "--lr", "0.1"])
    with opened(tmp_path / "mine" / "n1") as steps:
        list(steps())
    run = RunDir(tmp_path / "mine" / "n1")
    record, metrics = read_json(run.run_json), read_json(run.metrics)
    assert record["cluster"] is record["repeat"] is record["profile"] is None
    unknown = {"hash": None, "git_commit": None, "git_dirty": None, "git_diff": None}
    assert record["provenance"]["code"].items() >= unknown.items(), "of the telemetry, not of the loop"
    assert record["provenance"]["argv"] == ["train.py", "--lr", "0.1"]
    assert metrics["dataset"] is metrics["model_flops_per_sample"] is metrics["tokens_per_s"] is None
    assert read_state(run, code_hash="2-0123456789ab").stale is False
    [row] = load([tmp_path / "mine"]).to_dict("records")
    assert row["included"]
    for name in ("dataset", "dataset_version", "repeat", "code_hash", "git_commit"):
        assert pd.isna(row[name])


def test_the_code_of_a_loop_is_that_of_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)
    script.write_text("print(1)")
    monkeypatch.setattr("sys.argv", [str(script)])
    with opened(tmp_path / "mine" / "n1") as steps:
        list(steps())
    code = read_json(RunDir(tmp_path / "mine" / "n1").run_json)["provenance"]["code"]
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (code["hash"], code["git_commit"], code["git_dirty"]) == (None, head.stdout.strip(), True)
    assert "+print(1)" in code["git_diff"]


@pytest.mark.parametrize("announced", [30, 10])
def test_a_loop_that_makes_other_steps_than_announced_is_reported_and_compared(
    tmp_path: Path, announced: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("a", announced), ("b", 12)):
        with opened(tmp_path / "mine" / name, steps=count) as steps:
            list(steps())
    run, note = RunDir(tmp_path / "mine" / "a"), f"made 12 of {announced} announced steps"
    assert read_json(run.metrics)["status"] == "completed"
    state = read_state(run)
    assert (state.state, state.step, state.steps, state.message) == ("done", 12, announced, note)
    for verb in (["status"], ["show", "mine/a"]):
        assert submit.main([*verb, "--runs", str(tmp_path)]) == 0
        assert note in capsys.readouterr().out
    runs = load_runs([tmp_path / "mine"])
    assert [(each.included, each.note) for each in runs] == [(True, note), (True, "")]
    [curve] = scaling_curves(runs)
    assert [each.name for each in curve.points[0].runs] == ["a", "b"], (
        "one series: announced steps are no configuration"
    )
    assert [each.runs for each in make_study(runs).caveats if each.kind == "remark"] == [{str(run.path)}]


def test_a_loop_that_continues_counts_from_its_resumed_step(tmp_path: Path) -> None:
    with opened(tmp_path, steps=32, resumed_step=20) as steps:
        list(steps())
    metrics = read_json(RunDir(tmp_path).metrics)
    assert (metrics["status"], metrics["steps"], metrics["resumed_step"]) == ("completed", 32, 20)
    assert metrics["left_out"] == [[1, 21]]
    assert read_state(RunDir(tmp_path)).message is None
    lines = read_jsonl(RunDir(tmp_path).attempt(0).steps(0))
    assert [line["step"] for line in lines] == list(range(21, 33))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0: must be a whole number of at least 1"),
        ({"samples_per_step": 2.5}, "samples_per_step=2.5: must be a whole number of at least 1"),
        ({"accumulation": 4}, "samples_per_step=2 is not a multiple of accumulation=4"),
        (
            {"telemetry": {"warmup": 3}},
            "unknown key 'telemetry.warmup'; did you mean 'telemetry.warmup_steps'?",
        ),
        ({"telemetry": {"warmup_steps": -1}}, "telemetry.warmup_steps=-1: "),
        ({"telemetry": {"sinks": ["csv"]}}, "telemetry.sinks='csv' is unknown"),
        ({"telemetry": {"layer_passes": 2}}, "config: a script takes no telemetry.layer_passes; allowed: "),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused, opened(tmp_path / "run", **options):
        pass
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_a_loop_in_a_job_writes_to_the_attempt_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "mine" / "job")
    run.attempt(3).path.mkdir(parents=True)
    run.run_json.write_text('{"name": "job", "sweep": "mine", "run_key": "abc"}')
    monkeypatch.setenv("DISTTRAIN_RUN_DIR", str(run.path))
    monkeypatch.setenv("DISTTRAIN_ATTEMPT", "3")
    write_json(run.attempt(3).stop, {"cause": "deadline", "time": 1.0, "signal": "SIGUSR2"})
    with opened(tmp_path / "by-hand", steps=30) as steps:
        list(steps())
    metrics = read_json(run.metrics)
    assert (metrics["run_key"], metrics["attempt"], metrics["steps"]) == ("abc", 3, 12)
    assert (metrics["status"], metrics["stop_cause"]) == ("stopped", "deadline")
    assert len(list(read_jsonl(run.attempt(3).steps(0)))) == 12
    assert read_json(run.run_json) == {"name": "job", "sweep": "mine", "run_key": "abc"}
    assert not run.done.exists(), "the agent closes the attempt"
    assert not (tmp_path / "by-hand").exists()
