"""Notices: reasons for which the numbers of a report could mislead."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.claims import ALIKE
from analysis.efficiency import Curve
from analysis.read.attempts import one_machine_of
from analysis.read.samples import OTHER_LOAD, busy_shares
from analysis.report import overlap_text, preflight_text, stationarity_text
from analysis.report.common import repeat_advice, sentence
from analysis.report.emulation_text import emulated_part
from analysis.report.model import Notice, RunOverlap
from analysis.step_statistics import RunStatistics
from analysis.study import Study
from analysis.units import number, percent, plural

FEW_STEPS = 30
"""Runs with fewer measured steps draw a warning."""

LATE_SHARE = 0.01
"""Emulated passes draw a warning if they end later than planned by more than this share of the step."""

SKIPPED_SHARE = 0.01
"""Runs that skipped this share of their updates draw a warning. The search for a loss scale skips a few."""

NAMED_RECORDS = 5
"""Unreadable or incomplete records that a warning names."""

_SAME = {**ALIKE, "cpu_count": "number of processors"}
"""Columns that should be equal in all compared runs, and their names in a sentence."""


def of_study(study: Study, overlaps: Sequence[RunOverlap]) -> list[Notice]:
    """`notices` of a study."""
    compared = [study] if study.against is None else [study, study.against]
    return notices(
        study.runs,
        study.curves,
        study.unreadable,
        overlaps,
        study.statistics,
        incomplete=study.incomplete,
        others=busy_shares(study.included, study.frames.hardware),
        rejected=[text for each in compared for text in preflight_text.rejected(each.runs)],
    )


def notices(
    table: pd.DataFrame,
    curves: Sequence[Curve],
    unreadable: Sequence[str] = (),
    overlaps: Sequence[RunOverlap] = (),
    statistics: RunStatistics | None = None,
    incomplete: Sequence[str] = (),
    others: pd.Series | None = None,
    rejected: Sequence[str] = (),
) -> list[Notice]:
    """Reasons for which these numbers could mislead, most serious first.

    `unreadable`: messages on step records that cannot be read. `statistics`: of the steps of the runs.
    `incomplete`: messages on runs whose ranks lack step records. `others`: of `busy_shares`. `rejected`:
    messages on runs left out for their pre-flight.
    """
    included = table[table["included"]]
    if included.empty:
        return []
    warnings = [
        *rejected,
        *_single_repeats(included, curves),
        *_ingested(included),
        *_shared_processors(included),
        *_other_load(included, others),
        *overlap_text.warning(overlaps, included),
    ]
    warnings += stationarity_text.warnings(statistics or {}, included)
    warnings += [*_differences(included, curves), *_short_runs(included), *preflight_text.warnings(included)]
    notes = [f"{row['sweep']}/{row['run']} {row['note']}." for row in _with_a_note(included)]
    if (included["device"] == "cpu").all() and not included["emulated"].any():
        backends = " and ".join(sorted(included["backend"].dropna().unique()))
        through = f", communicating through {backends}" if backends else ""
        notes.append(f"Measured on CPU{through}. These numbers do not predict GPUs or a fast network.")
    emulated = bool(included["emulated"].any())
    machine = one_machine_text(included)
    notes += [machine] if machine and not emulated else []  # the banner has it for emulated runs
    notes += stationarity_text.truncations(included)
    notes += preflight_text.notes(included)
    warnings += [*_late_emulation(included), *_unreadable_records(unreadable)]
    warnings += _incomplete_records(incomplete)
    found = []
    if emulated:
        some = int(included["emulated"].sum())
        which = (
            ""
            if some == len(included)
            else f" This holds for {some} of {len(included)} runs, not for the others."
        )
        text = (
            f"Emulated: {emulated_part(included)}. These numbers show how the software overlaps and "
            "communicates, not how hardware performs."
        )
        found = [Notice(kind="emulated", text=sentence([text + which, machine]))]
    found += [Notice(kind="warning", text=text) for text in warnings]
    found += _skipped_steps(included)
    return found + [Notice(kind="note", text=text) for text in notes]


def _with_a_note(included: pd.DataFrame) -> list[dict[Hashable, Any]]:
    return included[included["note"].fillna("") != ""].to_dict("records")


def _single_repeats(included: pd.DataFrame, curves: Sequence[Curve]) -> list[str]:
    counts = [len(point.runs) for curve in curves for point in curve.points]
    alone = counts.count(1)
    if not alone:
        return []
    points = "sizes" if len(curves) == 1 else "points (a configuration at a size)"
    which = f"All {points} have" if alone == len(counts) else f"{alone} of {len(counts)} {points} have"
    return [
        f"{which} one repeat: the spread between repeats is unknown, so no difference is settled. To settle "
        f"them, {repeat_advice(included.to_dict('records'))}."
    ]


def one_machine_text(included: pd.DataFrame) -> str:
    """Sentence on nodes that are one machine; empty without any."""
    several = included[included["nodes"] > 1]
    found = one_machine_of(list(several["path"]))
    if not found:
        return ""
    nodes = "network namespaces" if set(found) == {"mini-cluster"} else "groups of processes"
    which = "The nodes" if len(found) == len(several) else f"In {len(found)} runs, the nodes"
    processors = (
        plural(int(several["cpu_count"].max()), "processor") if several["cpu_count"].notna().any() else ""
    )
    shared = f" with {processors}" if processors else ""
    return f"{which} are {nodes} of one machine{shared}: up to {int(several['nodes'].max())} nodes share it."


def _ingested(included: pd.DataFrame) -> list[str]:
    tables = ", ".join(sorted(included["ingested"].dropna().unique()))
    some = int(included["ingested"].notna().sum())
    if not some:
        return []
    which = "all runs" if some == len(included) else f"{some} of {len(included)} runs"
    return [f"Ingested: the step times of {which} come from {tables}. This program did not measure them."]


def _shared_processors(included: pd.DataFrame) -> list[str]:
    shared = included[included["oversubscribed"]]
    if shared.empty:
        return []
    which = "all runs" if len(shared) == len(included) else f"{len(shared)} of {len(included)} runs"
    most = shared.loc[shared["world_size"].idxmax()]
    ranks, processors = plural(int(most["world_size"]), "rank"), plural(int(most["cpu_count"]), "processor")
    what = f"processors in {which}: up to {ranks} on {processors}"
    if most["device"] != "cpu":
        what = f"a GPU in {which}: up to {ranks} on one {most['device']}"
    return [f"Ranks shared {what}. The curve describes this host, not scaling over machines."]


def _other_load(included: pd.DataFrame, shares: pd.Series | None) -> list[str]:
    if shares is None or (loaded := included[shares >= OTHER_LOAD]).empty:
        return []
    most = loaded.loc[shares.idxmax()]
    which = "all runs" if len(loaded) == len(included) else f"{len(loaded)} of {len(included)} runs"
    return [
        f"Other processes used the processors during {which}: in {most['sweep']}/{most['run']} they kept "
        f"{number(shares.max() * most['cpu_count'])} of {most['cpu_count']} processors busy. Step times "
        "include this load."
    ]


def _unreadable_records(messages: Sequence[str]) -> list[str]:
    if not messages:
        return []
    return [f"Unreadable step records are left out of the figures: {_some(messages)}."]


def _incomplete_records(messages: Sequence[str]) -> list[str]:
    if not messages:
        return []
    return [
        f"Step records are incomplete, so stragglers and step times of these runs are those of the recorded "
        f"steps alone: {_some([_short(message) for message in messages])}."
    ]


def _short(message: str) -> str:
    """A message of `missing_ranks` that begins with `sweep/run` in place of the path."""
    path, found, text = message.partition("/attempts: ")
    return f"{'/'.join(Path(path).parts[-2:])}: {text}" if found else message


def _some(messages: Sequence[str]) -> str:
    more = f"; and {len(messages) - NAMED_RECORDS} more" if len(messages) > NAMED_RECORDS else ""
    return "; ".join(messages[:NAMED_RECORDS]) + more


def _late_emulation(included: pd.DataFrame) -> list[str]:
    late = included[included["emulation_late_s"] > LATE_SHARE * included["step_s"]]
    if late.empty:
        return []
    share = float((late["emulation_late_s"] / late["step_s"]).max())
    most = late.loc[(late["emulation_late_s"] / late["step_s"]).idxmax()]
    return [
        f"Emulated layers ended late in {len(late)} of {len(included)} runs, by up to {percent(share)} of "
        f"the step, in {most['sweep']}/{most['run']}. Ranks did not get a processor in time, so "
        "step times are too long by about as much."
    ]


def _short_runs(included: pd.DataFrame) -> list[str]:
    few = included[included["measured_steps"] < FEW_STEPS]
    if few.empty:
        return []
    shortest = plural(int(few["measured_steps"].min()), "measured step")
    which = "All runs are" if len(few) == len(included) else f"{len(few)} of {len(included)} runs are"
    return [f"{which} short: fewer than {FEW_STEPS} measured steps (the shortest has {shortest})."]


def _skipped_steps(included: pd.DataFrame) -> list[Notice]:
    """A warning where a run skipped `SKIPPED_SHARE` of its steps, else a note."""
    some = included[included["skipped_steps"].fillna(0) > 0]
    if some.empty:
        return []
    shares = some["skipped_steps"] / some["steps"]
    most = some.loc[shares.idxmax()]
    steps = plural(int(some["skipped_steps"].sum()), "step")
    text = (
        f"Updates were skipped in {len(some)} of {len(included)} runs, because the gradient norm was not "
        f"finite (NaN, infinity or an fp16 overflow): {steps} in all, most in {most['sweep']}/{most['run']} "
        f"({most['skipped_steps']} of {most['steps']}). Throughput counts these steps."
    )
    return [Notice(kind="warning" if shares.max() >= SKIPPED_SHARE else "note", text=text)]


def _differences(included: pd.DataFrame, curves: Sequence[Curve]) -> list[str]:
    """One sentence for each column of `_SAME` that differs between compared runs."""
    texts = []
    for column, noun in _SAME.items():
        found: dict[str, list[str]] = {}
        for curve in curves:
            names = [run for point in curve.points for run in point.runs]
            runs = included[(included["sweep"] == curve.sweep) & included["run"].isin(names)]
            if column == "cpu_count" and (runs[column] / runs["ranks_per_node"]).nunique() < 2:
                continue  # a node with more ranks has more processors
            values = sorted({str(value) for value in runs[column].dropna()})
            if len(values) > 1:
                found[curve.label] = values
        if found:
            values = sorted(set().union(*found.values()))
            where = f" (in {'; '.join(found)})" if len(curves) > 1 else ""
            texts.append(f"Compared runs differ in {noun}{where}: {', '.join(values)}.")
    return texts
