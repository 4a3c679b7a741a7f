"""The dry run: its exact output, and that it is what a submission does."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

import submit
from disttrain.records import collect_provenance
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.cli.preview import differences_text
from jobs.core import journal
from jobs.schedulers.interface import ScriptPreview
from tests.support.commands import Commands
from tests.support.verbs import RUNS, ask, ask_json, refused

GOLDEN = Path(__file__).parents[1] / "golden" / "dry-run.txt"
FILE = """\
model: {kind: mlp}
data: {kind: digits}
train: {epochs: 2, global_batch_size: 64}
job: {time_limit_min: 15, env: {HF_TOKEN: hunter2, NCCL_DEBUG: INFO}}
sweep:
  scaling: strong
  axes:
    resources.nodes: [1, 2]
    parallel.strategy: [auto, ddp]
  exclude:
    - {resources.nodes: 1, parallel.strategy: ddp}
"""
PLAIN = "{model: {kind: mlp}, data: {kind: digits}, train: {steps: 99, local_batch_size: 8}}"
LOCAL = "sweep tiny.yaml --cluster local"
SLURM = "sweep tiny.yaml --cluster slurm"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(FILE)
    monkeypatch.setattr("jobs.schedulers.local.scheduler.count_gpus", lambda: 0)
    monkeypatch.setattr("jobs.schedulers.local.scheduler.LocalScheduler.processors", lambda self: 2)
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture
def slurm(commands: Commands) -> Commands:
    """A Slurm that keeps each script, `submitted-<job id>`, and refuses to test those of two nodes."""
    test = "grep -q -e --nodes=1$ && echo 'sbatch: Job 7 to start at noon' >&2"
    submit_ = f'cat "$1" > "{commands.folder}/submitted-$$"; echo "Submitted batch job $$"'
    commands.add("sbatch", f"if [ $1 = --test-only ]; then {test}; else {submit_}; fi")
    commands.add("srun", "")
    commands.add("squeue", "")
    answers = "case $1 in ping) echo 'Slurmctld(primary) is UP';; *) echo 'MaxArraySize = 9';; esac"
    commands.add("scontrol", answers)
    return commands


def take_scripts(slurm: Commands) -> list[str]:
    """The submitted scripts, by job name. They are removed."""
    paths = list(slurm.folder.glob("submitted-*"))
    scripts = sorted((path.read_text() for path in paths), key=lambda text: option(text, "job-name"))
    for path in paths:
        path.unlink()
    return scripts


def option(script: str, name: str) -> str:
    return "".join(re.findall(rf"#SBATCH --{name}=(.*)", script))


def test_a_dry_run_prints_everything_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    normal = (
        ask(capsys, f"{LOCAL} --dry-run")
        .replace(sys.executable, "PYTHON")
        .replace(str(Path.cwd()), "CWD")
        .replace(str(Path(collect_provenance.__file__).parents[2]), "CODE")
    )
    normal = re.sub(r"\.code/[0-9a-f]{16}", ".code/HASH", normal)
    normal = re.sub(r"--rdzv-id [0-9a-f]{12}", "--rdzv-id RUNKEY", normal)
    normal = re.sub(r"(?m)(?<=\S) {2,}(?=.*\((derived|config)\)$)", "  ", normal)  # as wide as CODE is long
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(normal)
    assert normal == GOLDEN.read_text()
    every = ask(capsys, f"{LOCAL} --dry-run --all-scripts")
    assert every.count("-m torch.distributed.run ") == 5  # on 1, 2 and 2 nodes
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


def test_a_dry_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    out = ask_json(capsys, f"{SLURM} --nodes 2 --dry-run")
    assert (out["scaling"], out["base_ranks"], out["cluster"]) == ("strong", 2, "slurm")
    runs = [plan["run"] for plan in out["plans"]]
    assert [(run["run"], run["state"]) for run in out["runs"]] == [(name, "planned") for name in runs]
    assert [batch["runs"] for batch in out["batches"]] == [runs], "one array of one shape"
    run = out["plans"][0]
    assert run["batch"] == {"local": 32, "accumulation": 1, "ranks": 2, "global": 64}
    assert run["cost_bound"] == {"hours": 0.5, "unit": "GPU-hours"}
    assert (run["env"]["HF_TOKEN"]["value"], run["commands"], "memory" in run) == ("***", [], False)
    single = ask_json(capsys, "run tiny.yaml --nodes 2 --cluster local --dry-run")
    assert (single["scaling"], single["base_ranks"]) == ("strong", None)


def test_the_memory_is_estimated_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").touch()
    (plan,) = json.loads(ask(capsys, "run --memory --json --cluster local -- train.py"))["plans"]
    assert plan["memory"] == {"reason": "the memory of a command is unknown"}
    assert not RUNS.exists(), "--memory is a dry run"


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ("--nodes 1 2 --cluster local", None),
        ("--nodes 1 2 4 --set data.workers=1 --cluster local", "n2, n4: up to 8 busy threads ("),
        ("--nodes 1 2 4 --set data.workers=1 --cluster slurm", None),
        ("--nodes 8 --set model.kind=emulated --cluster local", None),
        (
            "--set train.steps=8,9,10,5,11",
            "n1-steps8, n1-steps9, n1-steps10 and 1 more: no step",
        ),
        ("--set train.steps=10 telemetry.warmup_steps=9", None),
    ],
)
def test_warnings(capsys: pytest.CaptureFixture[str], options: str, start: str | None) -> None:
    Path("tiny.yaml").write_text(PLAIN)
    where = "" if "--cluster" in options else " --cluster local"
    command = f"sweep tiny.yaml --dry-run {options}{where}"
    warnings = ask_json(capsys, command)["warnings"]
    assert [line[: len(start or "")] for line in warnings] == [start] * (start is not None)
    lines = [line for line in ask(capsys, command).splitlines() if line.startswith("warning: ")]
    assert lines == [f"warning: {line}" for line in warnings]


def test_gpus_take_the_work_of_threads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tiny.yaml").write_text(PLAIN)
    monkeypatch.setattr("jobs.schedulers.local.scheduler.count_gpus", lambda: 4)
    assert ask_json(capsys, f"{LOCAL} --nodes 4 --set data.workers=1 --dry-run")["warnings"] == []


def test_what_is_submitted_is_what_the_dry_run_prints(
    slurm: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{SLURM} --nodes 1 2 --repeats 2 --slurm partition=gpu environment.NCCL_NET=IB"
    shown = ask(capsys, f"{command} --dry-run --all-scripts")
    shortened = ask(capsys, f"{command} --dry-run")
    planned = ask_json(capsys, f"{command} --dry-run")["batches"]
    assert not RUNS.exists()
    assert "would write the report" in shown
    assert "would write the report" not in ask(capsys, f"{command} --dry-run --no-report")
    ask(capsys, f"{command} --no-report")
    submitted = take_scripts(slurm)
    assert [batch["script"] for batch in planned] == submitted
    assert [text for text in submitted if text in shortened] == submitted[:1]
    assert all(shown.count(text) == 1 for text in submitted)
    assert "NCCL_NET=IB" in shown
    for batch in planned:
        for run in batch["runs"]:
            assert (RUNS / "tiny" / run / "submit.sbatch").read_text() == batch["script"]
            profile = read_json(RUNS / "tiny" / run / "run.json")["profile"]
            assert (profile["name"], profile["partition"]) == ("generic", "gpu")
    again = ask(capsys, f"{command} --nodes 1 --dry-run")
    assert "would start 0 of 2" in again
    assert "would write the report" not in again, "nothing starts"


def test_other_scripts_are_told_by_the_options_in_which_they_differ() -> None:
    options = {"a": "--exclusive --nodes=1", "b": "--nodes=1 --mem=0", "c": "--exclusive --nodes=2"}
    first, *others = (
        ScriptPreview(name, [name], "generic", text.split(), "", None)
        for name, text in (options | {"d": options["a"]}).items()
    )
    lines = differences_text([first, *others]).splitlines()[1:]
    assert lines == ["  --mem=0 without --exclusive: b", "  --nodes=2: c", "  the same: d"]


def test_many_runs_need_yes(
    slurm: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.cli.submitting.RUNS_WITHOUT_YES", 2)
    assert "3 runs would start, at most 1.25 GPU-hours" in refused(capsys, SLURM)
    assert not RUNS.exists()
    assert take_scripts(slurm) == []
    ask(capsys, f"{SLURM} --dry-run")
    ask(capsys, f"{SLURM} --nodes 1 --no-report")
    assert len(take_scripts(slurm)) == 1, "one run is below the limit"
    ask(capsys, f"{SLURM} --name other --yes --no-report")
    assert len(take_scripts(slurm)) == 2


def test_resume_submits_with_the_profile_that_a_run_has(
    slurm: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(capsys, "run tiny.yaml --yes --cluster slurm --slurm partition=gpu qos=low")
    (run,) = [RunDir(path.parent) for path in RUNS.glob("tiny/*/run.json")]
    for number, (options, expected) in enumerate(
        [("", ("gpu", "low")), (" --slurm qos=high", ("gpu", "high")), (" --profile infiniband", ("", ""))]
    ):
        journal.revoke(run, number, "cancelled", "in a test")
        ask(capsys, f"resume --cluster slurm{options}")
        profile, script = read_json(run.run_json)["profile"], run.script.read_text()
        assert (profile["partition"] or "", profile["qos"] or "") == expected
        assert (option(script, "partition"), option(script, "qos")) == expected


def test_serial_makes_one_chain_also_where_runs_are_resumed(
    slurm: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{SLURM} --nodes 1 2 4 --set parallel.strategy=auto --no-report --serial"
    batches = ask_json(capsys, f"{command} --dry-run")["batches"]
    planned = [option(batch["script"], "dependency") for batch in batches]
    assert [text.startswith("afterany:JOB_OF_n") for text in planned] == [False, True, True]
    ask(capsys, command)
    assert [bool(option(script, "dependency")) for script in take_scripts(slurm)] == [False, True, True]
    revoked = [RunDir(path.parent) for path in RUNS.glob("tiny/n[24]*/run.json")]
    for run in revoked:
        journal.revoke(run, 0, "cancelled", "in a test")
    (job_id,) = [read_json(path)["job_id"] for path in RUNS.glob("tiny/n1*/submissions/0000.receipt.json")]
    slurm.add("squeue", f"echo '{job_id}|PENDING|N/A|None|(null)'")
    ask(capsys, f"resume {revoked[0].name} {revoked[1].name} --cluster slurm --max-running 2 --no-report")
    dependencies = sorted(option(script, "dependency") for script in take_scripts(slurm))
    assert dependencies == ["", f"afterany:{job_id}"], "the active job of a run that is not resumed counts"


def test_the_answer_of_slurm_is_shown_and_a_refusal_is_exit_code_1(
    slurm: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ask_json(capsys, f"{SLURM} --test-only", code=1)
    answers = [(batch["test"]["accepted"], batch["test"]["slurm_says"]) for batch in out["batches"]]
    assert answers == [(True, "Job 7 to start at noon"), (False, ""), (False, "")][: len(answers)]
    assert "Slurm accepts n1-auto: Job 7 to start at noon\n" in ask(capsys, f"{SLURM} --test-only --nodes 1")
    assert submit.main([*LOCAL.split(), "--test-only"]) == 2
    assert not RUNS.exists(), "--test-only is a dry run"
    slurm.add("scontrol", "exit 1")
    assert "no Slurm controller answers" in refused(capsys, f"{SLURM} --test-only")
    ask(capsys, f"{SLURM} --dry-run")


def test_a_folder_that_no_script_can_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, f"{SLURM} --runs 'a\nb' --dry-run").startswith("error: --runs: ")
