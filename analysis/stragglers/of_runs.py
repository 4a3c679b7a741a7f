"""Stragglers of the runs of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pydantic import ValidationError

from analysis.read.attempts import RunHosts, one_machine
from analysis.read.samples import OTHER_LOAD, busy_shares
from analysis.stragglers.culprit import Diagnosis, diagnose, floor_of
from analysis.stragglers.links import LinkRate
from analysis.stragglers.rank_steps import RankSteps, rank_steps
from disttrain.records.json_files import read_json_or_none
from disttrain.records.links import LinkRates
from disttrain.records.run_directory import RunDir

MOST_RUNS = 40
"""Runs of one report that are examined (`Study.stragglers`): one takes about a tenth of a second."""


class RunStragglers(NamedTuple):
    """One run: the seconds of its ranks and what they show."""

    seconds: RankSteps
    diagnosis: Diagnosis


def stragglers_of(
    steps: pd.DataFrame, paths: Sequence[str], unjudged: Mapping[str, str] | None = None
) -> dict[str, RunStragglers]:
    """Diagnoses by path of a run; runs of one rank or without common steps are left out.

    Args:
        steps: `Frames.steps`.
        paths: runs to examine, as in its column `run`.
        unjudged: of `unjudged_links`.
    """
    found = {}
    for path, seconds in _seconds_of(steps, paths):
        rates, reason = read_link_rates(Path(path)), (unjudged or {}).get(path, "")
        diagnosis = diagnose(seconds, [] if reason else rates)
        found[path] = RunStragglers(seconds, replace(diagnosis, unjudged_links=reason if rates else ""))
    return found


def unjudged_links(paths: Sequence[str], runs: pd.DataFrame, hardware: pd.DataFrame) -> dict[str, str]:
    """Reasons not to judge measured rates of links, by path of a run: the rates are those of a loaded machine
    rather than of its links.

    Args:
        paths: runs to examine.
        runs: included runs in a table of `load`.
        hardware: `Frames.hardware`.
    """
    shares = busy_shares(runs, hardware)
    found = dict.fromkeys(runs.loc[shares >= OTHER_LOAD, "path"], "other processes used the processors")
    shared = [path for path in paths if one_machine(RunDir(Path(path)))]
    return found | dict.fromkeys(shared, "the nodes share a machine")


def noise_floors(
    steps: pd.DataFrame, paths: Sequence[str], known: Mapping[str, RunStragglers]
) -> dict[str, float]:
    """Noise floors of waiting by path of a run, in seconds of a step; only runs that measured communication.

    Args:
        steps: `Frames.steps`.
        paths: runs to examine, as in its column `run`.
        known: runs with a diagnosis, whose floors are taken from it.
    """
    found = {path: each.diagnosis.floor for path, each in known.items()}
    for path, seconds in _seconds_of(steps, [path for path in paths if path not in known]):
        found[path] = floor_of(seconds)
    return {path: floor.floor_s for path, floor in found.items() if floor is not None}


def _seconds_of(steps: pd.DataFrame, paths: Sequence[str]) -> Iterator[tuple[str, RankSteps]]:
    if steps.empty:
        return
    codes = steps["run"].cat.codes.to_numpy()
    known = {str(path): code for code, path in enumerate(steps["run"].cat.categories)}
    for path in paths:
        if path not in known:
            continue
        seconds = rank_steps(steps[codes == known[path]])
        if seconds is not None:
            yield path, seconds


def read_link_rates(path: Path) -> list[LinkRate]:
    """Rates of the newest attempt of a run that measured them; empty without any. Nodes have the names of
    the attempt's record, as in `Frames.steps`, or else those of the rates."""
    run = RunDir(path)
    for attempt in reversed(run.attempts()):
        content = read_json_or_none(attempt.links)
        if content is None:
            continue
        try:
            record = LinkRates.model_validate(content)
        except ValidationError:
            continue
        nodes = len(record.hosts)
        known = RunHosts(run, ranks_per_node=None)
        codes = [known.of_node(attempt.number, node) for node in range(nodes)]
        named = [known.names[code] for code in codes]
        hosts = named if all(named) and len(set(named)) == nodes else record.hosts
        return [LinkRate(hosts[each.source], hosts[each.target], each.bytes_per_s) for each in record.rates]
    return []
