"""The Slurm scheduler against stand-ins for Slurm's commands."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import selection
from jobs.core import journal
from jobs.schedulers.interface import Batch, Job, Submission, SubmitError, Unreachable, submission_tag
from jobs.schedulers.slurm import queries
from jobs.schedulers.slurm.commands import query
from jobs.schedulers.slurm.executor import Backoff
from jobs.schedulers.slurm.queries import answers
from jobs.schedulers.slurm.scheduler import SlurmScheduler
from jobs.status.refresh import refresh_all
from jobs.status.run_state import RunState
from tests.support.commands import Commands, record, sacct, squeue

MANY = 10_000
PATIENT = Backoff(sleep=lambda pause_s: None)


@pytest.fixture
def slurm(commands: Commands) -> Commands:
    """sbatch accepts each script as job 42, and keeps the script and its environment."""
    commands.add("srun", "")
    keep = f'cp "$1" "{commands.folder}/script"; env > "{commands.folder}/env"'
    commands.add("sbatch", f'{keep}; echo "Submitted batch job 42"')
    return commands


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return planned(tmp_path, "n3")


def planned(root: Path, name: str) -> RunDir:
    run = RunDir(root / "runs" / "demo" / name)
    config = Config.model_validate({"resources": {"nodes": 3}}).as_dict()
    write_json(run.run_json, {"config": config, "run_key": "abc", "cluster": "slurm"})
    return run


def announced(*runs: RunDir) -> list[Submission]:
    """Submissions of these runs as one batch."""
    tag = submission_tag(runs[0], journal.next_submission(runs[0]))
    indices: Sequence[int | None] = range(len(runs)) if len(runs) > 1 else [None]
    return [
        Submission(run, journal.write_intent(run, {"handle": tag, "index": index}), tag, index)
        for run, index in zip(runs, indices, strict=True)
    ]


def batch(*runs: RunDir, after: Sequence[str] = ()) -> Batch:
    return Batch(announced(*runs), read_json(runs[0].run_json), None, after)


def calls(commands: Commands, name: str) -> list[str]:
    """The arguments of each call of this command."""
    path, prefix = commands.folder / "calls", f"{commands.folder}/{name} "
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def chosen(cluster: str, *existing: RunState) -> str:
    args = argparse.Namespace(cluster=cluster, profile=None, slurm=[], runs=Path("runs"))
    return selection.chosen_scheduler(args, existing).name


def test_auto_is_slurm_only_where_its_controller_answers(commands, capsys, monkeypatch):
    on_slurm = RunState(RunDir(Path("runs/demo/a")), "queued", cluster="slurm")
    monkeypatch.setenv("PATH", str(commands.folder))  # Slurm may be installed here
    assert (answers(), chosen("auto")) == (False, "local")
    assert capsys.readouterr().err == "", "no Slurm is installed"
    monkeypatch.setenv("PATH", f"{commands.folder}:/usr/bin:/bin")
    commands.add("sbatch", "")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    assert (answers(), chosen("auto"), chosen("local", on_slurm)) == (False, "local", "local")
    assert capsys.readouterr().err.startswith("warning: sbatch is installed but no Slurm controller answers")
    for cluster, existing in (("auto", [on_slurm]), ("slurm", []), ("pbs", [])):
        with pytest.raises(ConfigError):
            chosen(cluster, *existing)
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is UP"')
    assert chosen("auto") == "slurm"
    args = argparse.Namespace(cluster="auto", profile=None, slurm=[], runs=Path("runs"))
    resumed = [selection.scheduler_to_resume(args, name, []).name for name in ("local", "slurm", None)]
    assert resumed == ["local", "slurm", "slurm"], "failed runs of this machine stay on this machine"


def test_a_controller_that_hangs_does_not_hang_us(commands):
    commands.add("sbatch", "")
    for name in ("scontrol", "scancel"):
        commands.add(name, "exec sleep 60")
    assert not answers(timeout_s=0.2)
    assert queries.cancel(["1"], timeout_s=0.2) == "scancel: no answer within 0.2 s"


@pytest.mark.parametrize("refuses", [False, True])
def test_a_submission_leaves_its_script_and_no_file_of_submitit(slurm, tmp_path, refuses):
    """A `%j` in a path stands for itself."""
    run = planned(tmp_path / "a%jb it's", "n3")
    if refuses:
        slurm.add("sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    with contextlib.suppress(SubmitError):
        assert SlurmScheduler().submit(batch(run)) == ["42"]
        assert (slurm.folder / "script").read_text() == run.script.read_text()
    files = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert files == {"run.json", "submit.sbatch", "submissions/0000.intent.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"a%jb it's", "bin"}


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links between folders"])
def test_a_batch_is_an_array_and_its_tasks_are_found_again(slurm, tmp_path, monkeypatch, links):
    runs = [planned(tmp_path, f"n3-r{repeat}") for repeat in range(3)]
    array = batch(*runs)
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    assert SlurmScheduler().submit(array) == ["42_0", "42_1", "42_2"]
    script = (slurm.folder / "script").read_text()
    assert "#SBATCH --array=0-2\n" in script
    assert all(run.script.read_text() == script for run in runs)
    assert [run.script.samefile(runs[0].script) for run in runs] == [True, links, links]
    log = SlurmScheduler().batch_log(runs[1], 0, "42_1")
    assert (log, log.parent.is_dir()) == (runs[1].path.parent / ".arrays" / "42_1.log", True)
    tag = array.submissions[0].tag
    slurm.add("squeue", f"echo '41|(null)'; echo '42_0|{tag}'; echo '42_1|{tag}'")
    other = Submission(runs[0], 1, "tag of another submission")
    assert SlurmScheduler().find([*array.submissions[1:], other]) == ["42_1", "42_2", None]
    slurm.add("squeue", "exit 1")
    with pytest.raises(Unreachable):
        SlurmScheduler().find(array.submissions)


@pytest.mark.parametrize(
    ("section", "value", "same"),
    [
        ("name", "b", True),
        ("config", {"optim": {"lr": 0.5}}, True),
        ("config", {"resources": {"nodes": 4}}, False),
        ("config", {"resources": {"nodes": 3, "runs_per_node": 2}}, False),
        ("config", {"job": {"time_limit_min": 7}}, False),
        ("excluded_nodes", ["n7"], False),
        ("provenance", {"code": {"path": ".code/other"}}, False),
    ],
)
def test_runs_share_an_array_if_their_scripts_differ_only_in_the_run(run, section, value, same):
    scheduler, record = SlurmScheduler(), {**read_json(run.run_json), "profile": None, "provenance": {}}
    if section == "config":
        value = Config.model_validate({"resources": {"nodes": 3}} | value).as_dict()
    first = scheduler.batch_key(run, record, None)
    second = scheduler.batch_key(RunDir(run.path.with_name("other")), {**record, section: value}, None)
    assert (first == second) is same


def test_the_report_job_waits_for_whole_arrays(slurm, tmp_path):
    folder = RunDir(tmp_path / "runs" / "demo" / ".report")
    number = journal.write_intent(folder, {})
    SlurmScheduler().submit_after(Submission(folder, number, "tag"), ["x"], ["1_0", "1_1", "2", "1_2"], None)
    assert "#SBATCH --dependency=afterany:1:2\n" in (slurm.folder / "script").read_text()


def test_a_preview_is_checked_without_the_jobs_that_it_waits_for(slurm, tmp_path):
    slurm.add("scontrol", "echo 'Slurmctld(primary) at head is UP'")
    slurm.add(
        "sbatch",
        "if grep -q -e --dependency=; then echo 'sbatch: error: Job dependency problem' >&2; exit 1; fi",
    )
    batches = [batch(planned(tmp_path, name), after=["7"]) for name in "ab"]
    first, second = SlurmScheduler().previews(batches, test=True, complete=False)
    assert "--dependency=afterany:7" in (first.script or "")
    assert second.script is None
    assert [each.check and each.check.accepted for each in (first, second)] == [True, True]


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize(
    "error",
    ["exec sleep 60", "{ echo 'sbatch: error: Socket timed out' >&2; exit 1; }"],
    ids=["hangs", "fails"],
)
def test_after_a_transient_error_a_job_that_exists_is_not_submitted_again(
    slurm, run, monkeypatch, accepted, error
):
    monkeypatch.setattr("jobs.schedulers.slurm.executor.SBATCH_TIMEOUT_S", 2.0)
    slurm.add("sbatch", f"mkdir '{slurm.folder}/first' && {error}; echo 'Submitted batch job 43'")
    slurm.add("squeue", f"echo '41|(null)'; echo '42|{submission_tag(run, 0)}'" if accepted else "")
    assert SlurmScheduler(backoff=PATIENT).submit(batch(run)) == ["42" if accepted else "43"]
    assert len(calls(slurm, "sbatch")) == (1 if accepted else 2)


def test_sbatch_inherits_nothing_of_the_job_around_it(slurm, run, monkeypatch):
    leaks = {"SLURM_CPU_BIND": "mask", "SLURM_JOB_ID": "7", "RANK": "3", "SBATCH_QOS": "x", "PMI_RANK": "1"}
    for name, value in {**leaks, "SLURM_CONF": "/etc/slurm.conf"}.items():
        monkeypatch.setenv(name, value)
    SlurmScheduler().submit(batch(run))
    names = {line.partition("=")[0] for line in (slurm.folder / "env").read_text().splitlines()}
    assert names & {*leaks, "SLURM_CONF"} == {"SLURM_CONF"}
    assert os.environ["SLURM_CPU_BIND"] == "mask", "this process keeps its own"


def list_jobs(commands: Commands, count: int) -> None:
    """squeue lists the first `count` of the jobs 1000, 1001, ..., all of which run."""
    commands.add("squeue", f"[ {count} = 0 ] || seq -f '%.0f|RUNNING|100|None|(null)' 1000 {999 + count}")
    commands.add("scontrol", "echo 'Slurmctld(primary) at head is UP'")


def running(count: int) -> list[RunState]:
    """Runs with the jobs 1000, 1001, ..., as their files have them."""
    return [
        RunState(RunDir(Path(f"runs/demo/n{number}")), "running", cluster="slurm", job_id=str(1000 + number))
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [MANY, 2 * MANY])  # the ids of the second do not fit into one argument
def test_one_squeue_serves_all_runs_and_sacct_is_not_called_while_jobs_live(commands, count):
    list_jobs(commands, count)
    states = refresh_all(running(count))
    assert ({state.state for state in states}, len(states)) == ({"running"}, count)
    assert [len(calls(commands, name)) for name in ("squeue", "scontrol", "sacct")] == [1, 1, 0]


def test_sacct_gets_the_jobs_alone_that_squeue_does_not_list(commands):
    list_jobs(commands, MANY - 2)
    sacct(commands, *(record(str(1000 + MANY - number), "TIMEOUT") for number in (1, 2)))
    ids = [str(1000 + number) for number in range(MANY)]
    jobs = SlurmScheduler().poll(ids)
    assert [jobs[job_id].cause for job_id in ids[-3:]] == [None, "timeout", "timeout"]
    (call,) = calls(commands, "sacct")
    assert f"--jobs={998 + MANY},{999 + MANY}" in call


def test_sacct_is_queried_once_about_a_job_that_has_ended(commands):
    squeue(commands, "1000|RUNNING|100|None")
    sacct(commands, record("1001", "FAILED", "1:0"))
    scheduler = SlurmScheduler()
    for _ in range(3):
        jobs = scheduler.poll(["1000", "1001"])
    assert [jobs[job_id].status for job_id in ("1000", "1001")] == ["running", "ended"]
    assert [len(calls(commands, name)) for name in ("squeue", "sacct")] == [3, 1]
    squeue(commands, "1000|RUNNING|100|None", "1001|PENDING|N/A|BeginTime")  # requeued by hand
    assert scheduler.poll(["1000", "1001"])["1001"].status == "pending"


def test_a_task_that_was_cancelled_before_it_started_leaves_no_trace_but_its_siblings(commands):
    squeue(commands, "42_0|PENDING|0|Priority", "42_2|PENDING|0|Priority")
    sacct(commands, record("42_[0,2]", "PENDING"))
    jobs = SlurmScheduler().poll(["42_0", "42_1", "43_1"])
    assert [job.status for job in jobs.values()] == ["pending", "ended", "not_found"]
    assert jobs["42_1"].cause == "cancelled"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([record("7", "CANCELLED by 0")], "its job was cancelled by root"),
        ([record("7", "RUNNING")], "its job was cancelled"),
        ([], "its job was cancelled"),
    ],
    ids=["accounted", "accounting is late", "no record"],
)
def test_accounting_adds_who_cancelled_a_job(commands, rows, message):
    squeue(commands, "7|CANCELLED|100|None")
    sacct(commands, *rows)
    assert SlurmScheduler().poll(["7"])["7"] == Job("ended", message, "cancelled")


def test_starts_of_a_job_are_accounted_oldest_first(commands):
    late, early = record("7", "RUNNING", submitted=200), record("7", "NODE_FAIL", submitted=100)
    sacct(commands, late, early, record("8", "COMPLETED"))
    starts = SlurmScheduler().accounted(["7", "9/0"])
    assert "9/0" not in commands.calls(), "no id of Slurm"
    assert starts["9/0"] == []
    assert [each.submitted for each in starts["7"]] == [100, 200]
    squeue(commands)
    assert SlurmScheduler().poll(["7"])["7"].status == "running", "the newest start counts"
    commands.add("sacct", "exit 1")
    with pytest.raises(Unreachable):
        SlurmScheduler().accounted(["7"])


def test_a_cancel_without_a_controller_is_refused(commands):
    commands.add("scancel", "")
    commands.add("scontrol", 'echo "Slurmctld(primary) at head is DOWN"')
    assert SlurmScheduler().cancel({}) == {}
    with pytest.raises(ConfigError, match="no Slurm controller answers"):
        SlurmScheduler().cancel({"1": None})
    assert calls(commands, "scancel") == []


def test_a_job_that_scancel_does_not_end_is_reported(commands):
    squeue(commands, "1|RUNNING|0|None", "2|COMPLETING|0|None", "3|CANCELLED|0|None")
    commands.add("scancel", "echo 'scancel: error: Kill job error on job id 1: denied' >&2; exit 1")
    reasons = SlurmScheduler().cancel(dict.fromkeys("1234"))
    assert reasons == {"1": "scancel did not end job 1: Kill job error on job id 1: denied"}
    assert calls(commands, "scancel") == ["1 2 3 4"]


def test_a_job_of_the_same_number_is_not_ended(commands):
    commands.add("scancel", "")
    commands.add("squeue", "printf '%s\\n' '1|RUNNING|0|None|mine' '2|RUNNING|0|None|site: of a run'")
    (reason,) = SlurmScheduler().cancel({"1": "of a run", "2": "of a run"}).values()
    assert reason.startswith("job 1 is another job")
    assert calls(commands, "scancel") == ["2"]


def test_output_that_is_not_utf_8_is_read():
    assert query(["printf", r"a\377b"]) == "a\N{REPLACEMENT CHARACTER}b"
