"""`run -- SCRIPT` and `command:` in a sweep file, by the verbs of submit.py."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import RunRecord, SweepRecord
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy, run_code
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.script import ArrayTask, ScriptFields, render
from jobs.status.run_state import read_runs
from tests.support.fake_runs import table_rows
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, ask, ask_json, end, states
from tests.unit.test_collect_provenance import git

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


def test_a_run_of_a_script_is_submitted_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = "run --nodes 2 -- train.py --lr 3e-4"
    assert "1 run: 1 submitted" in ask(capsys, command)
    assert states() == {"n2": "queued"}
    run = RunDir(RUNS / "train" / "n2")
    record = RunRecord.model_validate(read_json(run.run_json))
    assert record.config["command"] == ["train.py", "--lr", "3e-4"]
    assert record.axes == {"resources.nodes": 2, "command": "train.py --lr 3e-4"}
    about = record.provenance.command
    assert about is not None
    assert (about.folder, about.source) == (str(Path.cwd()), str(Path.cwd()))
    assert (RUNS / str(about.path) / "train.py").read_text() == "print(1)\n"
    SweepRecord.model_validate(read_json(RUNS / "train" / "sweep.json"))
    assert "0 submitted" in (out := ask(capsys, command)) or "in progress" in out
    ask(capsys, "run --nodes 2 -- train.py --lr 1e-4")
    assert len(states()) == 2
    assert "train.py --lr 3e-4" in ask(capsys, "show train/n2")


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
    out = ask(capsys, "sweep own.yaml --dry-run --cluster local")
    assert "each run is a command" in out
    assert "train.py --lr 0.1" in out
    assert out.count("DISTTRAIN_CHECKPOINT_DIR=") == 1
    assert f"DISTTRAIN_RUN_DIR={Path.cwd()}/runs/own/RUN  " in out
    one = ask(capsys, "run --dry-run --cluster local -- train.py")
    assert f"DISTTRAIN_RUN_DIR={Path.cwd()}/runs/train/n1  " in one
    planned = ask(capsys, "sweep own.yaml --dry-run --cluster local --json")
    assert all('"--lr",\n' in planned and f'"{lr}"' in planned for lr in (0.1, 0.2))
    of_run = ask(
        capsys, "run --set job.env.OUT={run_dir}/o --dry-run --cluster local -- train.py {run}:{attempt}"
    )
    assert "/train.py n1:0\n" in of_run
    assert f"OUT={Path.cwd()}/runs/train/n1/o  " in of_run
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
    shown = ask(capsys, f"show train/{state.name}")
    assert "results that the script reports" in shown
    assert "f1" in shown
    assert "note" not in shown.partition("results")[2].partition("files")[0]
    ask(capsys, "report train")
    report = read_json(RUNS / "train/report/report.json")
    assert report["excluded_runs"][0]["reason"] == "a script without telemetry"
    assert "goodput" not in {each["id"] for each in report["sections"]}  # its time has no classes
    (section,) = [each for each in report["sections"] if each["id"] == "scripts"]
    (table,) = section["tables"]
    assert [column["name"] for column in table["columns"]] == [
        "run", "state", "time_s", "hours", "unit", "reported.samples_per_s", "reported.loss", "reported.f1",
    ]  # fmt: skip
    page, text = ((RUNS / f"train/report/report.{kind}").read_text() for kind in ("html", "md"))
    assert f"<code>{section['code']}</code></pre>" in page
    assert f"\n```python\n{section['code']}\n```\n" in text
    assert "\n    for batch in telemetry.steps(loader):" in section["code"]
    assert "finished without step records" in (RUNS / "train/report/report.md").read_text()


def test_the_code_of_a_run_is_that_of_its_script(capsys: pytest.CaptureFixture[str], script: Path) -> None:
    git(Path.cwd(), "init", "-q")
    git(Path.cwd(), "add", script.name)
    git(Path.cwd(), "commit", "-q", "-m", "first")
    ask(capsys, "run -- train.py")
    (state,) = read_runs(RUNS)
    code = RunRecord.model_validate(read_json(state.run.run_json)).provenance.command
    assert code is not None
    assert code.git_commit is not None
    assert f"  code     {code.hash} ({code.git_commit[:12]})\n" in ask(capsys, f"show train/{state.name}")
    end(state.run, "finished")
    ask(capsys, "report train")
    rows = table_rows(read_json(RUNS / "train/report/report.json"), "provenance")
    provenance = {row["property"]: row["value"] for row in rows}
    assert (provenance["Code (hash)"], provenance["Commit"]) == (code.hash, code.git_commit)


def test_clean_keeps_the_copy_of_a_run_that_stays(capsys: pytest.CaptureFixture[str], script: Path) -> None:
    ask(capsys, "run --name one -- train.py")
    script.write_text("print(2)\n")
    ask(capsys, "run --name two -- train.py")
    for state in read_runs(RUNS):
        end(state.run, "finished")
    paths = {
        sweep: read_json(next((RUNS / sweep).glob("*/run.json")))["provenance"]["command"]["path"]
        for sweep in ("one", "two")
    }
    ask(capsys, "clean one")
    assert not (RUNS / paths["one"]).exists()
    assert (RUNS / paths["two"]).exists()


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
        ("run -- python train.py", "leave out python and torchrun"),
        ("run --set optim.lr=1 -- train.py", "optim.lr has no effect on a command"),
        ("run -- train.py {run_dri}", "did you mean 'run_dir'?"),
        ("run --set job.workdir=code -- -m torch.utils.collect_env", "job.workdir: code needs a copy"),
        ("run own.yaml", "{lr} is neither an axis nor a config key"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit.main(command.split()) == 2
    assert message in capsys.readouterr().err
    assert not RUNS.exists()


def test_a_container_has_the_folders_of_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run -- train.py")
    (state,) = read_runs(RUNS)
    record = read_json(state.run.run_json)
    folders = run_code.folders_of_run(state.run, record)
    copy = Path.cwd() / record["provenance"]["command"]["path"].replace(".code", "runs/.code")
    assert folders == [copy, Path.cwd()]
    fields = ScriptFields(
        name="n", comment="c", config=record["config"], tasks=[ArrayTask(Path.cwd() / "runs/train/r", 0)],
        logs=Path("/logs"), code=Path("/code"), python="python", folders=folders,
        profile=Profile.model_validate({"name": "p", "container": {"kind": "pyxis", "image": "x"}}),
    )  # fmt: skip
    quoted = [shlex.quote(str(each)) for each in ["/code", Path.cwd() / "runs/train", *folders]]
    mounts = ",".join(f"{each}:{each}" for each in quoted)
    assert f"--container-mounts={mounts}" in render(fields)
