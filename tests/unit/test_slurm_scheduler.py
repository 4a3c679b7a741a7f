"""The Slurm cluster against stand-ins for Slurm's commands."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
from pathlib import Path

import pytest

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import selection
from jobs.core import journal
from jobs.schedulers.interface import (
    Batch,
    LimitReached,
    Submission,
    SubmitError,
    Unreachable,
    submission_tag,
)
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.schedulers.slurm import executor, queries
from jobs.schedulers.slurm.commands import query
from jobs.schedulers.slurm.executor import Backoff, check_script
from jobs.schedulers.slurm.queries import answers
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.run_state import RunState
from tests.support.commands import Commands


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return planned(tmp_path, "auto")


def planned(root: Path, device: str, name: str = "n3") -> RunDir:
    resources = {"nodes": 3, "gpus_per_node": 4, "device": device, "threads_per_rank": 2}
    config = Config.model_validate({"resources": resources, "data": {"workers": 3}})
    run = RunDir(root / "runs" / "demo" / name)
    write_json(run.run_json, {"config": config.as_dict(), "run_key": "abc", "cluster": "slurm"})
    return run


def announced(run: RunDir, index: int | None = None) -> Submission:
    tag = submission_tag(run, journal.next_submission(run))
    return Submission(run, journal.write_intent(run, {"handle": tag, "index": index}), tag, index)


def batch(*submissions: Submission) -> Batch:
    return Batch(submissions, read_json(submissions[0].run.run_json), None)


def chosen(cluster: str, *there: RunState) -> str:
    args = argparse.Namespace(cluster=cluster, profile=None, slurm=[], runs=Path("runs"))
    return selection.chosen_scheduler(args, there).name


def test_auto_is_slurm_only_where_its_controller_answers(
    commands: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(commands.folder))  # Slurm may be installed here
    assert not answers()
    assert chosen("auto") == "local"
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PATH", f"{commands.folder}:/usr/bin:/bin")
    commands.add("sbatch", "")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    assert not answers()
    assert chosen("auto") == "local"
    warning = capsys.readouterr().err
    assert warning.startswith("warning: sbatch is installed but no Slurm controller answers")
    assert warning.count("\n") == 1
    there = RunState(RunDir(Path("runs/demo/a")), "queued", cluster="slurm")
    assert chosen("local", there) == "local"
    with pytest.raises(ConfigError, match=r"these runs are on Slurm.* --cluster local"):
        chosen("auto", there)
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="no Slurm controller answers"):
        chosen("slurm")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is UP"')
    assert chosen("auto") == "slurm"
    with pytest.raises(ConfigError, match="no scheduler 'pbs'"):
        chosen("pbs")
    args = argparse.Namespace(cluster="auto", profile=None, slurm=[], runs=Path("runs"))
    resumed = [selection.scheduler_to_resume(args, name, []).name for name in ("local", "slurm", None)]
    assert resumed == ["local", "slurm", "slurm"], "failed runs of this machine stay on this machine"


def test_a_controller_that_hangs_does_not_hang_us(commands: Commands) -> None:
    commands.add("sbatch", "")
    commands.add("scontrol", "exec sleep 60")
    assert not answers(timeout_s=0.2)


def test_submission_asks_for_one_task_per_node(commands: Commands, run: RunDir) -> None:
    commands.add("srun", "")
    commands.add("sbatch", f'cp "$1" "{commands.folder}/script"; echo "Submitted batch job 42"')
    assert SlurmScheduler().submit(batch(announced(run))) == ["42"]
    script = (commands.folder / "script").read_text()
    assert script == run.script.read_text()
    for line in (
        "--nodes=3",
        "--ntasks-per-node=1",
        "--gpus-per-node=4",
        "--cpus-per-task=20",  # 4 ranks of 2 threads and 3 loader workers
        "--time=60",
        f"--comment={submission_tag(run, 0)}",
        "--requeue",
        "--signal=USR2@60",  # job.stop_lead_s
    ):
        assert f"#SBATCH {line}\n" in script, script


@pytest.mark.parametrize("answer", ["echo 'Submitted batch job 42'", "echo 'sbatch: error: no' >&2; exit 1"])
def test_submitit_leaves_no_file(commands: Commands, tmp_path: Path, answer: str) -> None:
    """Where sbatch refuses the script, too; a `%j` in a path stands for itself."""
    commands.add("srun", "")
    commands.add("sbatch", f'test -s "$1" || exit 9; {answer}')
    run = planned(tmp_path / "a%jb it's", "cpu")
    with contextlib.suppress(SubmitError):
        assert SlurmScheduler().submit(batch(announced(run))) == ["42"]
    files = {str(path.relative_to(run.path)) for path in tmp_path.rglob("*") if path.is_file()
             and path.is_relative_to(run.path)}  # fmt: skip
    assert files == {"run.json", "submit.sbatch", "submissions/0000.intent.json"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] == "a") == ["a%jb it's"]


def test_repeats_share_an_array_and_its_tasks_are_found_again(commands: Commands, tmp_path: Path) -> None:
    commands.add("srun", "")
    commands.add("sbatch", f'cp "$1" "{commands.folder}/script"; echo "Submitted batch job 42"')
    runs = [planned(tmp_path, "auto", f"n3-r{repeat}") for repeat in range(3)]
    comment = submission_tag(runs[0], 0)
    submissions = [
        Submission(run, journal.write_intent(run, {"handle": comment, "index": index}), comment, index)
        for index, run in enumerate(runs)
    ]
    assert SlurmScheduler().submit(batch(*submissions)) == ["42_0", "42_1", "42_2"]
    script = (commands.folder / "script").read_text()
    assert "#SBATCH --array=0-2\n" in script
    assert "#SBATCH --job-name=n3\n" in script
    assert f"#SBATCH --comment={comment}\n" in script
    assert all(f"  {shlex.quote(str(run.path))}\n" in script for run in runs)
    assert all(run.script.read_text() == script for run in runs)
    assert all(run.script.samefile(runs[0].script) for run in runs)
    tasks = "".join(f"echo '42_{index}|{comment}'; " for index in range(3))
    commands.add("squeue", tasks)
    assert SlurmScheduler().find(submissions[1:]) == ["42_1", "42_2"]
    commands.add("squeue", "exit 1")
    with pytest.raises(Unreachable):
        SlurmScheduler().find(submissions)


def test_scripts_are_copied_where_no_link_between_folders_is_possible(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    commands.add("srun", "")
    commands.add("sbatch", 'echo "Submitted batch job 42"')
    runs = [planned(tmp_path, "auto", f"n3-r{repeat}") for repeat in range(2)]
    submissions = [
        Submission(run, journal.write_intent(run, {}), "tag", index) for index, run in enumerate(runs)
    ]
    monkeypatch.setattr(os, "link", refuse)
    SlurmScheduler().submit(batch(*submissions))
    first, second = (run.script for run in runs)
    assert first.read_text() == second.read_text()
    assert not first.samefile(second)


def test_the_report_job_waits_for_whole_arrays(commands: Commands, tmp_path: Path) -> None:
    commands.add("sbatch", f'cp "$1" "{commands.folder}/script"; echo "Submitted batch job 42"')
    folder = RunDir(tmp_path / "runs" / "demo" / ".report")
    number = journal.write_intent(folder, {})
    SlurmScheduler().submit_after(Submission(folder, number, "tag"), ["x"], ["1_0", "1_1", "2", "1_2"], None)
    assert "#SBATCH --dependency=afterany:1:2\n" in (commands.folder / "script").read_text()


def test_what_passes_is_tried_again_and_a_limit_is_no_refusal(commands: Commands, run: RunDir) -> None:
    commands.add("srun", "")
    commands.add(
        "sbatch",
        f"""if mkdir '{commands.folder}/first' 2>/dev/null; then
  echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1
fi
echo 'Submitted batch job 42'""",
    )
    commands.add("squeue", "echo '41|(null)'")
    impatient = SlurmScheduler(backoff=Backoff(sleep=lambda pause_s: None))
    assert impatient.submit(batch(announced(run))) == ["42"]
    assert commands.calls().count("/sbatch ") == 2
    commands.add("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    with pytest.raises(LimitReached, match="QOSMaxSubmitJobPerUserLimit"):
        impatient.submit(batch(announced(run)))


@pytest.mark.parametrize("accepted", [True, False])
def test_an_sbatch_that_does_not_return_is_tried_again_unless_its_job_exists(
    commands: Commands, run: RunDir, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    monkeypatch.setattr(executor, "SBATCH_TIMEOUT_S", 2.0)
    commands.add("srun", "")
    first = f"mkdir '{commands.folder}/first' 2>/dev/null && exec sleep 60"
    commands.add("sbatch", f"{first}; echo 'Submitted batch job 43'")
    commands.add("squeue", f"echo '42|{submission_tag(run, 0)}'" if accepted else "")
    impatient = SlurmScheduler(backoff=Backoff(sleep=lambda pause_s: None))
    assert impatient.submit(batch(announced(run))) == ["42" if accepted else "43"]
    assert commands.calls().count("/sbatch ") == (1 if accepted else 2)


def test_an_sbatch_that_never_returns_ends_with_an_error(
    commands: Commands, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SBATCH_TIMEOUT_S", 0.1)
    commands.add("srun", "")
    commands.add("sbatch", "exec sleep 60")
    with pytest.raises(Unreachable, match=r"sbatch did not answer within 0.1 s"):
        SlurmScheduler(backoff=Backoff(within_s=0.0)).submit(batch(announced(run)))


def test_a_refusal_that_fewer_jobs_would_not_undo_is_told_in_slurms_words(
    commands: Commands, run: RunDir
) -> None:
    commands.add("srun", "")
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    commands.add("sbatch", f'echo "sbatch: error: QOSMaxWallDurationPerJobLimit" "{policy}" >&2; exit 1')
    with pytest.raises(SubmitError) as refusal:
        SlurmScheduler().submit(batch(announced(run)))
    assert "refused n3: " in str(refusal.value)
    assert str(refusal.value).endswith(f"QOSMaxWallDurationPerJobLimit {policy}")
    assert not isinstance(refusal.value, LimitReached)


def test_sbatch_inherits_nothing_of_the_job_around_it(
    commands: Commands, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.add("srun", "")
    commands.add("sbatch", f'env > "{commands.folder}/env"; echo "Submitted batch job 42"')
    leaks = {"SLURM_CPU_BIND": "mask", "SLURM_JOB_ID": "7", "RANK": "3", "SBATCH_QOS": "x", "PMI_RANK": "1"}
    for name, value in leaks.items() | {"SLURM_CONF": "/etc/slurm.conf"}.items():
        monkeypatch.setenv(name, value)
    SlurmScheduler().submit(batch(announced(run)))
    names = {line.partition("=")[0] for line in (commands.folder / "env").read_text().splitlines()}
    assert "SLURM_CONF" in names
    assert not names & leaks.keys()
    assert os.environ["SLURM_CPU_BIND"] == "mask", "this process keeps its own"


@pytest.mark.parametrize(("device", "asks"), [("auto", True), ("cuda", True), ("cpu", False)])
def test_gpus_are_asked_for_unless_the_run_is_on_cpus(
    commands: Commands, tmp_path: Path, device: str, asks: bool
) -> None:
    commands.add("srun", "")
    commands.add("sbatch", f'cp "$1" "{commands.folder}/script"; echo "Submitted batch job 42"')
    SlurmScheduler().submit(batch(announced(planned(tmp_path, device))))
    assert ("--gpus-per-node=4" in (commands.folder / "script").read_text()) is asks
    assert SlurmScheduler().uses_gpus(device, 12) is asks, "as the dry run bills it"


def test_on_this_machine_auto_takes_the_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.schedulers.local.scheduler.count_gpus", lambda: 2)
    assert [LocalScheduler().uses_gpus("auto", ranks) for ranks in (2, 3)] == [True, False]
    assert LocalScheduler().uses_gpus("cuda", 3)


def test_a_refusal_is_one_line(commands: Commands, run: RunDir) -> None:
    commands.add("srun", "")
    commands.add("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(SubmitError, match="invalid partition") as caught:
        SlurmScheduler().submit(batch(announced(run)))
    assert "\n" not in str(caught.value)


def test_a_cluster_that_manages_no_gpus_gets_the_remedy(commands: Commands, run: RunDir) -> None:
    commands.add("srun", "")
    commands.add("sbatch", "echo 'sbatch: error: Invalid generic resource (gres) specification' >&2; exit 1")
    with pytest.raises(SubmitError, match=r"specification; .*--slurm gpus=none") as caught:
        SlurmScheduler().submit(batch(announced(run)))
    assert "\n" not in str(caught.value)
    check = check_script("#!/bin/sh\n", os.environ)
    assert (check.accepted, "--slurm gpus=none" in check.message) == (False, True)


def test_find_and_cancel(commands: Commands, run: RunDir) -> None:
    commands.add("scancel", "")
    commands.add(
        "squeue",
        f"""case "$*" in
  *%k*) echo '41|(null)'; echo '42|{submission_tag(run, 0)}' ;;
esac""",
    )
    cluster = SlurmScheduler()
    assert cluster.find([announced(run), announced(run)]) == ["42", None]
    assert cluster.cancel({}) == {}
    assert cluster.cancel({"1": None, "2": None}) == {}
    assert commands.calls().count("scancel") == 1
    assert "scancel 1 2" in commands.calls()


def test_a_task_that_was_cancelled_before_it_started_leaves_no_trace_but_its_siblings(
    commands: Commands,
) -> None:
    commands.add("squeue", "echo '42_0|PENDING|0|Priority|x'; echo '42_2|PENDING|0|Priority|x'")
    commands.add("sacct", "echo '42_[0,2]|PENDING|0:0|0|Unknown|Unknown|0|'")
    told = SlurmScheduler().poll(["42_0", "42_1", "43_1"])
    assert {job_id: job.status for job_id, job in told.items()} == {
        "42_0": "pending", "42_1": "ended", "43_1": "not_found",
    }  # fmt: skip
    assert told["42_1"].cause == "cancelled"


def test_a_cancel_without_a_controller_is_refused(commands: Commands) -> None:
    commands.add("scancel", "")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    with pytest.raises(ConfigError, match="no Slurm controller answers"):
        SlurmScheduler().cancel({"1": None})
    assert "scancel" not in commands.calls()


def test_a_job_that_scancel_does_not_end_is_reported(commands: Commands) -> None:
    commands.add(
        "squeue", "printf '%s\\n' '1|RUNNING|0|None|a' '2|COMPLETING|0|None|a' '3|CANCELLED|0|None|a'"
    )
    commands.add(
        "scancel", "echo 'scancel: error: Kill job error on job id 1: Access/permission denied' >&2; exit 1"
    )
    jobs = dict.fromkeys(("1", "2", "3", "4"), "a")
    reason = "scancel did not end job 1: Kill job error on job id 1: Access/permission denied"
    assert SlurmScheduler().cancel(jobs) == {"1": reason}


def test_a_scancel_that_does_not_return_is_an_error(commands: Commands) -> None:
    commands.add("scancel", "exec sleep 60")
    assert queries.cancel(["1"], timeout_s=0.2) == "scancel: no answer within 0.2 s"


def test_a_job_of_the_same_number_is_not_ended(commands: Commands) -> None:
    commands.add("scancel", "")
    commands.add("squeue", "printf '%s\\n' '1|RUNNING|0|None|mine' '2|RUNNING|0|None|site: of a run'")
    (reason,) = SlurmScheduler().cancel({"1": "of a run", "2": "of a run"}).values()
    assert reason.startswith("job 1 is another job (its comment is 'mine', not 'of a run')")
    assert "scancel 2" in commands.calls()
    assert "scancel 1" not in commands.calls()


def test_output_that_is_not_utf_8_is_read() -> None:
    assert query(["printf", r"a\377b"]) == "a\N{REPLACEMENT CHARACTER}b"
