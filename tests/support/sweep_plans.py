"""A small sweep for the digits, and its expansion into runs."""

from __future__ import annotations

from typing import Any

from disttrain.config.parsing import Draft
from sweeps.expand import ExistingSweep, SweepPlan, expand
from sweeps.overrides import parse_flag, parse_set

BASE: dict[str, Any] = {
    "model": {"kind": "mlp"},
    "data": {"kind": "digits"},
    "train": {"steps": 10, "local_batch_size": 8},
}


def draft(**sections: Any) -> Draft:
    """The config of the sweep; `sections` replace its own."""
    return Draft({**{name: dict(fields) for name, fields in BASE.items()}, **sections})


def expanded(
    base: Draft, *sets: str, nodes: str = "1", existing: ExistingSweep | None = None, **kwargs: Any
) -> SweepPlan:
    """The plan of a sweep on these numbers of nodes, with `KEY=VALUES` as `--set` takes them."""
    overrides = [parse_flag("--nodes", "resources.nodes", nodes.split()), *map(parse_set, sets)]
    return expand(base, overrides, name="s", existing=existing, **kwargs)


def run_names(plan: SweepPlan) -> list[str]:
    return [run.name for run in plan.runs]
