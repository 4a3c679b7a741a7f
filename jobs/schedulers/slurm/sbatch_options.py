"""Options of sbatch that a site profile may give by key, checked against Slurm before anything is submitted.

An option is accepted if the installed sbatch lists it, plugins included, or if the table below has it for the
installed version: `sbatch --help` leaves out some options, such as --network and --hint. Without Slurm the
table alone decides, as of the newest version. `option_syntax` refuses the options that the launcher sets.
"""

from __future__ import annotations

from typing import Literal

from disttrain.errors import closest
from jobs.schedulers.slurm import commands, option_syntax
from jobs.schedulers.slurm.capabilities import CAPABILITIES, capabilities
from jobs.schedulers.slurm.site_profile import EXPEDITE, Profile
from jobs.schedulers.slurm.version import NEWEST, InstalledSlurm, SlurmVersion

Value = Literal["none", "optional", "required"]

_WITH_VALUE = (
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint",
    "clusters", "comment", "constraint", "container", "container-id", "core-spec", "cores-per-socket",
    "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution",
    "error", "exclude", "export", "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq",
    "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input",
    "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mem-update", "mincpus", "network", "nodefile", "nodelist", "nodes",
    "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode",
    "output", "partition", "prefer", "priority", "profile", "qos", "reservation", "resources", "segment",
    "signal", "sockets-per-node", "switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp",
    "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey", "wrap",
)  # fmt: skip
_WITH_OPTIONAL_VALUE = (
    "exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "parsable", "propagate", "requeue",
    "resv-ports",
)  # fmt: skip
_WITHOUT_VALUE = (
    "consolidate-segments", "contiguous", "external", "help", "hold", "ignore-pbs", "no-requeue",
    "overcommit", "oversubscribe", "quiet", "reboot", "spread-job", "spread-segments", "stepmgr", "test-only",
    "usage", "use-min-nodes", "verbose", "version", "wait",
)  # fmt: skip
OPTIONS: dict[str, Value] = {
    **dict.fromkeys(_WITH_VALUE, "required"),
    **dict.fromkeys(_WITH_OPTIONAL_VALUE, "optional"),
    **dict.fromkeys(_WITHOUT_VALUE, "none"),
}
"""Options of sbatch, each with whether it takes a value."""
SINCE: dict[str, SlurmVersion] = {
    "container-id": SlurmVersion(23, 2),
    "tres-bind": SlurmVersion(23, 2),
    "tres-per-task": SlurmVersion(23, 11),
    "oom-kill-step": SlurmVersion(24, 5),
    "resv-ports": SlurmVersion(24, 5),
    "segment": SlurmVersion(24, 5),
    "stepmgr": SlurmVersion(24, 5),
    "external": SlurmVersion(24, 11),
    "resources": SlurmVersion(25, 5),
    "consolidate-segments": SlurmVersion(25, 11),
    "spread-segments": SlurmVersion(25, 11),
    "mem-update": SlurmVersion(26, 5),
}
"""First version of the options that Slurm 22.05 lacks."""


def known_options(slurm: InstalledSlurm) -> set[str]:
    """Options that sbatch accepts on this host; without Slurm, those of the newest version."""
    version = slurm.version or NEWEST
    return {name for name in OPTIONS if SINCE.get(name, version) <= version} | slurm.sbatch_options


def check_options(profile: Profile, slurm: InstalledSlurm) -> tuple[str, str] | None:
    """Key and reason of the first option of the profile that this Slurm would refuse; None without one."""
    version, has = slurm.version or NEWEST, capabilities(slurm.version)
    if profile.exclusive == "topo" and "exclusive_topo" not in has:
        return (
            "exclusive",
            f"'topo' needs Slurm {CAPABILITIES['exclusive_topo'].since}, and this is {version}",
        )
    if "rank" in str(profile.srun.get("cpu-bind")).split(",") and "cpu_bind_rank" not in has:
        return "srun.cpu-bind", f"'rank' is gone since Slurm {CAPABILITIES['cpu_bind_rank'].until}"
    checks = ((name, _problem(name, value, slurm)) for name, value in profile.sbatch.items())
    return next(((f"sbatch.{name}", why) for name, why in checks if why), None)


def _problem(name: str, value: Literal[True] | str, slurm: InstalledSlurm) -> str | None:
    version, known = slurm.version or NEWEST, known_options(slurm)
    if name not in known:
        if name in SINCE:
            return f"needs Slurm {SINCE[name]}, and this is {version}"
        any_version = "" if slurm.version else ", nor of an older one"
        return f"no option of sbatch of Slurm {version}{any_version}{_suggestion(name, known)}"
    kind = OPTIONS.get(name)  # None: an option of a plugin
    if kind == "none" and value is not True:
        return f"takes no value: give true, not {value!r}"
    if kind == "required" and value is True:
        return "needs a value"
    if name == "requeue" and value == EXPEDITE:
        return _expedite_problem(slurm.version)
    return None


def _suggestion(name: str, known: set[str]) -> str:
    """The nearest option, with the key to set in its place if the launcher sets it."""
    reasons = option_syntax.SBATCH_TAKEN
    close = closest(name, sorted(known | reasons.keys()))
    if close is None:
        return ""
    return f"; did you mean '{close}'?" + (f" It is reserved: {reasons[close]}" if close in reasons else "")


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
