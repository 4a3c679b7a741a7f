"""Rates of data between the nodes of a run, measured before its first step (`links.json`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from analysis.read.attempts import RunHosts, one_machine
from analysis.read.samples import OTHER_LOAD, busy_shares
from analysis.results.links import LinkRate
from disttrain.records.json_files import read_json_or_none
from disttrain.records.links import LinkRates
from disttrain.records.run_directory import RunDir


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
        return [LinkRate(hosts[rate.source], hosts[rate.target], rate.bytes_per_s) for rate in record.rates]
    return []


def unjudged_links(paths: Sequence[str], runs: pd.DataFrame, hardware: pd.DataFrame) -> dict[str, str]:
    """Reasons not to judge measured rates of links, by path of a run: the rates are those of a loaded machine
    rather than of its links.

    Args:
        paths: runs to examine.
        runs: included runs in a table of `load`.
        hardware: `Frames.hardware`.
    """
    shares = busy_shares(runs, hardware)
    loaded = dict.fromkeys(runs.loc[shares >= OTHER_LOAD, "path"], "other processes used the processors")
    shared = [path for path in paths if one_machine(RunDir(Path(path)))]
    return loaded | dict.fromkeys(shared, "the nodes share a machine")
