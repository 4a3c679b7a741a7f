"""The doctor of runs on this machine (`jobs.schedulers.interface.Doctor`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from jobs.checks.finding import Unchecked, examine
from jobs.checks.host_checks import FOLDER, HOST, PYTHON, silent_folder
from jobs.checks.host_facts import ProbeError, ProbeTimeout, probe_here
from jobs.schedulers.interface import Diagnosis, ProfileSelection


class LocalDoctor:
    """Examines this machine alone."""

    def __init__(self, selection: ProfileSelection) -> None:
        """Raises `ConfigError` for a selected site profile."""
        if selection.given:
            raise ConfigError(f"{selection.origin} is for Slurm, and this machine has none")

    def diagnose(self, runs: Path, *, job: bool) -> Diagnosis:
        if job:
            raise ConfigError("--job needs Slurm; without it, the checks of this machine are complete")
        where = "this machine"
        subject = f"{where}, for runs without Slurm"
        reason = "no Slurm is used here (sbatch is not in PATH, or --cluster local)"
        no_cluster = Unchecked("a cluster", reason)
        try:
            here = probe_here(runs)
        except ProbeTimeout as why:
            return Diagnosis(subject, None, None, [silent_folder(runs, where, str(why))], [no_cluster])
        except ProbeError as why:
            unchecked = [no_cluster, Unchecked(f"{where} and the runs folder", str(why))]
            return Diagnosis(subject, None, None, [], unchecked)
        findings = examine((*PYTHON, *HOST, *FOLDER), here, where)
        return Diagnosis(subject, here, None, findings, [no_cluster])

    def draft_profile(self) -> str:
        raise ConfigError("--write-profile needs Slurm: a site profile describes a cluster")

    def draft_files(self, config: Mapping[str, Any]) -> tuple[str, str]:
        raise ConfigError("they need Slurm, and this machine has no sbatch")


DOCTOR = LocalDoctor
