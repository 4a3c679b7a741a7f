"""Evidence on compute time: hosts by attempt, threads of the config, named stragglers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.efficiency import scaling_curves
from analysis.losses.compute_evidence import compute_causes, compute_state
from analysis.losses.compute_loss import ComputeState
from analysis.report.sections import pop
from analysis.runs.load import load
from analysis.study import Study
from disttrain.records.json_files import write_text
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import fake_run
from tests.support.straggler_records import delays
from tests.unit.test_stragglers_section import STEPS, write_run


def study_of(sweep: Path) -> Study:
    runs = load([sweep])
    return Study(runs, scaling_curves(runs))


def state_of(study: Study) -> ComputeState:
    return compute_state(study, study.curves[0], study.curves[0].points[-1])


def with_records(run: RunDir, attempt: int, ranks: int) -> None:
    source = run.attempt(attempt).steps(0).read_text()
    for rank in range(1, ranks):
        write_text(run.attempt(attempt).steps(rank), source)


def test_hosts_are_those_of_all_ranks_of_one_attempt(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "n2", nodes=2, hosts=["c00", "c01"])
    assert state_of(study_of(tmp_path / "s")).hosts is None  # records of rank 0 alone
    with_records(run, 0, 2)
    study = study_of(tmp_path / "s")
    assert state_of(study).hosts == 2
    resumed = study.frames.steps.assign(attempt=1, host=study.frames.steps["host"].astype(str) + "b")
    both = study.frames.steps.assign(host=study.frames.steps["host"].astype(str))
    study.__dict__["frames"] = replace(study.frames, steps=pd.concat([both, resumed]))
    assert state_of(study).hosts == 2


@pytest.mark.parametrize(("strategy", "named"), [("ddp", {1: "rank 1 on c01"}), ("pipeline", {})])
def test_a_straggler_is_named_but_for_stages_of_a_pipeline(
    tmp_path: Path, strategy: str, named: dict[int, Any]
) -> None:
    fake_run(tmp_path / "s" / "n1", mean_s=0.15, overrides={"strategy": strategy})
    write_run(tmp_path / "s" / "n4", delays(4, STEPS, slow=[1], slow_s=0.05))
    study = study_of(tmp_path / "s")
    study.runs["strategy"] = strategy
    study.__dict__["metrics"] = {
        key: found.model_copy(update={"strategy": strategy}) for key, found in study.metrics.items()
    }
    state = state_of(study)
    assert state.stragglers == named
    assert (state.rank_compute_s is None) == (strategy == "pipeline")
    assert (pop.build(study) is None) == (strategy == "pipeline")


def test_an_emulated_wait_shares_no_processors(tmp_path: Path) -> None:
    for nodes in (1, 4):
        seconds = {"compute_s": 0.05 * nodes, "other_s": 0.01}
        overrides = {"composition": seconds, "oversubscribed": True}
        run = fake_run(tmp_path / "s" / f"n{nodes}", nodes=nodes, overrides=overrides, hosts=["c00"] * nodes)
        with_records(run, 0, nodes)
    study = study_of(tmp_path / "s")
    (curve,) = study.curves
    (real,) = compute_causes(study, curve, curve.points[-1])
    (emulated,) = compute_causes(study, replace(curve, emulated=True), curve.points[-1])
    assert (real.names, emulated.names) == (("shared_processors",), ("unknown",))
    assert np.isfinite(real.seconds)
