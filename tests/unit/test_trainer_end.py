"""The end of a `Trainer`, by an error or not, and a start in a run directory that has records."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

from disttrain import LoopTelemetry, Trainer
from disttrain.errors import ConfigError, NonFinite
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import ATTEMPT, RUN_DIR, RunDir
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput
from jobs.status.run_state import read_state
from tests.support.stopping import alone, config
from tests.unit.test_trainer import adamw, network, not_a_number, samples, train, trainer


def test_a_save_below_a_checkpoint_of_an_earlier_attempt_is_refused(tmp_path):
    keep_one = {"checkpoint": {"keep": 1}}
    with trainer(tmp_path, network(), config=keep_one) as own:
        train(own, 4)
        own.save()
    own = trainer(tmp_path, network(), config=keep_one)
    message = r"checkpoint of step 4 of an earlier attempt; call load\(\) before the first step"
    with pytest.raises(RuntimeError, match=message), own:  # noqa: PT012
        train(own, 2)
        own.save()
    with trainer(tmp_path, network(), config=keep_one) as own:
        assert own.load() == 4
        train(own, 5)
        assert own.save().is_dir()


def test_a_start_in_the_directory_of_a_finished_run_replaces_its_records(tmp_path):
    with trainer(tmp_path, network(), steps=2) as own:
        train(own, 2)
    assert (tmp_path / "DONE").exists()
    with trainer(tmp_path, network(), steps=4) as own:
        assert not (tmp_path / "DONE").exists()
        train(own, 1)
        assert read_json(tmp_path / "run.json")["config"]["train"]["steps"] == 4
    assert read_json(tmp_path / "metrics.json")["run_key"] == read_json(tmp_path / "run.json")["run_key"]


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "constant"},
        {"schedule": "linear", "warmup_steps": 1, "final_lr_ratio": 0.1},
        {"schedule": "cosine", "warmup_steps": 1, "final_lr_ratio": 0.1},
        {"schedule": "cosine_restarts", "restart_every": 2, "restart_factor": 2},
        {"schedule": "step", "step_every": 2, "step_factor": 0.5},
    ],
    ids=lambda options: options["schedule"],
)
def test_each_schedule_is_accepted_with_its_options(tmp_path, options):
    with trainer(tmp_path, network(), steps=1, config={"optim": options}) as own:
        train(own, 1)


def test_a_last_step_that_is_not_finite_ends_the_training(tmp_path):
    config = {"precision": {"on_non_finite": "stop"}, "train": {"log_every": 5}}
    own = trainer(tmp_path, network(), steps=3, loss=not_a_number, config=config)
    with pytest.raises(NonFinite, match="step 3"), own:
        train(own, 3)
    assert (tmp_path / "FAILED").exists()


def test_close_during_an_error_records_the_error(tmp_path):
    with pytest.raises(ValueError, match="too warm"), trainer(tmp_path, network()) as own:  # noqa: PT012
        try:
            train(own, 1)
            raise ValueError("too warm")
        finally:
            own.close()
    own.close()
    assert "ValueError: too warm" in read_json(tmp_path / "FAILED")["message"]
    assert not (tmp_path / "DONE").exists()
    with pytest.raises(RuntimeError, match=r"^step\(\) after close\(\)$"):
        own.step(iter([]))


def test_a_close_after_an_error_leaves_its_record(tmp_path):
    own = trainer(tmp_path, network())
    with pytest.raises(ValueError, match="too warm"), own:
        raise ValueError("too warm")
    own.close()
    assert (tmp_path / "FAILED").exists()
    assert not (tmp_path / "DONE").exists()


def test_an_exit_without_an_error_completes_the_records(tmp_path):
    with pytest.raises(SystemExit), trainer(tmp_path / "zero", network(), steps=1) as own:  # noqa: PT012
        train(own, 1)
        sys.exit(0)
    assert (tmp_path / "zero" / "DONE").exists()
    with pytest.raises(SystemExit), trainer(tmp_path / "one", network()):
        sys.exit(1)
    assert (tmp_path / "one" / "FAILED").exists()


def test_an_error_of_the_constructor_is_recorded_in_a_job(tmp_path, monkeypatch):
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    monkeypatch.setenv(ATTEMPT, "0")
    with pytest.raises(ConfigError):
        trainer(tmp_path, network(), optimizer=adamw(torch.nn.Linear(2, 2)))
    assert read_json(attempt.error(0))["cause"] == "refused"


def no_memory(*_, **__):
    raise MemoryError("no memory for the telemetry")


def test_an_error_of_the_constructor_by_hand_ends_the_run_with_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("disttrain.engine.trainer.RandomState", no_memory)
    with pytest.raises(MemoryError):
        trainer(tmp_path, network())
    state = read_state(RunDir(tmp_path))
    assert (state.state, state.cause) == ("failed", "out_of_memory")
    assert state.message == "rank 0: MemoryError: no memory for the telemetry"
    assert read_json(RunDir(tmp_path).attempt(0).error(0))["kind"] == "MemoryError"


def test_an_error_at_the_start_of_a_loop_ends_the_run_with_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("disttrain.engine.own_loop.Recorder", no_memory)
    model = network()
    with pytest.raises(MemoryError):
        LoopTelemetry(tmp_path, model, adamw(model), steps=2, samples_per_step=4)
    assert read_state(RunDir(tmp_path)).cause == "out_of_memory"


def test_heartbeats_do_not_keep_the_model(tmp_path, monkeypatch):
    """Threads of its collectives would outlive their process group."""
    kept = []
    monkeypatch.setattr(heartbeat, "communicates_while", kept.append)
    own = Trainer.of_config(config(), RunOutput.of_job(tmp_path, 0), alone())
    model = weakref.ref(own.model)
    own.close()
    del own
    gc.collect()
    assert (model(), kept[0]()) == (None, False)


def test_final_metrics_stay_final_if_the_run_ends_with_an_error_after_them(tmp_path, monkeypatch):
    own = trainer(tmp_path, network(), steps=1)
    monkeypatch.setattr(own.recorder, "_close", no_memory)
    with pytest.raises(MemoryError), own:
        train(own, 1)
    assert read_json(tmp_path / "metrics.json")["status"] == "completed"


def test_dp_on_the_cpu_has_its_reason(tmp_path):
    with trainer(tmp_path, network(), steps=1, config={"parallel": {"strategy": "dp"}}) as own:
        train(own, 1)
    metrics = own.metrics()
    assert (metrics.strategy, "no GPUs to divide" in metrics.strategy_reason) == ("dp", True)


def test_parameters_of_single_ranks_are_not_validated(tmp_path, monkeypatch):
    with trainer(tmp_path, network()) as own:
        train(own, 1)
        monkeypatch.setattr(own.stepper.strategy, "replicas_agree", lambda step: step == 2)
        with pytest.raises(RuntimeError, match=r"^validate\(\) after step 1: the ranks hold different"):
            own.validate(samples())
        with pytest.raises(RuntimeError, match=r"^save\(\) after step 1: the ranks hold different"):
            own.save()
        train(own, 2)
        assert own.validate(samples()).step == 2


def test_a_validation_needs_samples(tmp_path):
    with (
        trainer(tmp_path, network()) as own,
        pytest.raises(ConfigError, match=r"^validate\(\) needs at least 1"),
    ):
        own.validate([])
