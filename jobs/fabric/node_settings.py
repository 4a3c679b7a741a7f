"""Communication variables that are set on a node before a run adds its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobs.fabric.description import Fabric
from jobs.fabric.findings import Setting
from jobs.fabric.registry import registry

ENVIRONMENT = "environment"
"""Origin of a variable that processes inherit."""
Source = tuple[Mapping[str, str], str]
"""Values by variable, and their origin."""


def node_settings(
    fabric: Fabric, environ: Mapping[str, str], further: Iterable[Source] = ()
) -> dict[str, Setting]:
    """Communication variables by NCCL's precedence: the environment, the user's file, the machine's file.

    Sources of `further` come before all of them, the last one first.
    """
    files = [(file.as_dict(), file.path) for file in reversed(fabric.software.nccl_files)]
    sources: list[Source] = [*files, (environ, ENVIRONMENT), *further]
    known = registry()
    return {
        name: Setting(name, str(value), origin)
        for variables, origin in sources
        for name, value in variables.items()
        if known.is_of_interest(name)
    }
