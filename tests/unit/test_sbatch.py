"""sbatch: transient errors and retries after them, refusals, and limits of jobs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from jobs.schedulers.interface import LimitReached, SubmitError, SubmitQuota, Unreachable
from jobs.schedulers.slurm import executor, queries
from jobs.schedulers.slurm.executor import (
    TRANSIENT,
    Backoff,
    check_script,
    exceeded_limit,
    sbatch,
    submit_with_backoff,
)

FAILED = "sbatch: error: Batch job submission failed"
BUSY = f"{FAILED}: Socket timed out on send/recv operation"
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("message", "is_transient"),
    [
        (BUSY, True),
        (f"{FAILED}: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", True),
        (f"{FAILED}: Resource temporarily unavailable", True),
        (f"{FAILED}: Zero Bytes were transmitted or received", True),
        (f"{FAILED}: Slurm backup controller in standby mode", True),
        ("sbatch: error: invalid partition specified: nowhere", False),
        (f"{FAILED}: Invalid account or account/partition combination", False),
        (f"{FAILED}: Requested node configuration is not available", False),
        (f"{FAILED}: {POLICY}", False),
    ],
)
def test_a_transient_error(message, is_transient):
    assert bool(TRANSIENT.search(message)) is is_transient


@dataclass
class Slurm:
    """Answers in turn: `sbatch` with a refusal or an id, `find` with a job, nothing or silence."""

    sbatch: list[str]
    found: list[str | None] = field(default_factory=list)
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def submit(self) -> str:
        answer = self.sbatch.pop(0)
        if " " in answer:
            raise SubmitError(answer)
        return answer

    def find(self) -> str | None:
        answer = self.found.pop(0)
        if answer == "silence":
            raise Unreachable("the Slurm controller does not answer")
        return answer

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now += pause_s

    def job(self, within_s: float = 100.0) -> str:
        backoff = Backoff(within_s, 1.0, 8.0, clock=lambda: self.now, sleep=self.sleep)
        return submit_with_backoff(self.submit, self.find, backoff)


def test_pauses_double_up_to_the_longest(capsys):
    slurm = Slurm([BUSY] * 5 + ["42"], [None] * 5)
    assert slurm.job() == "42"
    for pause_s, most_s in zip(slurm.pauses, [1, 2, 4, 8, 8], strict=True):
        assert most_s / 2 <= pause_s <= most_s
    assert capsys.readouterr().err.count("Socket timed out") == 5


@pytest.mark.parametrize("found", [["42"], ["silence", "silence", "42"]])
def test_nothing_is_submitted_again_unless_there_is_no_job(found):
    assert Slurm([BUSY], found).job() == "42"


@pytest.mark.parametrize("before", [0, 1])
def test_a_final_refusal_is_not_tried_again(before):
    slurm = Slurm([BUSY] * before + ["invalid partition specified"], [None] * before)
    with pytest.raises(SubmitError, match="partition"):
        slurm.job()
    assert len(slurm.pauses) == before


def test_errors_that_outlast_the_backoff_leave_it_unknown_whether_there_is_a_job():
    slurm = Slurm([BUSY] * 100, [None] * 100)
    with pytest.raises(Unreachable, match="Socket timed out"):
        slurm.job(within_s=60)
    assert 40 < slurm.now <= 60


@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        ("invalid partition specified", SubmitError, "refused n3: .*invalid partition specified$"),
        (f"QOSMaxWallDurationPerJobLimit {POLICY}", SubmitError, "refused n3: .*QOSMaxWall.*limits.$"),
        ("Invalid generic resource (gres) specification", SubmitError, "--slurm gpus=none$"),
        ("QOSMaxSubmitJobPerUserLimit", LimitReached, r"\(QOSMaxSubmitJobPerUserLimit\)$"),
    ],
)
def test_a_refusal_is_one_line(commands, tmp_path, message, kind, says):
    commands.add("srun", "")
    commands.add("sbatch", f'echo "sbatch: error: {message}" >&2; exit 1')
    with pytest.raises(SubmitError, match=says) as caught:
        sbatch(tmp_path / "script", "n3")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_an_sbatch_that_never_returns_is_unreachable(commands, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "SBATCH_TIMEOUT_S", 0.1)
    for name in ("srun", "sbatch"):
        commands.add(name, "exec sleep 60")
    with pytest.raises(Unreachable):
        sbatch(tmp_path / "script", "n3")


@pytest.mark.parametrize(
    ("script", "accepted", "message"),
    [
        ("echo 'sbatch: Job 7 to start at noon' >&2", True, "Job 7 to start at noon"),
        (
            "printf 'sbatch: error: Invalid generic resource\\n\\nsbatch: error: no\\n' >&2; exit 1",
            False,
            "Invalid generic resource; no; if Slurm manages no GPUs of these nodes, give --slurm gpus=none",
        ),
        ("exec sleep 60", False, "sbatch did not answer within 1 s"),
    ],
)
def test_a_script_is_tested_without_a_job(commands, script, accepted, message):
    commands.add("sbatch", script)
    check = check_script("#!/bin/sh\n", os.environ, timeout_s=1)
    assert (check.accepted, check.message) == (accepted, message)
    assert commands.calls().endswith("/sbatch --test-only\n")


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        (f"AssocMaxSubmitJobLimit {FAILED}: {POLICY}", "the limit of jobs (AssocMaxSubmitJobLimit)"),
        (f"QOSGrpSubmitJobsLimit {FAILED}: {POLICY}", "the limit of jobs (QOSGrpSubmitJobsLimit)"),
        (f"AssocMaxCpuPerJobLimit {FAILED}: {POLICY}", None),
        (f"QOSMinGRES {FAILED}: {POLICY}", None),
        (f"{FAILED}: {POLICY}", "the limit of jobs"),
        ("sbatch: error: invalid partition specified: nowhere", None),
        # a controller that does not answer a ping has the default size, which may be too large
        (f"{FAILED}: Invalid job array specification", "the limit of tasks in an array (MaxArraySize)"),
    ],
)
def test_the_limit_on_the_number_of_jobs_behind_a_refusal(message, limit):
    assert exceeded_limit(message) == limit


CONFIG = """\
Configuration data as of 2026-11-21T04:58:20
MaxArraySize            = 1001
MaxJobCount             = 10000
SchedulerParameters     = bf_interval=2,max_array_tasks=200
"""
OF_10000 = "the limit of 10000 jobs (MaxJobCount of the cluster)"


@pytest.mark.parametrize(
    ("config", "queue", "quota"),
    [
        (CONFIG, "1 2_0 2_1", SubmitQuota(200, 9997, OF_10000)),
        (CONFIG.replace("1001", "100"), "", SubmitQuota(100, 10000, OF_10000)),
        (CONFIG.replace("1001", "0"), "", SubmitQuota(1, 10000, OF_10000)),
        (CONFIG.replace("MaxJob", "Other"), "1 2", SubmitQuota(200)),
        (CONFIG.replace("10000", "2"), "1 2 3", SubmitQuota(200, 0, OF_10000.replace("10000", "2"))),
        (CONFIG, None, SubmitQuota(200)),
        ("", "1", SubmitQuota()),
        (None, "1", SubmitQuota(queries.DEFAULT_ARRAY)),
    ],
    ids=["answered", "size", "no arrays", "no limit", "full", "no queue", "no config", "no controller"],
)
def test_the_quota_of_the_controller(commands, config, queue, quota):
    commands.add("sbatch", "")
    state = "DOWN" if config is None else "UP"
    commands.add("scontrol", f"case $* in ping) echo 'ctl is {state}';; *) echo '{config}';; esac")
    commands.add("squeue", "exit 1" if queue is None else f"printf '%s\\n' {queue}")
    assert queries.quota() == quota
