"""The dry run: its exact output, and that nothing is written."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain.records import collect_provenance
from disttrain.records.run_directory import RunDir
from jobs.cli.preview import differences_text
from jobs.core import journal
from jobs.schedulers.interface import ScriptCheck, ScriptPreview

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


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(FILE)
    monkeypatch.setattr("jobs.schedulers.local.scheduler.count_gpus", lambda: 0)
    monkeypatch.setattr("jobs.schedulers.local.scheduler.LocalScheduler.processors", lambda self: 2)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_a_dry_run_prints_everything_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--dry-run"]) == 0
    out = capsys.readouterr().out
    normal = (
        out.replace(sys.executable, "PYTHON")
        .replace(str(Path.cwd()), "CWD")
        .replace(str(Path(collect_provenance.__file__).parents[2]), "CODE")
    )
    normal = re.sub(r"\.code/[0-9a-f]{16}", ".code/HASH", normal)
    normal = re.sub(r"--rdzv-id [0-9a-f]{12}", "--rdzv-id RUNKEY", normal)
    normal = re.sub(r"(?m)(?<=\S) {2,}(?=.*\((derived|config)\)$)", "  ", normal)  # as wide as CODE is long
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(normal)
    assert normal == GOLDEN.read_text()
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"]


def test_all_commands_are_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--dry-run", "--all-scripts"]) == 0
    assert capsys.readouterr().out.count("-m torch.distributed.run ") == 5  # on 1, 2 and 2 nodes


@pytest.mark.parametrize("flag", ["--no-report", "--wait"])
def test_no_report_job_is_announced_where_none_follows(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--dry-run", flag]) == 0
    assert "would write the report" not in capsys.readouterr().out


def test_a_dry_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        submit.main(["sweep", "tiny.yaml", "--cluster", "slurm", "--nodes", "2", "--dry-run", "--json"]) == 0
    )
    out = json.loads(capsys.readouterr().out)
    assert (out["scaling"], out["cluster"], len(out["plans"])) == ("strong", "slurm", 2)
    assert [(run["run"], run["state"]) for run in out["runs"]] == [
        (plan["run"], "planned") for plan in out["plans"]
    ]
    run = out["plans"][0]
    assert run["batch"] == {"local": 32, "accumulation": 1, "ranks": 2, "global": 64}
    assert run["cost_bound"] == {"hours": 0.5, "unit": "GPU-hours"}
    assert run["env"]["HF_TOKEN"]["value"] == "***"
    assert run["commands"] == [], "on Slurm the batch script says what is done"
    runs = [each["run"] for each in out["plans"]]
    assert [batch["runs"] for batch in out["batches"]] == [runs], "one array of one shape"


def warnings(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a dry run warns of: the same as text and as JSON."""
    command = ["sweep", "tiny.yaml", "--dry-run", *words]
    assert submit.main(command) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert submit.main([*command, "--json"]) == 0
    found: list[str] = json.loads(capsys.readouterr().out)["warnings"]
    assert lines == [f"warning: {line}" for line in found]
    return found


def test_more_threads_than_processors_are_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tiny.yaml").write_text(
        "{model: {kind: mlp}, data: {kind: digits}, train: {steps: 99, local_batch_size: 8}}"
    )
    crowd = ["--nodes", "1", "2", "4", "--set", "data.workers=1"]
    assert warnings(capsys, "--nodes", "1", "2", "--cluster", "local") == []
    assert warnings(capsys, *crowd, "--cluster", "slurm") == [], "there each node is a machine"
    waiting = ["--set", "model.kind=emulated"]
    assert warnings(capsys, "--nodes", "8", *waiting, "--cluster", "local") == [], "ranks that wait"
    (line,) = warnings(capsys, *crowd, "--cluster", "local")
    assert line.startswith("n2, n4: up to 8 busy threads (")
    assert "on 2 processors" in line
    monkeypatch.setattr("jobs.schedulers.local.scheduler.count_gpus", lambda: 4)
    assert warnings(capsys, *crowd, "--cluster", "local") == [], "GPUs do the work"


def test_runs_without_a_measured_step_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text("{model: {kind: mlp}, data: {kind: digits}, train: {local_batch_size: 8}}")
    (line,) = warnings(capsys, "--cluster", "local", "--set", "train.steps=8,9,10,5,11")
    assert line == (
        "n1-steps8, n1-steps9, n1-steps10 and 1 more: no step will be "
        "measured: train.steps is not above telemetry.warmup_steps=10"
    )
    steps = ["--set", "train.steps=10", "telemetry.warmup_steps=9"]
    assert warnings(capsys, "--cluster", "local", *steps) == []


def test_a_single_run_scales_no_batch_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["run", "tiny.yaml", "--nodes", "2", "--cluster", "local", "--dry-run"]) == 0
    assert "in runs/tiny; batch sizes are not scaled\n" in capsys.readouterr().out


def test_an_existing_run_is_retried_or_up_to_date(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.jobs import FakeScheduler

    monkeypatch.setattr("jobs.cli.selection.chosen_scheduler", lambda *_: FakeScheduler())
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1"]) == 0
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "in progress: queued" in out
    assert "would start 2 of 3, at most 1 CPU rank-hours" in out


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm that takes every job and keeps its script: `submitted-<job id>` in this folder."""
    slurm = Path("bin").absolute()
    slurm.mkdir()
    monkeypatch.setenv("PATH", f"{slurm}:/usr/bin:/bin")
    for name, script in {
        "sbatch": f'cat "$1" > "{slurm}/submitted-$$"; echo "Submitted batch job $$"',
        "srun": "",
        "squeue": "",
        "scontrol": "case $1 in ping) echo 'Slurmctld(primary) is UP';; *) echo 'MaxArraySize = 9';; esac",
    }.items():
        (slurm / name).write_text(f"#!/bin/sh\n{script}\n")
        (slurm / name).chmod(0o755)
    return slurm


def test_a_dry_run_on_slurm_prints_the_script_that_is_submitted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["sweep", "tiny.yaml", "--nodes", "1", "2", "--repeats", "2", "--cluster", "slurm"]
    command += ["--slurm", "partition=gpu", "environment.NCCL_NET=IB"]
    slurm = stand_in(monkeypatch)
    assert submit.main([*command, "--dry-run", "--all-scripts"]) == 0
    shown = capsys.readouterr().out
    assert submit.main([*command, "--dry-run"]) == 0
    shortened = capsys.readouterr().out
    assert submit.main([*command, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["batches"]
    assert not Path("runs").exists()
    assert submit.main(command) == 0
    submitted = [path.read_text() for path in slurm.glob("submitted-*")]
    assert sorted(batch["script"] for batch in planned) == sorted(submitted)
    assert len(submitted) == 2, "runs of one shape share an array"
    assert all(shown.count(text) == 1 for text in submitted)
    assert "NCCL_NET=IB" in shown
    assert [text for text in submitted if text in shortened] == [planned[0]["script"]]
    for batch in planned:
        for run in batch["runs"]:
            assert (Path("runs/tiny") / run / "submit.sbatch").read_text() == batch["script"]
            record = json.loads((Path("runs/tiny") / run / "run.json").read_text())
            assert (record["profile"]["name"], record["profile"]["partition"]) == ("generic", "gpu")


def test_a_dry_run_names_the_options_in_which_scripts_differ(capsys: pytest.CaptureFixture[str]) -> None:
    values = ["--set", "parallel.strategy=auto", "train.seed=0,1", "data.workers=1,2"]
    command = ["sweep", "tiny.yaml", "--cluster", "slurm", "--dry-run", "--nodes", "1", "2", *values]
    assert submit.main([*command, "--serial"]) == 0
    out = capsys.readouterr().out
    assert out.count("#!/bin/bash") == 1
    found = out[out.index("7 more scripts") :].splitlines()
    assert found[1] == "  --cpus-per-task=3: n1-seed0-workers2; n1-seed1-workers2"
    assert "  the same: n1-seed1-workers1" in found
    assert any(line.startswith("  --nodes=2: n2-") for line in found)


def test_a_dry_run_of_scripts_of_ones_own_is_one_array(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("print(1)\n")
    Path("own.yaml").write_text("command: train.py --lr {lr}\nsweep: {axes: {lr: [0.1, 0.2]}}\n")
    assert submit.main(["sweep", "own.yaml", "--cluster", "slurm", "--nodes", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --array=0-1" in out


def test_options_that_only_the_first_script_has_are_named() -> None:
    first, other = (
        ScriptPreview(name, [name], "generic", options, "", None)
        for name, options in (("a", ["--exclusive", "--nodes=1"]), ("b", ["--nodes=1", "--mem=0"]))
    )
    assert "  --mem=0 without --exclusive: b" in differences_text([first, other]).splitlines()


def test_many_runs_need_yes_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.cli.submitting.RUNS_WITHOUT_YES", 2)
    slurm = stand_in(monkeypatch)
    command = ["sweep", "tiny.yaml", "--cluster", "slurm"]
    assert submit.main(command) == 2
    error = capsys.readouterr().err
    assert error == (
        "error: tiny: 3 runs would start, at most 1.25 GPU-hours (each attempt until its time limit); "
        "more than 2 runs need --yes, and --dry-run lists them\n"
    )
    assert not Path("runs").exists()
    assert not list(slurm.glob("submitted-*"))
    assert submit.main([*command, "--dry-run"]) == 0
    assert submit.main([*command, "--nodes", "1"]) == 0, "one run is below the limit"


def test_yes_submits_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.cli.submitting.RUNS_WITHOUT_YES", 2)
    slurm = stand_in(monkeypatch)
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "slurm", "--yes"]) == 0
    assert len(list(slurm.glob("submitted-*"))) == 2


def test_resume_submits_with_the_profile_that_a_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    where = ["--cluster", "slurm"]
    assert submit.main(["run", "tiny.yaml", *where, "--slurm", "partition=gpu", "qos=low"]) == 0
    (run,) = [RunDir(path.parent) for path in Path("runs/tiny").glob("*/run.json")]
    for number, (words, expected) in enumerate(
        [
            ([], ("gpu", "low")),
            (["--slurm", "qos=high"], ("gpu", "high")),
            (["--profile", "infiniband"], (None, None)),
        ]
    ):
        journal.revoke(run, number, "cancelled", "in a test")
        assert submit.main(["resume", *where, *words]) == 0
        profile = json.loads(run.run_json.read_text())["profile"]
        assert (profile["partition"], profile["qos"]) == expected
        assert ("#SBATCH --partition=gpu\n" in run.script.read_text()) is (expected[0] is not None)


def dependencies(slurm: Path) -> list[str]:
    """The dependency of each submitted script, in the order of the job names."""
    scripts = [path.read_text() for path in slurm.glob("submitted-*")]
    by_name = sorted(scripts, key=lambda text: re.findall(r"#SBATCH --job-name=(.*)", text))
    return ["".join(re.findall(r"#SBATCH --dependency=(.*)", text)) for text in by_name]


def test_serial_makes_one_chain_also_where_runs_are_resumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = stand_in(monkeypatch)
    command = ["sweep", "tiny.yaml", "--cluster", "slurm", "--nodes", "1", "2", "4"]
    command += ["--set", "parallel.strategy=auto"]
    assert submit.main([*command, "--serial", "--dry-run", "--all-scripts"]) == 0
    out = capsys.readouterr().out
    assert "at most one run of tiny at a time" in out
    assert out.count("#SBATCH --dependency=afterany:JOB_OF_n") == 2
    assert submit.main([*command, "--serial"]) == 0
    assert [bool(each) for each in dependencies(slurm)] == [False, True, True]
    for path in slurm.glob("submitted-*"):
        path.unlink()
    for path in Path("runs/tiny").glob("*/run.json"):
        journal.revoke(RunDir(path.parent), 0, "cancelled", "in a test")
    assert submit.main(["resume", "--cluster", "slurm", "--max-running", "2"]) == 0
    assert [bool(each) for each in dependencies(slurm)] == [False, False, True]


def test_the_answer_of_slurm_is_printed_and_a_refusal_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.schedulers.slurm.queries.answers", lambda: True)
    monkeypatch.setattr(
        "jobs.schedulers.slurm.executor.check_script",
        lambda script, environment: ScriptCheck("--nodes=1\n" in script, "Job 7 to start at noon"),
    )
    command = ["sweep", "tiny.yaml", "--cluster", "slurm", "--test-only"]
    assert submit.main(command) == 1
    out = capsys.readouterr().out
    assert out.count("\nSlurm accepts n1-auto: Job 7 to start at noon\n") == 1
    assert out.count("\nSlurm refuses n2-") == 2
    assert submit.main([*command, "--nodes", "1"]) == 0
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"], "--test-only is a dry run"
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--test-only"]) == 2
    monkeypatch.setattr("jobs.schedulers.slurm.queries.answers", lambda: False)
    assert submit.main(command) == 2
    assert "no Slurm controller answers" in capsys.readouterr().err
    assert submit.main([*command[:-1], "--dry-run"]) == 0, "a dry run needs no Slurm"


def test_a_folder_that_no_script_can_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "tiny.yaml", "--cluster", "slurm", "--runs", "a\nb", "--dry-run"]
    assert submit.main(command) == 2
    assert capsys.readouterr().err.startswith("error: --runs: ")


def test_memory_is_estimated_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def estimates(plans: list[Any]) -> list[dict[str, str]]:
        asked.append(len(plans))
        return [{"reason": f"{plan.name} is not known"} for plan in plans]

    monkeypatch.setattr("jobs.cli.preview.estimate_memory", estimates)
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--memory"]) == 0
    out = capsys.readouterr().out
    assert out.count(": no estimate: n") == asked[0] > 1
    assert [path.name for path in Path().iterdir()] == ["tiny.yaml"], "--memory is a dry run"
    assert submit.main(["sweep", "tiny.yaml", "--cluster", "local", "--dry-run"]) == 0
    assert "no estimate" not in capsys.readouterr().out
    assert len(asked) == 1
