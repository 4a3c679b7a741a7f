"""Step records as matrices of rank x step: rows that are left out, own seconds, and nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.results.rank_steps import RankSteps
from tests.support.straggler_records import generate, seconds_of

COMMUNICATION = ["comm_exposed_s", "comm_wait_s", "comm_transfer_s"]
PHASES = ["compute_s", "input_s", "optimizer_s", "checkpoint_s", "other_s"]


def read(rows: pd.DataFrame) -> RankSteps:
    found = seconds_of(rows)
    assert found is not None
    return found


def rows_of(ranks: int = 2, steps: int = 4) -> pd.DataFrame:
    """Each own second is known: rank r takes r ms longer in each step."""
    return generate(np.arange(ranks)[:, None] / 1000 + np.zeros((ranks, steps)))


def test_matrices_have_a_row_for_each_rank_and_a_column_for_each_step():
    rows = rows_of(3)
    found = read(rows.sample(frac=1, random_state=0))
    assert (found.ranks, found.first.tolist()) == ((0, 1, 2), [1, 2, 3, 4])
    assert found.seconds["step_s"] == pytest.approx(rows["step_s"].to_numpy().reshape(3, 4))
    assert found.seconds["comm_wait_s"] == pytest.approx(rows["comm_wait_s"].to_numpy().reshape(3, 4))
    assert found.seconds["comm_transfer_s"] == pytest.approx(rows["comm_transfer_s"].to_numpy().reshape(3, 4))
    assert list(found.phases_s) == PHASES
    assert found.own_s == pytest.approx(sum(found.phases_s.values()))
    assert found.hosts.tolist() == [[f"c{rank:02d}"] * 4 for rank in range(3)]


def test_without_a_common_step_or_a_second_rank_there_is_nothing_to_compare():
    rows = rows_of()
    apart = rows[(rows["rank"] == 0) == (rows["step"] <= 2)]
    assert seconds_of(apart) is None
    assert seconds_of(rows[rows["rank"] == 1]) is None
    assert seconds_of(rows.assign(measured=False)) is None
    assert read(rows[(rows["step"] == 3) | (rows["rank"] == 0)]).first.tolist() == [3]


def test_own_seconds_without_phases_are_the_step_without_communication():
    rows = rows_of()
    found = read(rows.drop(columns=PHASES))
    assert found.phases_s == {}
    assert found.own_s == pytest.approx(
        found.seconds["step_s"] - found.seconds["comm_wait_s"] - found.seconds["comm_transfer_s"]
    )
    assert found.separates_waiting
    for name in ("comm_wait_s", "comm_transfer_s"):
        partly = read(rows.drop(columns=[*PHASES, name]))
        other = partly.seconds["comm_transfer_s"] if name == "comm_wait_s" else partly.seconds["comm_wait_s"]
        assert partly.own_s == pytest.approx(partly.seconds["step_s"] - other)
        assert partly.separates_waiting
    unknown = read(rows.drop(columns=[*PHASES, *COMMUNICATION]))
    assert np.isnan(unknown.seconds["comm_wait_s"]).all()
    assert unknown.seconds["comm_wait_s"].shape == (2, 4)
    assert unknown.own_s == pytest.approx(unknown.seconds["step_s"])
    assert not unknown.separates_waiting


def test_a_phase_that_some_ranks_did_not_measure_counts_as_zero_there():
    rows = rows_of()
    rows.loc[rows["rank"] == 1, "input_s"] = np.nan
    found = read(rows.assign(checkpoint_s=np.nan))
    assert list(found.phases_s) == ["compute_s", "input_s", "optimizer_s", "other_s"]
    assert found.own_s[1] == pytest.approx(
        rows.loc[rows["rank"] == 1, ["compute_s", "optimizer_s", "other_s"]].sum(axis=1)
    )


@pytest.mark.parametrize("name", COMMUNICATION)
def test_other_seconds_are_own_work_only_in_steps_whose_communication_every_rank_measured(name):
    """In step 2 one rank measured none: what it waited lies in `other_s`."""
    rows = rows_of().assign(other_s=0.5)
    rows[[each for each in COMMUNICATION if each != name]] = np.nan
    rows.loc[(rows["rank"] == 1) & (rows["step"] == 2), name] = np.nan
    found = read(rows)
    assert found.phases_s["other_s"].tolist() == [[0.5, 0.0, 0.5, 0.5]] * 2
    rows[name] = np.nan
    assert "other_s" not in read(rows).phases_s
    assert read(rows.assign(compute_s=np.nan)).phases_s["other_s"].tolist() == [[0.5] * 4] * 2


@pytest.mark.parametrize(("moved", "hosts"), [(1, ("c00", "c01")), (2, ("c00", ""))])
def test_a_rank_is_on_the_node_of_nine_tenths_of_its_steps(moved, hosts):
    rows = rows_of(steps=10)
    rows.loc[(rows["rank"] == 1) & (rows["step"] <= moved), "host"] = "d01"
    found = read(rows)
    assert tuple(found.hosts_in()) == hosts
    assert found.nodes == {host: [rank] for rank, host in enumerate(hosts) if host}
    assert found.hosts_in(slice(0, moved)) == ["c00", "d01"]
    assert found.hosts_in(slice(moved, 10)) == ["c00", "c01"]


def test_ranks_of_one_node_are_its_rows_and_without_hosts_there_are_no_nodes():
    rows = generate(np.zeros((4, 3)), ranks_per_node=2)
    assert read(rows).nodes == {"c00": [0, 1], "c01": [2, 3]}
    unknown = read(rows.drop(columns="host"))
    assert (unknown.hosts_in(), unknown.nodes) == ([""] * 4, {})


def test_compute_or_communication_separates_the_own_work_from_waiting():
    found = read(rows_of())
    step_s = found.seconds["step_s"]
    assert replace(found, own_s=step_s).separates_waiting
    assert not replace(found, own_s=step_s, seconds={"step_s": step_s}).separates_waiting


def test_steps_that_a_rank_did_not_record_are_left_out():
    rows = generate(np.zeros((3, 20)))
    rows = rows[~((rows["rank"] == 1) & (rows["step"] > 15))]
    rows.loc[rows["step"] <= 2, "measured"] = False
    found = read(rows)
    assert found.first.tolist() == list(range(3, 16))
    assert found.nodes == {"c00": [0], "c01": [1], "c02": [2]}
    assert seconds_of(rows[rows["rank"] == 0]) is None


def test_an_aggregate_counts_as_the_mean_of_its_steps():
    rows = generate(np.zeros((2, 6)))
    seconds = [name for name in rows if name.endswith("_s")]
    late = rows["step"] > 4
    rows.loc[late, seconds] *= 100
    rows.loc[late, "steps"] = 100
    found = read(rows)
    assert found.counts.tolist() == [1, 1, 1, 1, 100, 100]
    assert found.own_s == pytest.approx(np.full((2, 6), found.own_s[0, 0]))
