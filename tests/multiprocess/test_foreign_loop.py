"""A loop that is not ours leaves the records of any run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import submit
from analysis.read.frames import load_frames
from disttrain import LoopTelemetry
from disttrain.data import synthetic
from disttrain.models import emulated
from disttrain.models.emulated import Emulated
from disttrain.records.attempt import RankError
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES, Step
from disttrain.runtime.process_group import World
from tests.support.fake_runs import table_rows
from tests.support.ranks import RankFailed
from tests.support.tutorial import BATCH, EPOCHS, SAMPLES, train

pytestmark = pytest.mark.multiprocess

LATE_S = 0.02


def run(world: World, folder: Path, options: dict) -> None:
    train(world.rank, world.size, str(folder), **options)


def test_a_tutorial_loop_is_measured_like_any_run(two_ranks, tmp_path):
    folder = tmp_path / "mine" / "n2"
    two_ranks.call(run, folder, {"late": 1, "late_s": LATE_S})
    steps = EPOCHS * SAMPLES // BATCH // 2
    metrics = Metrics.model_validate(read_json(folder / "metrics.json"))
    assert (metrics.status, metrics.steps, metrics.warmup_steps) == ("completed", steps, 4)
    assert (metrics.sampled_steps, metrics.measured_steps) == (1, steps - 5)
    assert metrics.samples_per_s == pytest.approx(2 * BATCH * metrics.measured_steps / metrics.measured_s)
    assert sum(metrics.composition.values()) == pytest.approx(metrics.measured_s / metrics.measured_steps)
    assert metrics.loss_history[-1].loss < metrics.loss_history[0].loss
    attempt = RunDir(folder).attempt(0)
    prompt, late = (steps_of(folder, rank) for rank in range(2))
    assert [step.step for step in prompt] == list(range(1, steps + 1))
    for theirs, mine in zip(prompt, late, strict=True):
        assert sum(getattr(theirs, name) for name in PHASES) == pytest.approx(theirs.step_s, abs=1e-6)
        assert mine.compute_s >= LATE_S
        if (theirs.step - 1) % 10:  # else the ranks have compared notes, to which either may come late
            assert min(theirs.comm_wait_s, mine.comm_wait_s) == 0
        assert mine.comm_transfer_s == theirs.comm_transfer_s
    assert sum(step.comm_wait_s for step in prompt) > 0.5 * steps * LATE_S
    assert sum(step.comm_wait_s for step in late) < 0.5 * steps * LATE_S
    [sample] = [CommSample.model_validate(line) for line in read_jsonl(attempt.comm(0))]
    assert sum(each.bytes for each in sample.collectives) == 4 * metrics.parameters


@pytest.mark.parametrize("returns", ["tuple", "dict", "dataclass", "model output"])
def test_waiting_is_seen_whatever_the_model_returns(two_ranks, tmp_path, returns):
    two_ranks.call(run, tmp_path / "n2", {"late": 1, "late_s": LATE_S, "returns": returns})
    metrics = Metrics.model_validate(read_json(tmp_path / "n2" / "metrics.json"))
    assert (metrics.comm_method, metrics.comm_split) == ("ddp_backward_tail", "min_over_ranks")
    prompt, late = (steps_of(tmp_path / "n2", rank) for rank in range(2))
    assert sum(step.comm_wait_s for step in prompt) > 0.5 * len(prompt) * LATE_S
    assert sum(step.comm_wait_s for step in late) < 0.5 * len(late) * LATE_S


def test_waiting_for_a_broadcast_of_buffers_is_communication(two_ranks, tmp_path):
    two_ranks.call(run, tmp_path / "n2", {"late": 0, "late_s": LATE_S, "buffers": True})
    late, prompt = (steps_of(tmp_path / "n2", rank) for rank in range(2))
    assert sum(step.comm_wait_s for step in prompt) > 0.5 * len(prompt) * LATE_S
    assert sum(step.compute_s for step in prompt) < 0.5 * len(prompt) * LATE_S
    assert sum(step.comm_wait_s for step in late) < 0.5 * len(late) * LATE_S


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"returns": "opaque"},
            "no tensor that requires a gradient was found in the model's output (Opaque)",
        ),
        ({"nested": True}, "the last gradients come from a reentrant checkpoint"),
    ],
    ids=["opaque output", "nested backward"],
)
def test_communication_that_cannot_be_seen_is_null_with_the_reason(two_ranks, tmp_path, options, reason):
    two_ranks.call(run, tmp_path / "n2", options)
    metrics = Metrics.model_validate(read_json(tmp_path / "n2" / "metrics.json"))
    assert metrics.status == "completed"
    for name in ("comm_method", "comm_split", "communication_overhead_percent"):
        assert getattr(metrics, name) is None
        assert metrics.null_reasons[name].startswith(reason)
    assert metrics.composition["comm_wait_s"] is metrics.composition["comm_transfer_s"] is None
    assert metrics.communication_computation_history == []
    for rank in range(2):
        for step in steps_of(tmp_path / "n2", rank):
            assert step.comm_wait_s is step.comm_transfer_s is step.comm_exposed_s is None
            known = sum(getattr(step, name) or 0.0 for name in PHASES)
            assert known == pytest.approx(step.step_s, abs=1e-6)


def steps_of(folder: Path, rank: int) -> list[Step]:
    return [Step.model_validate(line) for line in read_jsonl(RunDir(folder).attempt(0).steps(rank))]


@pytest.mark.slow
def test_the_program_of_the_page_runs_in_a_folder_of_its_own(tmp_path):
    """It is copied from docs/your-code.md, and started as the page says."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "your-code.md").read_text()
    (tmp_path / "train.py").write_text(re.search(r"```python\n([^`]*LoopTelemetry.*?)```", page, re.S)[1])
    for ranks in (1, 2):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "train.py"], cwd=tmp_path, env=env, check=True, timeout=300)
    assert submit.main(["report", "mine", "--runs", str(tmp_path / "runs")]) == 0
    report = read_json(tmp_path / "runs" / "mine" / "report" / "report.json")
    assert [(run["run"], run["ranks_per_node"]) for run in table_rows(report, "runs")] == [
        ("n1", 1),
        ("n2", 2),
    ]
    assert [row["steps"] for row in table_rows(report, "training_quality")] == [
        4 * 1024 // 32,
        4 * 1024 // 32 // 2,
    ]
    assert not report["excluded_runs"]
    [curve] = report["curves"]
    assert [point["size"] for point in curve["points"]] == [1, 2]
    assert (
        "train.py" in {row["property"]: row["value"] for row in table_rows(report, "provenance")}["Command"]
    )


def test_its_runs_are_reported_with_all_others(tmp_path):
    train(0, 1, str(tmp_path / "mine" / "n1"))
    [row] = load_frames([tmp_path / "mine"]).runs.to_dict("records")
    assert (row["run"], row["included"], row["steps"]) == ("n1", True, EPOCHS * SAMPLES // BATCH)
    assert row["model"] == "tests.support.tutorial:Classifier"


def test_a_loop_over_an_emulated_model_is_marked_and_each_step_draws_its_jitter(tmp_path, monkeypatch):
    began: list[int] = []
    on_step = Emulated.on_step
    monkeypatch.setattr(Emulated, "on_step", lambda model, step: (began.append(step), on_step(model, step)))
    source = synthetic.build(shape=(8,), classes=2, samples=8)
    model = emulated.build(source, layers=1, layer_mb=0.001, forward_s=0.0, backward_s=0.0, optimizer_s=0.0)
    optimizer = model.make_optimizer()
    telemetry = {"warmup_steps": 1, "profiled_steps": 0, "sinks": []}
    folder = tmp_path / "mine" / "n1"
    with LoopTelemetry(
        folder,
        torch.nn.Sequential(model),
        optimizer,
        steps=4,
        samples_per_step=2,
        accumulation=2,
        telemetry=telemetry,
    ) as look:
        for _ in range(2):
            for number, inputs in enumerate(look.steps([torch.zeros(1, 8)] * 4)):
                model(inputs).sum().backward()
                if number % 2:
                    optimizer.step()
    assert began == [1, 2, 3, 4]
    metrics = Metrics.model_validate(read_json(folder / "metrics.json"))
    assert (metrics.emulated, metrics.model) == (True, "emulated")
    assert metrics.emulation_late_s is not None
    assert read_json(folder / "progress.json")["emulated"] is True
    [row] = load_frames([tmp_path / "mine"]).runs.to_dict("records")
    assert row["emulated"]


def test_a_loop_that_fails_keeps_its_records_and_says_why(two_ranks, tmp_path):
    with pytest.raises(RankFailed, match="the loop went wrong"):
        two_ranks.call(run, tmp_path / "n2", {"fail_at": 7})
    metrics = Metrics.model_validate(read_json(tmp_path / "n2" / "metrics.json"))
    assert (metrics.status, metrics.steps) == ("failed", 6)
    error = RankError.model_validate(read_json(RunDir(tmp_path / "n2").attempt(0).error(1)))
    assert error.message == "the loop went wrong"
    assert read_json(tmp_path / "n2" / "FAILED")["cause"] == "crashed"
