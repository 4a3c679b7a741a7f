"""Scripts of one's own with real processes on the local cluster: environment, stop, failure, progress."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import submit as submit_py
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.schedulers.local.scheduler import LocalScheduler
from tests.support.jobs import ended_afterwards, settled, wait_until

pytestmark = pytest.mark.multiprocess

SCRIPT = """\
import json, os, pathlib, signal, sys, time
import helper

signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
folder = pathlib.Path(os.environ["DISTTRAIN_CHECKPOINT_DIR"])
rank, attempt = os.environ["RANK"], os.environ["DISTTRAIN_ATTEMPT"]
names = ("WORLD_SIZE", "DISTTRAIN_RUN_DIR", "DISTTRAIN_DEADLINE", "PYTHONSAFEPATH", "TORCHELASTIC_ERROR_FILE")
of_process = {"cwd": os.getcwd(), "argv": sys.argv[1:]}
print(json.dumps({name: os.environ.get(name) for name in ("OUT", *names)} | of_process))
print(helper.__file__, flush=True)
if "fail" in sys.argv and rank == "1":
    raise ValueError("boom")
if (folder / f"started-{rank}").exists():
    sys.exit(0)
(folder / f"started-{rank}").touch()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("")
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path


def start(*words: str, variables: Sequence[str] = ()) -> int:
    options = ["--cluster", "local", "--no-report", "--gpus-per-node", "2", "--name", "s"]
    return submit_py.main(
        ["run", *options, "--set", "job.stop_signal=SIGUSR1", *variables, "--", "own.py", *words]
    )


def only_run(folder: Path) -> RunDir:
    (path,) = (folder / "runs" / "s").glob("*/run.json")
    return RunDir(path.parent)


def test_a_script_is_stopped_by_its_signal_and_started_again(folder: Path) -> None:
    words = ("a b", "{{x}}", "{run}:{attempt}", "--out={run_dir}/o")
    variables = ("job.env.OUT={checkpoint_dir}/{resources.nodes}",)
    assert start(*words, variables=variables) == 0
    run = only_run(folder)
    wait_until(lambda: len(list(run.checkpoints.glob("started-*"))) == 2)
    assert submit_py.main(["cancel", "--graceful", f"s/{run.name}"]) == 0
    (stopped,) = settled(folder / "runs").values()
    assert (stopped.state, stopped.cause) == ("failed", "stopped")
    assert stopped.message == "exited with code 0 after its stop signal"
    first = read_json(run.attempt(0).record)
    assert first["checkpoint_before"] is None
    assert first["checkpoint_after"] > 0
    values, helper = run.attempt(0).rank_log(1).read_text().splitlines()
    seen = json.loads(values)
    assert seen["WORLD_SIZE"] == "2"
    assert seen["DISTTRAIN_RUN_DIR"] == str(run.path)
    assert seen["PYTHONSAFEPATH"] is None
    assert (seen["cwd"], seen["OUT"]) == (str(folder), f"{run.checkpoints}/1")
    assert seen["argv"] == ["a b", "{x}", f"{run.name}:0", f"--out={run.path}/o"]
    torchruns_own = next(
        path for path in Path(seen["TORCHELASTIC_ERROR_FILE"]).parents if path.name == "torchrun"
    )
    assert not torchruns_own.parent.exists(), "the agent removes what torchrun writes on the node"
    copy = read_json(run.run_json)["provenance"]["command"]["path"]
    assert helper == str(folder / "runs" / copy / "helper.py")

    assert start(*words, variables=variables) == 0
    (done,) = settled(folder / "runs").values()
    values, _ = run.attempt(1).rank_log(0).read_text().splitlines()
    assert json.loads(values)["argv"][2] == f"{run.name}:1"
    assert (done.state, done.attempts, done.stale) == ("done", 2, False)


RESUMES = """\
import os, pathlib, sys

print(sys.argv[1:], os.environ["WANDB_NAME"], os.environ["WANDB_RUN_GROUP"], flush=True)
if len(sys.argv) == 1:
    for name in ("model-2.pt", "model-1.pt", "saved", ".half"):
        pathlib.Path(name).touch()
    os.utime("model-2.pt", (9e9, 9e9))
    os.utime("saved", (9.1e9, 9.1e9))
    sys.exit(1)
"""


def test_a_start_that_finds_a_checkpoint_has_the_arguments_to_resume(folder: Path) -> None:
    (folder / "own.py").write_text(RESUMES)
    options = ["job.workdir=checkpoints", "job.resume_args=--from {checkpoint} --as '{run} {{}}'"]
    options += ["job.env.WANDB_NAME=mine"]
    assert start(variables=options) == 0
    settled(folder / "runs")
    assert start(variables=options) == 0
    (done,) = settled(folder / "runs").values()
    run = only_run(folder)
    first, second = (run.attempt(number).rank_log(0).read_text().strip() for number in range(2))
    arguments = ["--from", str(run.checkpoints / "model-2.pt"), "--as", f"{run.name} {{}}"]
    assert (first, second) == ("[] mine s", f"{arguments} mine s")
    assert done.state == "done"


@pytest.mark.parametrize("workdir", ["run", "code"])
def test_the_working_directory_is_chosen(folder: Path, workdir: str) -> None:
    (folder / "own.py").write_text("import os; print(os.getcwd())")
    assert start("data", variables=[f"job.workdir={workdir}"]) == 0
    (done,) = settled(folder / "runs").values()
    run = only_run(folder)
    copy = folder / "runs" / read_json(run.run_json)["provenance"]["command"]["path"]
    assert done.state == "done"
    assert run.attempt(0).rank_log(0).read_text().splitlines() == [
        str(run.path if workdir == "run" else copy)
    ]


def test_a_failure_names_the_rank_and_the_last_line_of_its_log(folder: Path) -> None:
    assert start("fail") == 0
    (failed,) = settled(folder / "runs").values()
    assert (failed.state, failed.cause) == ("failed", "crashed")
    assert failed.message == "rank 1: ValueError: boom"


LOOP = """\
import torch
from disttrain import LoopTelemetry

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(8, 4) for _ in range(20)]
with LoopTelemetry(None, model, optimizer, steps=20, samples_per_step=8, telemetry={"warmup_steps": 2}) as t:
    for batch in t.steps(batches):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        t.record_loss(loss)
"""


def test_a_script_with_telemetry_is_in_the_report(folder: Path) -> None:
    (folder / "own.py").write_text(LOOP)
    options = ["--cluster", "local", "--no-report", "--name", "s"]
    assert submit_py.main(["run", *options, "--", "own.py"]) == 0
    (done,) = settled(folder / "runs").values()
    assert (done.state, done.message, done.step, done.steps) == ("done", None, 20, 20)
    metrics = read_json(done.run.metrics)
    assert (metrics["sweep"], metrics["attempt"], metrics["measured_steps"]) == ("s", 0, 18)
    assert not done.run.attempt(0).hardware(0).exists(), "the loop samples by itself"
    assert submit_py.main(["report", "s"]) == 0
    report = read_json(folder / "runs/s/report/report.json")
    assert report["excluded_runs"] == []
    (curve,) = report["curves"]
    assert curve["points"][0]["runs"] == [done.run.name]


HANGING = {
    "trainer": """\
import os, time, torch
from disttrain import Trainer

def loss(model, batch):
    if trainer.steps_done == 3 and os.environ["RANK"] == "1":
        time.sleep(600)
    return model(batch).square().mean()

model = torch.nn.Linear(4, 2)
quiet = {"telemetry": {"sinks": (), "profiled_steps": 0, "gpu_every_s": 0}, "resources": {"device": "cpu"}}
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
with Trainer(model, sgd, loss, steps=9, batch_size=8, config=quiet) as trainer:
    batches = iter([torch.randn(8, 4) for _ in range(9)])
    while trainer.steps_done < trainer.steps:
        trainer.step(batches)
""",
    "loop": """\
import os, time, torch
from disttrain import LoopTelemetry

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
quiet = {"sinks": (), "profiled_steps": 0, "gpu_every_s": 0}
with LoopTelemetry(None, model, sgd, steps=9, samples_per_step=8, telemetry=quiet) as telemetry:
    for number, batch in enumerate(telemetry.steps([torch.randn(8, 4) for _ in range(9)])):
        if number == 3 and os.environ["RANK"] == "1":
            time.sleep(600)
        model(batch).square().mean().backward()
        sgd.step()
""",
}


@pytest.mark.parametrize("script", HANGING)
def test_a_script_whose_steps_are_known_is_watched_for_hangs(folder: Path, script: str) -> None:
    (folder / "own.py").write_text(HANGING[script])
    limit = ["--set", "job.script_step_timeout_s=5", "--gpus-per-node", "2", "--set", "resources.device=cpu"]
    options = ["--cluster", "local", "--no-report", "--name", "s", *limit]
    assert submit_py.main(["run", *options, "--", "own.py"]) == 0
    (ended,) = settled(folder / "runs").values()
    assert (ended.state, ended.cause, ended.retryable) == ("failed", "hung", True)
    assert str(ended.message).startswith("rank 1 was in step 4 for ")
    assert "own.py:" in str(ended.message)
