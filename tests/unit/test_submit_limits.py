"""Limits of jobs: read from the controller, and named by refusals of sbatch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.schedulers.interface import SubmitQuota
from jobs.schedulers.slurm import commands, queries
from jobs.schedulers.slurm.executor import exceeded_limit

CONFIG = """\
Configuration data as of 2026-11-21T04:58:20
AccountingStorageEnforce = associations,limits
ClusterName             = big
MaxArraySize            = 1001
MaxJobCount             = 10000
SchedulerParameters     = bf_interval=2,max_array_tasks=200
"""


NO_LIMIT_ON_JOBS = CONFIG.replace("MaxJobCount             = 10000\n", "")
FULL = CONFIG.replace("10000", "2")
NO_ARRAYS = CONFIG.replace("1001", "0").replace(",max_array_tasks=200", "")
ANSWERS = {"scontrol show config": CONFIG, "squeue --noheader --array --states=all": "1\n2_0\n2_1\n"}


def answer(command: list[str], *_: object) -> str | None:
    return next((said for start, said in ANSWERS.items() if " ".join(command).startswith(start)), None)


@pytest.mark.parametrize(
    ("answers", "ask", "quota"),
    [
        (True, answer, SubmitQuota(200, 9997, "the limit of 10000 jobs (MaxJobCount of the cluster)")),
        (True, lambda command, *_: None, SubmitQuota()),
        (True, lambda command, *_: CONFIG if "config" in command else None, SubmitQuota(200)),
        (True, lambda command, *_: NO_LIMIT_ON_JOBS if "config" in command else "1\n2\n", SubmitQuota(200)),
        (
            True,
            lambda command, *_: FULL if "config" in command else "1\n2\n3\n",
            SubmitQuota(200, 0, "the limit of 2 jobs (MaxJobCount of the cluster)"),
        ),
        (
            True,
            lambda command, *_: NO_ARRAYS if "config" in command else "",
            SubmitQuota(1, 10000, "the limit of 10000 jobs (MaxJobCount of the cluster)"),
        ),
        (False, answer, SubmitQuota(queries.DEFAULT_ARRAY)),
    ],
    ids=[
        "answered",
        "no answer to a query",
        "no list of jobs",
        "no limit on jobs",
        "more jobs than the limit",
        "no arrays",
        "no controller",
    ],
)
def test_the_quota_is_what_the_controller_says(
    answers: bool, ask: Callable[..., str | None], quota: SubmitQuota, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "answers", lambda: answers)
    monkeypatch.setattr(queries, "query_or_none", ask)
    monkeypatch.setattr(commands, "query_or_none", ask)
    assert queries.quota() == quota


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("named", "limit"),
    [
        ("AssocMaxSubmitJobLimit", "the limit of jobs (AssocMaxSubmitJobLimit)"),
        ("QOSMaxSubmitJobPerUserLimit", "the limit of jobs (QOSMaxSubmitJobPerUserLimit)"),
        ("QOSGrpSubmitJobsLimit", "the limit of jobs (QOSGrpSubmitJobsLimit)"),
        ("QOSMaxWallDurationPerJobLimit", None),
        ("AssocMaxCpuPerJobLimit", None),
        ("QOSMinGRES", None),
    ],
)
def test_a_refusal_that_speaks_of_a_limit(named: str, limit: str | None) -> None:
    said = f"sbatch: error: {named} sbatch: error: Batch job submission failed: {POLICY}"
    assert exceeded_limit(said) == limit


def test_a_refusal_without_the_name_of_a_limit() -> None:
    assert exceeded_limit(f"sbatch: error: Batch job submission failed: {POLICY}") == "the limit of jobs"
    assert exceeded_limit("sbatch: error: invalid partition specified: nowhere") is None


def test_a_refusal_of_the_size_of_an_array() -> None:
    """A controller that does not answer a ping has the default size, which may be too large."""
    said = "sbatch: error: Batch job submission failed: Invalid job array specification"
    assert exceeded_limit(said) == "the limit of tasks in an array (MaxArraySize)"
