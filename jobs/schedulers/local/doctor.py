"""The doctor of runs on this machine (`jobs.schedulers.doctor.diagnosis.Doctor`)."""

from __future__ import annotations

from pathlib import Path

from disttrain.errors import ConfigError
from jobs.schedulers.base import ProfileSelection
from jobs.schedulers.doctor.diagnosis import Diagnosis, Finding, Unchecked, worst_first
from jobs.schedulers.doctor.folder_checks import folder_findings, silent_folder
from jobs.schedulers.doctor.host_checks import host_findings, python_findings
from jobs.schedulers.doctor.probe import as_json
from jobs.schedulers.doctor.run_probe import ProbeError, ProbeTimeout, probe_here


class LocalDoctor:
    """Examines this machine alone."""

    def __init__(self, selection: ProfileSelection) -> None:
        """Raises `ConfigError` for a selected site profile."""
        if selection.given:
            raise ConfigError(f"{selection.origin} is for Slurm, and this machine has none")

    def diagnose(self, runs: Path, *, job: bool) -> Diagnosis:
        subject = "this machine, for runs without Slurm"
        unchecked = [
            Unchecked("a cluster", "no Slurm is used here (sbatch is not in PATH, or --cluster local)")
        ]
        if job:
            raise ConfigError("--job needs Slurm; without it, the checks of this machine are complete")
        try:
            here = probe_here(runs)
        except ProbeTimeout as why:
            silent = silent_folder(runs, "this machine", str(why))
            return Diagnosis(subject, {**as_json(None), "cluster": None}, (silent,), tuple(unchecked))
        except ProbeError as why:
            unchecked.append(Unchecked("this machine and the runs folder", str(why)))
            return Diagnosis(subject, {**as_json(None), "cluster": None}, (), tuple(unchecked))
        findings: list[Finding] = [
            *python_findings(here.host, "this machine", needs_submitit=False),
            *host_findings(here.host, "this machine"),
            *folder_findings(here.folder, "this machine", several_hosts=False),
        ]
        if here.host.gpus == 0:
            findings.append(
                Finding(
                    "note",
                    "gpus.none",
                    "this machine has no NVIDIA GPU: runs train on its processors",
                    "none needed",
                    "no /dev/nvidia0",
                )
            )
        facts = {**as_json(here), "cluster": None}
        return Diagnosis(subject, facts, worst_first(findings), tuple(unchecked))

    def draft_profile(self, name: str) -> str:
        raise ConfigError("--write-profile needs Slurm: a site profile describes a cluster")
