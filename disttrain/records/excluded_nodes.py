"""Record of the nodes that later submissions exclude."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from disttrain.records.base import Record


class ExcludedNodeRecord(BaseModel):
    """One excluded node."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    host: str
    reason: str
    """One line."""
    cluster: str | None
    """Slurm's ClusterName; null: the node is excluded on every cluster that has a node of this name."""
    by: str
    """Run whose pre-flight found the node, or the user who excluded it."""
    time: str
    expires: str
    """Time from which the node is used again."""


class ExcludedNodes(Record):
    """`.excluded-nodes.json` in the runs folder: nodes that later submissions exclude."""

    nodes: list[ExcludedNodeRecord]
