"""Findings on requeues: exit codes, held jobs, delay, lost nodes. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jobs.core.requeue_policy import EXIT_DO_NOT_REQUEUE
from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.slurm.capabilities import capabilities
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config

_OWN_CODES = (0, 1, 69, 75, EXIT_DO_NOT_REQUEUE)
"""Exit codes of a job's step (docs/requeue.md)."""
_CRED_EXPIRE_S = 120
"""Slurm's default lifetime of a credential; a requeued job starts after it."""
_LONG_DELAY_S = 60
_BATCH_REQUEUES = 5
"""Slurm's default of max_batch_requeue."""


def findings(facts: ClusterFacts, config: Config) -> Iterator[Finding]:
    yield from _exit_codes(config)
    if config.number("JobRequeue") == 0:
        yield Finding(
            "note",
            "requeues.default",
            "Slurm requeues no job that does not request it, not even after a node failure",
            "none for submit.py, whose jobs have --requeue; give it in scripts of your own",
            config.evidence("JobRequeue"),
        )
    most = next(
        (
            flag.partition("=")[2]
            for flag in config.flags("SchedulerParameters")
            if "max_batch_requeue" in flag
        ),
        "",
    )
    if most.isdigit() and int(most) < _BATCH_REQUEUES:
        yield Finding(
            "note",
            "requeues.held",
            f"Slurm holds a job whose start failed {most} times, as after a failed prolog",
            "free it by `scontrol release JOB`, and exclude the node (`--slurm exclude=NODE`)",
            f"SchedulerParameters has max_batch_requeue={most}",
        )
    yield from _delay(config)
    timeout_s = config.number("SlurmdTimeout")
    if timeout_s == 0:
        yield Finding(
            "warning",
            "requeues.lost_node",
            "Slurm never marks a silent node as down, so the job of a lost node is not requeued",
            "cancel such a run and `submit.py resume` it; the administrator can set SlurmdTimeout=300",
            config.evidence("SlurmdTimeout"),
        )
    elif timeout_s is not None and timeout_s > 300:
        yield Finding(
            "note",
            "requeues.lost_node",
            f"a lost node holds up its job for {timeout_s} s, until Slurm marks the node as down",
            "none needed; the administrator can lower SlurmdTimeout",
            config.evidence("SlurmdTimeout"),
        )


def _exit_codes(config: Config) -> Iterator[Finding]:
    for name, effect in (("RequeueExit", "requeues"), ("RequeueExitHold", "requeues and holds")):
        listed = _codes(config.text(name) or "")
        own = [code for code in _OWN_CODES if code in listed]
        if own:
            yield Finding(
                "error",
                "requeues.exit_codes",
                f"Slurm {effect} every job that ends with exit code {', '.join(map(str, own))}, which jobs "
                "of submit.py use for other meanings: finished or refused runs would start again",
                f"the administrator removes {', '.join(map(str, own))} from {name}",
                config.evidence(name),
            )


def _codes(text: str) -> set[int]:
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def _delay(config: Config) -> Iterator[Finding]:
    """A requeued job waits for `requeue_delay` (25.11 and newer), else for the lifetime of its credential."""
    parameters = [*config.flags("SchedulerParameters"), *config.flags("SlurmctldParameters")]
    given = {name: value for name, _, value in (flag.partition("=") for flag in parameters)}
    if given.get("requeue_delay", "").isdigit():
        delay_s, evidence = int(given["requeue_delay"]), f"requeue_delay={given['requeue_delay']}"
    else:
        expire = [flag for flag in config.flags("AuthInfo") if flag.startswith("cred_expire=")]
        text = expire[0].partition("=")[2] if expire else ""
        delay_s = int(text) + 1 if text.isdigit() else _CRED_EXPIRE_S + 1
        evidence = f"AuthInfo has {expire[0]}" if expire else "cred_expire is not set in AuthInfo"
    if delay_s >= _LONG_DELAY_S:
        newer = config.version is not None and "requeue_delay" in capabilities(config.version)
        setting = "SchedulerParameters=requeue_delay=5" if newer else "AuthInfo=cred_expire=30"
        yield Finding(
            "note",
            "requeues.delay",
            f"a requeued job starts {delay_s} s after its requeue at the earliest",
            f"none needed; the administrator can set {setting}",
            evidence,
        )
