"""Options of sbatch and srun that a site profile gives by key, checked before anything is submitted.

An option is accepted if the installed command lists it, plugins included, or if `jobs.core.sbatch_options`
has it for the installed version: `--help` leaves out some options, such as --network and --hint. Without
Slurm the tables alone decide, as of the newest version and with the options of pyxis. `option_syntax` refuses
the options that the launcher sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from disttrain.errors import closest
from jobs.core.sbatch_options import PYXIS_OPTIONS, SBATCH_OPTIONS, SRUN_OPTIONS, Value
from jobs.schedulers.slurm import commands, option_syntax
from jobs.schedulers.slurm.capabilities import CAPABILITIES, capabilities
from jobs.schedulers.slurm.site_profile import EXPEDITE, Profile
from jobs.schedulers.slurm.version import NEWEST, InstalledSlurm, SlurmVersion

_SINCE_OF_BOTH: dict[str, SlurmVersion] = {
    "container-id": SlurmVersion(23, 2),
    "tres-bind": SlurmVersion(23, 2),
    "tres-per-task": SlurmVersion(23, 2),
    "oom-kill-step": SlurmVersion(24, 5),
    "segment": SlurmVersion(24, 5),
    "stepmgr": SlurmVersion(24, 5),
    "resources": SlurmVersion(25, 5),
    "consolidate-segments": SlurmVersion(25, 11),
    "spread-segments": SlurmVersion(25, 11),
}
SBATCH_SINCE = _SINCE_OF_BOTH | {
    "resv-ports": SlurmVersion(24, 5),
    "external": SlurmVersion(24, 11),
    "mem-update": SlurmVersion(26, 5),
}
"""First version of the options of sbatch that Slurm 22.05 lacks."""
SRUN_SINCE = _SINCE_OF_BOTH | {
    "external-launcher": SlurmVersion(23, 11),
    "treewidth": SlurmVersion(23, 11),
    "wait-for-children": SlurmVersion(25, 5),
}
"""The same for srun."""

_LEAST_LETTERS = 3
"""Letters from which a beginning of a name suggests that name."""


@dataclass(frozen=True)
class _Command:
    """A command of Slurm, and the options that it accepts on this host."""

    name: str
    table: Mapping[str, Value]
    listed: frozenset[str]
    """Options that the installed command lists."""
    since: Mapping[str, SlurmVersion]
    """First version of newer options."""
    reserved: Mapping[str, str]
    """Options that a profile cannot set, each with the reason."""
    version: SlurmVersion | None

    @property
    def known(self) -> set[str]:
        """Options that the command accepts; without Slurm, those of the newest version and of pyxis."""
        version = self.version or NEWEST
        of_plugins = self.listed if self.version else PYXIS_OPTIONS.keys()
        return {name for name in self.table if self.since.get(name, version) <= version} | of_plugins


def check_options(profile: Profile, slurm: InstalledSlurm) -> tuple[str, str] | None:
    """Key and reason of the first option of the profile that this Slurm would refuse; None without one."""
    return next(_problems(profile, slurm), None)


def _problems(profile: Profile, slurm: InstalledSlurm) -> Iterator[tuple[str, str]]:
    version, has = slurm.version or NEWEST, capabilities(slurm.version)
    if profile.exclusive == "topo" and "exclusive_topo" not in has:
        first = CAPABILITIES["exclusive_topo"].since
        yield "exclusive", f"'topo' needs Slurm {first}, and this is {version}"
    if "rank" in str(profile.srun.get("cpu-bind")).split(",") and "cpu_bind_rank" not in has:
        yield "srun.cpu-bind", f"'rank' is gone since Slurm {CAPABILITIES['cpu_bind_rank'].until}"
    sbatch = _Command(
        "sbatch",
        SBATCH_OPTIONS,
        slurm.sbatch_options,
        SBATCH_SINCE,
        option_syntax.SBATCH_TAKEN,
        slurm.version,
    )
    srun = _Command(
        "srun", SRUN_OPTIONS, slurm.srun_options, SRUN_SINCE, option_syntax.SRUN_TAKEN, slurm.version
    )
    for command, options in ((sbatch, profile.sbatch), (srun, profile.srun)):
        for name, value in options.items():
            why = _problem(command, name, value)
            if why is not None:
                yield f"{command.name}.{name}", why
    if profile.sbatch.get("requeue") == EXPEDITE and (why := _expedite_problem(slurm.version)):
        yield "sbatch.requeue", why


def _problem(command: _Command, name: str, value: Literal[True] | str) -> str | None:
    version, known = command.version or NEWEST, command.known
    if name not in known:
        if name in command.since:
            return f"needs Slurm {command.since[name]}, and this is {version}"
        any_version = "" if command.version else ", nor of an older one"
        return (
            f"no option of {command.name} of Slurm {version}{any_version}"
            f"{_suggestion(name, known, command.reserved)}"
        )
    kind = command.table.get(name, PYXIS_OPTIONS.get(name))  # None: an option of another plugin
    if kind == "none" and value is not True:
        return f"takes no value: give true, not {value!r}"
    if kind == "required" and value is True:
        return "needs a value"
    return None


def _suggestion(name: str, known: set[str], reserved: Mapping[str, str]) -> str:
    """The nearest option, with the key to set in its place if the launcher sets it."""
    names = sorted(known | reserved.keys())
    beginnings = [each for each in names if each.startswith(name)] if len(name) >= _LEAST_LETTERS else []
    close = closest(name, names) or next(iter(beginnings), None)
    if close is None:
        return ""
    return f"; did you mean '{close}'?" + (f" It is reserved: {reserved[close]}" if close in reserved else "")


def _expedite_problem(version: SlurmVersion | None) -> str | None:
    """Why this cluster has no expedited requeue; None if it has, or if Slurm does not answer."""
    needed = CAPABILITIES["expedited_requeue"]
    if "expedited_requeue" not in capabilities(version):
        return f"needs Slurm {needed.since}, and this is {version}"
    if version is None:
        return None
    settings = [commands.setting(name) for name in ("SlurmctldParameters", "SchedulerParameters")]
    if None in settings or any("enable_expedited_requeue" in (text or "") for text in settings):
        return None
    return "this cluster lacks SlurmctldParameters=enable_expedited_requeue"
