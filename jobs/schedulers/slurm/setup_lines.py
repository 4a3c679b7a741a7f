"""Lines of a batch script that set up the job and its nodes, by the site profile. Pure functions."""

from __future__ import annotations

import shlex

from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.schedulers.slurm.site_profile import Profile


def job_setup(profile: Profile) -> list[str]:
    """Lines that run once, in the batch shell on the first node: the modules and `setup` of the profile."""
    lines = []
    if profile.modules:
        lines += [
            "# A batch shell is not a login shell, so `module` may be undefined.",
            "type -t module >/dev/null || . /etc/profile",
            f"module load {' '.join(map(shlex.quote, profile.modules))} || exit",
            "",
        ]
    if profile.setup:
        lines += [f"# Set-up of profile {profile.name}.", *profile.setup, ""]
    return lines


def node_setup(profile: Profile) -> list[str]:
    """Lines that define the shell script `node_setup`, which each task runs before Python.

    The script runs the profile's lines and then its own arguments. It ignores signals until the agent handles
    them. If a line exits, the script runs its arguments as well, so that the agent records the failure: the
    exit code is in `SETUP_EXIT_VARIABLE`.
    """
    if not profile.node_setup:
        return []
    script = [
        'trap "" USR1 USR2 TERM',
        f'trap "{SETUP_EXIT_VARIABLE}=\\$? exec \\"\\$@\\"" EXIT',
        *profile.node_setup,
        'exec "$@"',
    ]
    return [
        f"# Set-up of each node by profile {profile.name}. Python follows also if it exits, to record that.",
        f"node_setup={shlex.quote(chr(10).join(script))}",
        "",
    ]
