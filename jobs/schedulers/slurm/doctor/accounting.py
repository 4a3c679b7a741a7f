"""Findings on Slurm's accounting. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.schedulers.doctor.diagnosis import Finding
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config


def findings(facts: ClusterFacts, config: Config) -> Iterator[Finding]:
    if not config.has_accounting:
        yield Finding(
            "warning",
            "accounting.none",
            "the cluster has no accounting: GPU-hours of jobs that could not record their end are missing, "
            "and Slurm forgets how a job ended after MinJobAge",
            "the administrator starts slurmdbd; run directories alone give states and times until then",
            config.evidence("AccountingStorageType"),
        )
        return
    if "finished" in facts.refusals:
        yield Finding(
            "warning",
            "accounting.unreachable",
            "accounting does not answer: `status --long` has no GPU-hours until it does",
            "repeat later; if it stays, the administrator looks at slurmdbd",
            facts.refusals["finished"],
        )
    if facts.has_gpus and not any(
        flag.startswith("gres/gpu") for flag in config.flags("AccountingStorageTRES")
    ):
        yield Finding(
            "warning",
            "accounting.gpus",
            "accounting does not count GPUs: `status --long` takes their number from the runs' configs",
            "the administrator sets AccountingStorageTRES=gres/gpu",
            config.evidence("AccountingStorageTRES"),
        )
    if "job_comment" not in config.flags("AccountingStoreFlags"):
        yield Finding(
            "note",
            "accounting.comment",
            "accounting drops the comment of a job, by which a job is found whose receipt was lost",
            "none needed: submit.py searches squeue, which has the comment until MinJobAge after the end",
            config.evidence("AccountingStoreFlags"),
        )
