"""Findings on limits of the cluster and of the user's accounts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from disttrain.errors import nearest
from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.slurm.doctor.cluster_facts import Association, ClusterFacts, Config
from jobs.schedulers.slurm.site_profile import Profile

_FEW_JOBS = 1000
_MIN_JOB_AGE_S = 60


def findings(facts: ClusterFacts, config: Config, profile: Profile) -> Iterator[Finding]:
    yield from _controller(facts, config)
    enforced = set(config.flags("AccountingStorageEnforce"))
    if facts.associations is not None and facts.user != "root":
        yield from _accounts(facts, facts.associations, profile, "associations" in enforced)
    if "wckeys" in enforced and profile.wckey is None:
        yield Finding(
            "warning",
            "limits.wckey",
            "Slurm requires a workload characterization key, and the site profile has none",
            "`sacctmgr show wckey user=$USER` lists yours; set `wckey` in the site profile",
            config.evidence("AccountingStorageEnforce"),
        )


def _controller(facts: ClusterFacts, config: Config) -> Iterator[Finding]:
    array = config.number("MaxArraySize")
    if array is not None and array <= 1:
        yield Finding(
            "note",
            "limits.arrays",
            "job arrays are off: each repeat of a run is a job of its own",
            "none needed",
            config.evidence("MaxArraySize"),
        )
    most = config.number("MaxJobCount")
    if most and facts.queue is not None and len(facts.queue) > 0.9 * most:
        yield Finding(
            "warning",
            "limits.job_count",
            f"the queue is nearly full: {len(facts.queue)} of {most} jobs of all users",
            "submit.py defers the runs above the limit; repeat the command later",
            config.evidence("MaxJobCount"),
        )
    age_s = config.number("MinJobAge")
    if age_s is not None and age_s < _MIN_JOB_AGE_S and not config.has_accounting:
        yield Finding(
            "warning",
            "limits.job_age",
            f"Slurm forgets a job {age_s} s after its end, and there is no accounting: how a job ended that "
            "could not record its end remains unknown",
            "the administrator sets MinJobAge=300, or starts slurmdbd",
            config.evidence("MinJobAge"),
        )
    if "jobs" in config.flags("PrivateData"):
        yield Finding(
            "note",
            "limits.private_jobs",
            "squeue lists your own jobs alone: `status` on the runs of another user cannot ask for their "
            "jobs",
            "let their owner run `submit.py status`",
            config.evidence("PrivateData"),
        )
    if config.settings.get("enforcepartlimits", "").upper() == "NO":
        yield Finding(
            "note",
            "limits.partition_limits",
            "Slurm accepts a job above the limits of its partition and leaves it pending for ever",
            "`submit.py sweep --dry-run --test-only` refuses such a job before its submission",
            config.evidence("EnforcePartLimits"),
        )


def _accounts(
    facts: ClusterFacts, rows: Sequence[Association], profile: Profile, enforced: bool
) -> Iterator[Finding]:
    names = sorted({row.account for row in rows})
    if not names:
        if enforced:
            yield Finding(
                "error",
                "limits.association",
                f"user {facts.user} has no account: sbatch refuses every job",
                f"the administrator runs `sacctmgr add user {facts.user} account=NAME`",
                "sacctmgr lists no association",
            )
        return
    if enforced and profile.account is not None and profile.account not in names:
        yield Finding(
            "error",
            "limits.account",
            f"account {profile.account!r} is none of {facts.user}'s{nearest(profile.account, names)}",
            f"set `account` of the site profile to one of {', '.join(names)}",
            f"sacctmgr lists {', '.join(names)}",
        )
    account = profile.account or facts.default_account
    own = [row for row in rows if account in (None, row.account)] or list(rows)
    qos = sorted({name for row in own for name in row.qos})
    if enforced and profile.qos is not None and qos and profile.qos not in qos:
        yield Finding(
            "error",
            "limits.qos",
            f"QOS {profile.qos!r} is not open to account {account}{nearest(profile.qos, qos)}",
            f"set `qos` of the site profile to one of {', '.join(qos)}",
            f"sacctmgr lists {', '.join(qos)}",
        )
    most = [row.max_submit for row in own if row.max_submit is not None]
    if most and min(most) < _FEW_JOBS:
        yield Finding(
            "note",
            "limits.max_submit",
            f"at most {min(most)} jobs of account {account} may be queued and running",
            "none needed: submit.py defers the runs above the limit; repeat the command later",
            f"MaxSubmit = {min(most)}",
        )
