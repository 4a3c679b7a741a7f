"""Rates of data between the nodes of a run, measured before its first step (`links.json`)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.read.attempts import RunAttempt, machine_of
from analysis.read.frames import busy_shares
from analysis.read.run_table import runs_of
from analysis.read.samples import OTHER_LOAD
from analysis.results.links import LinkRate


def link_rates(attempts: Sequence[RunAttempt]) -> list[LinkRate]:
    """Rates of the newest attempt of a run that measured them; empty without any."""
    links = next((each.links for each in reversed(attempts) if each.links), None)
    if links is None:
        return []
    hosts = links.hosts
    return [LinkRate(hosts[rate.source], hosts[rate.target], rate.bytes_per_s) for rate in links.rates]


def unjudged_links(runs: pd.DataFrame) -> dict[str, str]:
    """Reasons not to judge measured rates of links, by path of a run of a table: the rates are those of a
    loaded machine rather than of its links."""
    loaded = runs.loc[busy_shares(runs) >= OTHER_LOAD, "path"]
    shared = [run.path for run in runs_of(runs) if machine_of(run.attempts)]
    return dict.fromkeys(loaded, "other processes used the processors") | dict.fromkeys(
        shared, "the nodes share a machine"
    )
