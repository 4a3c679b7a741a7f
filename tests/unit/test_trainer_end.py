"""The end of a training, by an error or not: its records, and what stays in memory."""

import gc
import sys
import weakref

import pytest
import torch

from disttrain import LoopTelemetry, Trainer
from disttrain.engine.step import collections_by_hand
from disttrain.engine.train import batches_of, begin, run, train
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import ATTEMPT, RUN_DIR, RunDir
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput, record_failure
from disttrain.telemetry.recorder import Recorder
from jobs.status.run_state import read_state
from tests.support.stopping import alone, config
from tests.unit import test_trainer
from tests.unit.test_trainer import adamw, network, trainer


def too_warm(own):
    raise ValueError("too warm")


def close_within(own):
    try:
        too_warm(own)
    finally:
        own.close()


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        (lambda own: None, "finished"),
        (lambda own: sys.exit(0), "finished"),
        (lambda own: sys.exit(1), "crashed"),
        (too_warm, "crashed"),
        (close_within, "crashed"),
    ],
)
def test_the_end_of_the_block_is_recorded_once(tmp_path, act, cause):
    try:
        with trainer(tmp_path, steps=1) as own:
            test_trainer.train(own, 1)
            act(own)
    except (SystemExit, ValueError) as error:
        assert error.args[0] in (0, 1, "too warm")  # noqa: PT017 -- only some raise
    own.close()
    path, other = ("DONE", "FAILED") if cause == "finished" else ("FAILED", "DONE")
    assert read_json(tmp_path / path)["cause"] == cause
    assert not (tmp_path / other).exists()
    if cause == "crashed":
        assert read_json(tmp_path / "metrics.json")["status"] == "failed"


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """That of a job."""
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    monkeypatch.setenv(ATTEMPT, "0")
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    return attempt


@pytest.mark.parametrize(("steps", "status"), [(2, "stopped"), (1, "completed")])
def test_a_script_that_stops_early_at_a_request_of_its_job_is_not_done(attempt, steps, status):
    write_json(attempt.stop, {"cause": "preempted"})
    with trainer(None, steps=steps) as own:
        test_trainer.train(own, 1)
        own.save(wait=False)
    assert (own.metrics().status, own.metrics().checkpoint_step) == (status, 1)


def test_an_error_of_the_constructor_is_recorded_in_a_job(tmp_path, attempt):
    with pytest.raises(ConfigError):
        trainer(tmp_path, optimizer=adamw(torch.nn.Linear(2, 2)))
    assert read_json(attempt.error(0))["cause"] == "refused"


def loop(run_dir):
    model = network()
    LoopTelemetry(run_dir, model, adamw(model), steps=2, samples_per_step=4)


@pytest.mark.parametrize("start", [trainer, loop])
def test_an_error_of_the_constructor_by_hand_ends_the_run_with_its_cause(tmp_path, start):
    run = RunDir(tmp_path)
    run.attempt(1).steps(0).mkdir(parents=True)  # where the new attempt would write
    with pytest.raises(IsADirectoryError):
        start(tmp_path)
    state = read_state(run)
    assert (state.state, state.cause) == ("failed", "crashed")
    assert read_json(run.attempt(1).error(0))["kind"] == "IsADirectoryError"


def test_causes_of_errors(tmp_path):
    """Only the first record of a rank has the time of the failure."""
    attempt = RunDir(tmp_path).attempt(0)
    with pytest.raises(RuntimeError) as no_memory:
        torch.empty(2**55)
    for error, cause in (
        (no_memory.value, "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (RuntimeError("shapes differ"), "crashed"),
        (KeyboardInterrupt(), "cancelled"),
    ):
        assert record_failure(error, 3, attempt).cause == cause
    assert read_json(attempt.error(3))["kind"] == "RuntimeError"
    assert read_json(attempt.error(3))["cause"] == "out_of_memory"


def test_the_cause_is_in_its_file_before_the_telemetry_is_aborted(tmp_path, monkeypatch):
    """The abort writes files and may block, so the agent may kill this rank before its end."""
    causes = []
    monkeypatch.setattr(
        Recorder, "abort", lambda recorder: causes.append(read_json(recorder.attempt.error(0))["message"])
    )
    made = config(model={"kind": "tests.support.small_models:Failing", "message": "too warm"})
    output = RunOutput.of_job(tmp_path, 0)
    output.attempt.path.mkdir(parents=True)
    with pytest.raises(RuntimeError, match="too warm"):
        train(made, output, alone())
    assert causes == ["too warm"]


def test_heartbeats_do_not_keep_the_model(tmp_path, monkeypatch):
    """Threads of its collectives would outlive their process group."""
    conditions = []
    monkeypatch.setattr(heartbeat, "communicates_while", conditions.append)
    own = Trainer.of_config(config(), RunOutput.of_job(tmp_path, 0), alone())
    model = weakref.ref(own.model)
    own.close()
    del own
    gc.collect()
    assert (model(), conditions[0]()) == (None, False)


class FailingSink:
    def __init__(self, attempt):
        pass

    def scalars(self, step, values):
        pass

    def close(self):
        raise MemoryError("no memory for the last scalars")


def test_final_metrics_stay_final_if_the_run_ends_with_an_error_after_them(tmp_path):
    telemetry = {**test_trainer.QUIET["telemetry"], "sinks": [f"{__name__}:FailingSink"]}
    with pytest.raises(MemoryError), trainer(tmp_path, steps=1, config={"telemetry": telemetry}) as own:
        test_trainer.train(own, 1)
    assert read_json(tmp_path / "metrics.json")["status"] == "completed"
    assert read_json(tmp_path / "FAILED")["cause"] == "out_of_memory"


def test_garbage_is_collected_at_the_configured_steps_alone(tmp_path):
    made = config(train={"gc_every": 5}, telemetry={"profiled_steps": 0, "gpu_every_s": 0})
    own = begin(made, RunOutput.of_job(tmp_path, 0), alone())
    collections = []

    def collected(phase, info):
        if phase == "start" and own.steps_done:
            collections.append((own.steps_done, info["generation"], gc.get_freeze_count() > 1000))

    before = gc.get_threshold()
    gc.set_threshold(50, 5, 5)  # each step would have some
    gc.callbacks.append(collected)
    try:
        with own:
            run(own, batches_of(own))
            assert not gc.isenabled()
            gc.callbacks.remove(collected)
    finally:
        gc.set_threshold(*before)
    assert collections == [(5, 2, True), (10, 2, True)]
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_the_setting_of_python_returns_after_a_failure():
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(OSError, match="full"), collections_by_hand():
                raise OSError("full")
            assert (gc.isenabled(), gc.get_freeze_count()) == (enabled, 0)
        finally:
            gc.enable()
