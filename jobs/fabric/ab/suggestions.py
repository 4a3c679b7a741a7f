"""The variables that an experiment without arguments compares: derived ones that only change the speed."""

from __future__ import annotations

from jobs.fabric.derive import Severity, derive
from jobs.fabric.description import Fabric


def suggestions(fabric: Fabric, nodes: int, gpus_per_node: int) -> dict[str, str]:
    """Values by variable; none on most networks.

    Variables for correct data and for the connection are left out, because a job without them may compute
    wrong data or fail. Names of devices are left out, because nodes may differ. `gpus_per_node` is 0 on the
    CPU.
    """
    return {
        each.name: each.value
        for each in derive(fabric, nodes, gpus_per_node)
        if each.severity is Severity.SPEED and not each.per_node
    }
