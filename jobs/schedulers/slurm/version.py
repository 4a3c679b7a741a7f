"""Version of the installed Slurm and options of its sbatch and srun, probed once. Standard library only."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import dataclass

from jobs.schedulers.slurm.commands import query_or_none

_PROBE_S = 10.0
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])")


@dataclass(frozen=True, order=True)
class SlurmVersion:
    """A release of Slurm: year and month, without its maintenance release."""

    year: int
    month: int

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02d}"


NEWEST = SlurmVersion(26, 5)
"""The newest version of which this code was written. An unknown or absent Slurm is taken for this version."""


@dataclass(frozen=True)
class InstalledSlurm:
    """Slurm on this host."""

    version: SlurmVersion | None
    """None without Slurm, or if sbatch does not print its version."""
    sbatch_options: frozenset[str] = frozenset()
    """Long options that `sbatch --help` and `--usage` list, with those of plugins; empty without Slurm."""
    srun_options: frozenset[str] = frozenset()
    """Those of srun."""


def parse_version(text: str) -> SlurmVersion | None:
    """The version in the output of `sbatch --version`, such as `slurm-wlm 22.05.8`; None without one."""
    found = re.search(r"\bslurm\S*\s+(\d{2})\.(\d{2})\b", text)
    return SlurmVersion(int(found[1]), int(found[2])) if found else None


def parse_options(text: str) -> frozenset[str]:
    """Long options, without their dashes, in the output of `--help` or `--usage`."""
    return frozenset(_OPTION.findall(text))


def installed_slurm() -> InstalledSlurm:
    """Slurm on this host. Its commands are called once for each file of sbatch on the PATH.

    sbatch prints nothing but an error if it finds no configuration of Slurm.
    """
    path = shutil.which("sbatch")
    return InstalledSlurm(None) if path is None else _probe(path)


@functools.cache
def _probe(sbatch: str) -> InstalledSlurm:
    version = parse_version(query_or_none([sbatch, "--version"], _PROBE_S) or "")
    if version is None:
        return InstalledSlurm(None)
    return InstalledSlurm(version, _listed_options(sbatch), _listed_options(shutil.which("srun")))


def _listed_options(command: str | None) -> frozenset[str]:
    """Options that a command lists; empty without it."""
    if command is None:
        return frozenset()
    listings = [query_or_none([command, flag], _PROBE_S) or "" for flag in ("--help", "--usage")]
    return parse_options("\n".join(listings))
