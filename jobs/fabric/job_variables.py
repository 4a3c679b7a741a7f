"""The communication variables of a job on one node: those that are set, those derived, and findings.

A value that the user or the site sets wins over a derived one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.fabric.derive import DerivedVariable, derive
from jobs.fabric.description import Fabric
from jobs.fabric.findings import Finding, Setting
from jobs.fabric.lint import lint
from jobs.fabric.registry import registry

ENVIRONMENT = "environment"
"""Origin of a variable that processes inherit."""
Source = tuple[Mapping[str, str], str]
"""Values by variable, and their origin."""


@dataclass(frozen=True)
class JobVariables:
    """The communication variables of a job on one node."""

    settings: Mapping[str, Setting]
    """Those that the user or the site sets."""
    derived: Sequence[DerivedVariable]
    """Those that the network needs, also where they are set."""
    findings: Sequence[Finding]

    @property
    def added(self) -> list[DerivedVariable]:
        """The derived variables that are not set."""
        return [each for each in self.derived if each.name not in self.settings]

    @property
    def values(self) -> dict[str, str]:
        """The values that hold."""
        return values(self.derived) | {name: each.value for name, each in self.settings.items()}


def node_settings(
    fabric: Fabric, environ: Mapping[str, str], further: Iterable[Source] = ()
) -> dict[str, Setting]:
    """Communication variables by NCCL's precedence: the environment, the user's file, the machine's file.

    Sources of `further` come before all of them, the last one first.
    """
    files = [(file.as_dict(), file.path) for file in reversed(fabric.software.nccl_files)]
    known = registry()
    return {
        name: Setting(name, str(value), origin)
        for variables, origin in [*files, (environ, ENVIRONMENT), *further]
        for name, value in variables.items()
        if known.is_of_interest(name)
    }


def job_variables(
    fabric: Fabric,
    settings: Mapping[str, Setting],
    nodes: int,
    gpus_per_node: int,
    *,
    interface: str | None = None,
    srun_network: str | None = None,
) -> JobVariables:
    """The variables of a job with these settings; see `derive` and `lint` for the other parameters."""
    given = {name: each.value for name, each in settings.items()}
    derived = derive(fabric, nodes, gpus_per_node, interface=interface, given=given)
    found = lint(
        {each.name: Setting(each.name, each.value, "derived") for each in derived} | dict(settings),
        fabric=fabric,
        nodes=nodes,
        nccl_version=fabric.software.nccl_version,
        srun_network=srun_network,
        derived=values(derived),
    )
    return JobVariables(settings, derived, found)


def values(derived: Iterable[DerivedVariable]) -> dict[str, str]:
    """Values by name."""
    return {each.name: each.value for each in derived}
