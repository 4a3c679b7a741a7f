"""One job per sweep writes its report when the last run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from jobs.core import journal as ledger
from jobs.core import run_code
from jobs.schedulers.interface import Job, SubmitError
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.script import render_report
from jobs.submission import report_job
from tests.support.jobs import FakeScheduler, repeats, submit, sweep_plan
from tests.support.verbs import end


def test_it_waits_for_all_runs_on_their_way_and_is_one(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    assert report_job.ensure(tmp_path, "demo", cluster, anew=True) is None, "nothing to wait for"
    submit(sweep_plan("a"), cluster, tmp_path)
    assert report_job.ensure(tmp_path, "demo", cluster, anew=True) == "later:1"
    assert report_job.ensure(tmp_path, "demo", cluster, anew=False) == "later:1"
    submit(sweep_plan("a", "b"), cluster, tmp_path)
    assert report_job.ensure(tmp_path, "demo", cluster, anew=True) == "later:2"
    assert cluster.followed == [("demo", ["elsewhere:1"]), ("demo", ["elsewhere:1", "elsewhere:2"])]
    assert cluster.cancelled == ["later:1"]
    assert report_job.ensure(tmp_path, "demo", cluster, anew=False) == "later:2"


def test_it_runs_the_code_of_the_newest_submission(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(sweep_plan("b"), cluster, tmp_path)
    older = RunDir(tmp_path / "demo" / "b")
    record = read_json(older.run_json)
    newest = run_code.code_of_run(older, record)
    record["provenance"]["code"]["path"] = ".code/older"
    write_json(older.run_json, record)
    intent = ledger.entry(older, 0).path("intent")
    write_json(intent, read_json(intent) | {"time": "2020-01-01T00:00:00.000+00:00"})
    submit(sweep_plan("b", "a"), cluster, tmp_path)
    commands: list[str] = []

    def follow(job: object, command: Sequence[str], *given: object) -> str:
        commands.append(command[0])
        return "later:1"

    cluster.submit_after = follow  # type: ignore[method-assign]
    report_job.ensure(tmp_path, "demo", cluster, anew=True)
    assert commands == [str(newest / "submit.py")]


def test_one_whose_receipt_was_lost_is_found_and_replaced(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(repeats(2, "a"), cluster, tmp_path)
    report_job.ensure(tmp_path, "demo", cluster, anew=True)
    ledger.entry(report_job.journal_of(tmp_path, "demo"), 0).path("receipt").unlink()
    cluster.found = "later:1"
    assert report_job.ensure(tmp_path, "demo", cluster, anew=False) == "later:1"
    cluster.found = None
    report_job.ensure(tmp_path, "demo", cluster, anew=True)
    assert cluster.cancelled == ["later:1"]


def test_one_that_adds_runs_ends_its_own_submission_once_another_follows(tmp_path: Path) -> None:
    """If the other one is refused, it still writes the report itself."""
    cluster = FakeScheduler()
    submit(sweep_plan("a"), cluster, tmp_path)
    report_job.ensure(tmp_path, "demo", cluster, anew=True)
    journal = report_job.journal_of(tmp_path, "demo")
    follow, cluster.submit_after = cluster.submit_after, refuse  # type: ignore[method-assign]
    with pytest.raises(SubmitError):
        report_job.ensure(tmp_path, "demo", cluster, anew=True, own=0)
    assert ledger.entry(journal, 0).read("claim") is None
    cluster.submit_after = follow  # type: ignore[method-assign]
    report_job.ensure(tmp_path, "demo", cluster, anew=True, own=0)
    assert (ledger.entry(journal, 0).read("claim") or {})["cause"] == "lost"
    assert cluster.cancelled == [], "it ends by itself"


def refuse(*_: object) -> str:
    raise SubmitError("sbatch refused demo: no more jobs")


def test_one_that_is_over_is_not_cancelled(tmp_path: Path) -> None:
    cluster = FakeScheduler("ended")
    submit(sweep_plan("a"), cluster, tmp_path)
    journal = report_job.journal_of(tmp_path, "demo")
    ledger.write_receipt(journal, ledger.write_intent(journal, {"cluster": "local"}), "later:0")
    cluster.poll = lambda job_ids: {  # type: ignore[method-assign, assignment]
        job_id: Job("ended" if job_id == "later:0" else "pending") for job_id in job_ids
    }
    assert report_job.ensure(tmp_path, "demo", cluster, anew=False) == "later:1"
    assert cluster.cancelled == []


def test_a_refusal_is_settled(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(sweep_plan("a"), cluster, tmp_path)

    def refuse(*given: object) -> str:
        raise SubmitError("no more jobs")

    cluster.submit_after = refuse  # type: ignore[method-assign]
    with pytest.raises(SubmitError):
        report_job.ensure(tmp_path, "demo", cluster, anew=True)
    claim = ledger.entry(report_job.journal_of(tmp_path, "demo"), 0).read("claim")
    assert claim is not None
    assert claim["by"] == "revoked"


def test_it_is_no_run(tmp_path: Path) -> None:
    from jobs.status.run_state import read_runs

    cluster = FakeScheduler()
    submit(sweep_plan("a"), cluster, tmp_path)
    report_job.ensure(tmp_path, "demo", cluster, anew=True)
    assert [state.name for state in read_runs(tmp_path)] == ["a"]


@pytest.mark.parametrize(
    ("mail_type", "requested"), [("END", "END,FAIL"), ("FAIL", "FAIL"), ("FAIL END", "END,FAIL")]
)
def test_it_requests_mail_when_it_starts(mail_type: str, requested: str) -> None:
    profile = Profile.model_validate(
        {"name": "site", "mail_user": "me@example.org", "mail_type": mail_type.split()}
    )
    script = render_report(
        name="report-demo", comment="tag", after=["1"], command=["/code/submit.py"], logs=Path("/logs"),
        python="python", profile=profile,
    )  # fmt: skip
    assert "#SBATCH --mail" not in script, "a mail about a job that is replaced"
    wanted = f'scontrol update MailType={requested} MailUser=me@example.org JobId="$SLURM_JOB_ID" || :\n'
    assert wanted in script


def test_its_script() -> None:
    script = render_report(
        name="report-my sweep",
        comment="disttrain:demo/.report:0:abc",
        after=["1_0", "1_1", "2"],
        command=["/code/submit.py", "report", "demo", "--runs", "/my runs/$HOME"],
        logs=Path("/my runs/demo/.report/submissions"),
        python="/venv/bin/python",
        profile=Profile(name="site", partition="cpu", account="physics", modules=("cuda/12",)),
    )
    for line in (
        '#SBATCH --job-name="report-my sweep"',
        "#SBATCH --dependency=afterany:1_0:1_1:2",
        "#SBATCH --kill-on-invalid-dep=yes",
        "#SBATCH --ntasks=1",
        "#SBATCH --partition=cpu",
        "#SBATCH --account=physics",
        "module load cuda/12 || exit",
        "command /venv/bin/python /code/submit.py report demo --runs '/my runs/$HOME'",
    ):
        assert f"{line}\n" in script, script
    assert "gpu" not in script
    assert "mail" not in script.lower()


def test_one_that_ended_without_a_report_is_submitted_again_after_the_runs(tmp_path: Path) -> None:
    cluster = FakeScheduler()
    submit(sweep_plan("a"), cluster, tmp_path)
    report_job.ensure(tmp_path, "demo", cluster, anew=True)
    end(RunDir(tmp_path / "demo" / "a"), "finished")
    cluster.job = Job("ended")
    assert report_job.ensure(tmp_path, "demo", cluster, anew=False) == "later:2"
    assert cluster.followed[-1] == ("demo", [])
    write_text(tmp_path / "demo" / "report" / "report.html", "")
    assert report_job.ensure(tmp_path, "demo", cluster, anew=False) is None
