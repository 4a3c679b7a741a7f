"""Sentences about the checks of the nodes before the ranks started."""

from __future__ import annotations

import pandas as pd

from analysis.units import plural

_NAMED = 8
"""Runs that one sentence names."""


def warnings(included: pd.DataFrame) -> list[str]:
    """A warning about runs on nodes that a check found fault with."""
    warned = included[included["preflight"] == "warned"]
    if warned.empty:
        return []
    first = warned.iloc[0]
    more = (
        "" if len(warned) == 1 else f" The pre-flights of {len(warned)} runs had warnings (preflight.json)."
    )
    hint = "" if len(warned) == len(included) else " `report --reject-warned` leaves such runs out."
    return [f"Pre-flight of {first['sweep']}/{first['run']}: {first['preflight_warning']}.{more}{hint}"]


def rejected(runs: pd.DataFrame) -> list[str]:
    """The warning that names the first runs left out for their pre-flight, with the reasons."""
    left = runs[runs["rejected"].fillna(value=False)]
    if left.empty:
        return []
    finished = len(left) + int(runs["included"].sum())
    first = left.head(_NAMED)
    named = "; ".join(f"{row.sweep}/{row.run}: {row.preflight_warning}" for row in first.itertuples())
    if len(left) > len(first):
        named += f"; and {len(left) - len(first)} more"
    return [
        f"Left out for their pre-flight (--reject-warned): {len(left)} of {finished} finished runs: {named}."
    ]


def _checked(runs: int, total_s: float, most_s: float) -> str:
    if runs == 1:
        return f"Before the start of 1 run, its nodes were checked for {total_s:.1f} s."
    return (
        f"Before the start of {runs} runs, the checks of their nodes took {total_s:.1f} s in total, at "
        f"most {most_s:.1f} s in one run."
    )


def notes(included: pd.DataFrame) -> list[str]:
    """Cost of the checks, and runs without them; nothing where no run has a record of them."""
    found = included[included["preflight"].notna()]
    skipped = int((found["preflight"] == "skipped").sum())
    checked = found[found["preflight"] != "skipped"]
    text = []
    if not checked.empty:
        most, total = float(checked["preflight_s"].max()), float(checked["preflight_s"].sum())
        text.append(
            f"{_checked(len(checked), total, most)} The time includes the wait for nodes that started later."
        )
    if skipped:
        text.append(f"{plural(skipped, 'run')} started without checks of the nodes (--skip-preflight).")
    return text
