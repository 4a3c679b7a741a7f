"""The emulated part of runs, in words."""

from __future__ import annotations

import pandas as pd

from analysis.read.differences import run_config
from analysis.units import seconds

_GENERAL = "ranks waited in place of compute or data loading"


def emulated_part(included: pd.DataFrame) -> str:
    """The set times of compute if all emulated runs have the same, else in general that ranks waited."""
    configs = [run_config({"path": path}) for path in included.loc[included["emulated"], "path"]]
    times = {_times(config) for config in configs}
    if len(times) != 1 or (found := times.pop()) is None:
        return _GENERAL
    forward_s, backward_s = found
    return (
        f"a step's compute is a wait of {seconds(forward_s)} (forward) and {seconds(backward_s)} (backward); "
        "communication is real"
    )


def _times(config: dict[str, object]) -> tuple[float, float] | None:
    """Set seconds of the forward and the backward pass; None for a table of layers or emulated loading."""
    simple = config.get("model.work") == "wait" and not config.get("model.table")
    times = config.get("model.forward_s"), config.get("model.backward_s")
    if not simple or config.get("model.kind") != "emulated" or config.get("data.delay_s"):
        return None
    forward_s, backward_s = times
    if not isinstance(forward_s, int | float) or not isinstance(backward_s, int | float):
        return None
    return float(forward_s), float(backward_s)
