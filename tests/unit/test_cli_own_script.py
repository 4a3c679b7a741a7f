"""`run -- SCRIPT` and `command:` in a sweep file, by the verbs of submit.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import RunRecord, SweepRecord
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy, run_code
from jobs.status.run_state import read_runs
from tests.support.fake_runs import table_rows
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, ask, ask_json, end, states

pytestmark = pytest.mark.usefixtures("cluster")

SWEEP = """\
command: train.py --lr {lr}
resources: {device: cpu}
sweep:
  axes: {lr: [0.1, 0.2]}
"""


@pytest.fixture(autouse=True)
def script(cluster: FakeScheduler) -> Path:
    code_copy.hash_of_source.cache_clear()
    Path("own.yaml").write_text(SWEEP)
    Path("train.py").write_text("print(1)\n")
    return Path("train.py")


def test_a_run_of_a_script_is_submitted_once(
    capsys: pytest.CaptureFixture[str], cluster: FakeScheduler
) -> None:
    command = "run --nodes 2 -- train.py --lr 3e-4"
    for _ in range(2):
        ask(capsys, command)
    assert (states(), len(cluster.submitted)) == ({"n2": "queued"}, 1)
    record = RunRecord.model_validate(read_json(RUNS / "train/n2/run.json"))
    assert record.config["command"] == ["train.py", "--lr", "3e-4"]
    assert record.axes == {"resources.nodes": 2, "command": "train.py --lr 3e-4"}
    about = record.provenance.command
    assert about is not None
    assert (about.folder, about.source) == (str(Path.cwd()), str(Path.cwd()))
    assert (RUNS / str(about.path) / "train.py").read_text() == "print(1)\n"
    SweepRecord.model_validate(read_json(RUNS / "train/sweep.json"))
    ask(capsys, "run --nodes 2 -- train.py --lr 1e-4")
    assert len(states()) == 2


def test_an_edited_script_makes_its_runs_outdated(capsys: pytest.CaptureFixture[str], script: Path) -> None:
    ask(capsys, "sweep own.yaml")
    assert sorted(states()) == ["n1-lr0.1", "n1-lr0.2"]
    for name, cause in (("n1-lr0.1", "finished"), ("n1-lr0.2", "crashed")):
        end(RunDir(RUNS / "own" / name), cause)
    kept = ask_json(capsys, "sweep own.yaml")
    assert [run["action"] for run in kept["actions"]] == ["up_to_date", "retry"]
    assert [state.stale for state in read_runs(RUNS, "own", code_hash="other")] == [False, False]
    script.write_text("print(2)\n")
    code_copy.hash_of_source.cache_clear()
    done, _ = read_runs(RUNS, "own", code_hash="other")
    assert done.stale
    again = ask_json(capsys, "sweep own.yaml")["actions"]
    assert [run["action"] for run in again] == ["outdated", "in_progress"]
    assert "done with other code (c-" in again[0]["reason"]


def test_resume_copies_the_script_of_its_folder_again(
    capsys: pytest.CaptureFixture[str], script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask(capsys, "run -- train.py")
    (state,) = read_runs(RUNS)
    end(state.run, "crashed")
    script.write_text("print(2)\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ask(capsys, "resume --runs ../runs")
    about = read_json(tmp_path / state.run.run_json)["provenance"]["command"]
    assert about["folder"] == str(tmp_path)
    assert (tmp_path / RUNS / about["path"] / "train.py").read_text() == "print(2)\n"


def test_a_dry_run_shows_the_command_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(capsys, "sweep own.yaml --dry-run --cluster local")
    assert f"DISTTRAIN_RUN_DIR={Path.cwd()}/runs/own/RUN  " in text, "the same for all runs"
    copy = code_copy.CommandReader(RUNS).read(["train.py"], Path.cwd())["path"]
    planned = ask_json(capsys, "sweep own.yaml --dry-run --cluster local")["plans"]
    assert [plan["commands"][0][-3:] for plan in planned] == [
        [f"{RUNS.absolute()}/{copy}/train.py", "--lr", lr] for lr in ("0.1", "0.2")
    ]
    assert {(plan["batch"], plan["strategy"]) for plan in planned} == {(None, None)}
    (batch,) = ask_json(capsys, "sweep own.yaml --dry-run --cluster slurm")["batches"]
    assert "#SBATCH --array=0-1" in batch["script"]
    options = "--json --set job.env.OUT={run_dir}/o --dry-run --cluster local"
    (plan,) = json.loads(ask(capsys, f"run {options} -- train.py {{run}}:{{attempt}}"))["plans"]
    assert plan["commands"][0][-1] == "n1:0"
    assert plan["env"]["OUT"]["value"] == f"{RUNS.absolute()}/train/n1/o"
    assert not RUNS.exists()


@pytest.mark.parametrize(
    ("command", "shares"),
    [
        ("sweep own.yaml", True),
        ("sweep own.yaml --set lr=0.1", False),
        ("sweep own.yaml --set job.workdir=code", True),
        ("sweep own.yaml --set job.workdir=run", False),
        ("sweep own.yaml --set job.env.OUT={run_dir}/o", False),
        ("sweep --set lr=1,2 -- train.py {lr} --out out/{run}", False),
        ("sweep --set lr=1,2 -- train.py {lr} {attempt}", True),
        ("sweep --set lr=1,2 -- knows.py {lr}", False),
    ],
)
def test_runs_that_share_their_files_are_warned_of(
    command: str, shares: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("knows.py").write_text("import os\nos.environ['DISTTRAIN_CHECKPOINT_DIR']\n")
    verb, options = command.split(" ", 1)
    assert submit.main([verb, "--dry-run", *options.split()]) == 0
    assert ("share a working directory" in capsys.readouterr().out) is shares


def test_figures_that_a_script_reports(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run -- train.py")
    (state,) = read_runs(RUNS)
    write_json(state.run.metrics, {"samples_per_s": 12.5, "loss": 0.5, "f1": 0.75, "note": "x", "ok": True})
    end(state.run, "finished")
    (state,) = read_runs(RUNS)
    assert (state.state, state.samples_per_s, state.loss) == ("done", 12.5, 0.5)
    assert state.updated == pytest.approx(os.stat(state.run.metrics).st_mtime)
    ask(capsys, "report train")
    report = read_json(RUNS / "train/report/report.json")
    assert report["excluded_runs"][0]["reason"] == "a script without telemetry"
    assert "goodput" not in {each["id"] for each in report["sections"]}  # its time has no classes
    (section,) = [each for each in report["sections"] if each["id"] == "scripts"]
    columns = {column["name"] for column in section["tables"][0]["columns"]}
    assert {name for name in columns if name.startswith("reported.")} == {
        "reported.samples_per_s", "reported.loss", "reported.f1",
    }  # fmt: skip
    provenance = {row["property"]: row["value"] for row in table_rows(report, "provenance")}
    assert provenance["Code (hash)"] == state.code_hash


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run -- trian.py", "no file 'trian.py'"),
        ("run", "run needs a config file, or a script of your own after `--`"),
        (
            "run -- 1$.py",
            "script: '1$' cannot name a sweep: letters, digits, '_', '.' and '-', the first of "
            "them a letter, digit or '_'; give a --name",
        ),
        ("run --on-end curl:https://ntfy.example/secret -- train.py", "job.on_end holds a URL"),
        ("run -- -m", "command: -m needs a module"),
        ("run -- -c print(1)", "'-c' is neither a script (train.py) nor -m and a module"),
        ("run -- python train.py", "leave out srun, python and torchrun"),
        ("run -- srun torchrun train.py", "leave out srun, python and torchrun"),
        ("run --set optim.lr=1 -- train.py", "optim.lr has no effect on a command"),
        ("run -- train.py {run_dri}", "did you mean 'run_dir'?"),
        ("run --set job.workdir=code -- -m torch.utils.collect_env", "job.workdir: code needs a copy"),
        (
            "run --set job.resume_args=--init_from=resume -- train.py",
            "job.resume_args=--init_from=resume: no start will find a checkpoint, as the command does not "
            "know the folder to save to: give it {checkpoint_dir}, or set job.workdir=checkpoints",
        ),
        ("run --set job.resume_args=-r={rank} -- train.py", "job.resume_args: {rank} is neither an axis nor"),
        ("run -- train.py {checkpoint}", "command: {checkpoint} is neither an axis nor a config key"),
        ("run own.yaml --yes", "{lr} is neither an axis nor a config key"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit.main(command.split()) == 2
    assert message in capsys.readouterr().err
    assert not RUNS.exists()


@pytest.mark.parametrize(
    ("launcher", "command", "effect"),
    [
        (
            "node",
            "srun --ntasks-per-node=8 torchrun train.py",
            "which starts the rest 8 times (--ntasks-per-node=8)",
        ),
        (
            "rank",
            "srun -n 2 torchrun train.py",
            "each rank starts srun, which starts the rest on all",
        ),
        ("rank", "torchrun train.py", "each rank starts torchrun, which starts all ranks of a node"),
        ("node", "torchrun --ntasks-per-node=8 train.py", None),
    ],
)
def test_a_launcher_that_is_started_several_times(
    launcher: str, command: str, effect: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ask(capsys, f"run --set job.launcher={launcher} --dry-run -- {command}")
    warnings = [line for line in shown.splitlines() if f"warning: each {launcher} starts" in line]
    assert [effect in line for line in warnings] == [True] * (effect is not None)


def test_a_container_has_the_folders_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run -- train.py")
    (state,) = read_runs(RUNS)
    record = read_json(state.run.run_json)
    copy = RUNS.absolute() / record["provenance"]["command"]["path"]
    assert run_code.folders_of_run(state.run, record) == [copy, Path.cwd()]
    assert run_code.folders_of_run(state.run, {"config": {}}) == []
