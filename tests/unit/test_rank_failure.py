"""Causes of exceptions that end a rank, and when they are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from disttrain.engine.train import train
from disttrain.records.json_files import read_json
from disttrain.runtime.run_output import RunOutput, record_failure
from disttrain.telemetry.recorder import Recorder
from tests.support.stopping import alone, config


def test_an_allocation_that_the_host_refuses_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**55)
    assert record_failure(raised.value, 0).cause == "out_of_memory"
    assert record_failure(RuntimeError("shapes differ"), 0).cause == "crashed"


def test_the_cause_is_in_its_file_before_the_telemetry_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort writes files and may block, so the agent may kill this rank before its end."""
    seen = []

    def abort(telemetry: Recorder) -> None:
        seen.append(read_json(telemetry.attempt.error(0))["message"])

    monkeypatch.setattr(Recorder, "abort", abort)
    made = config(model={"kind": "tests.support.small_models:Failing", "message": "too warm"})
    output = RunOutput.of_job(tmp_path, 0)
    output.attempt.path.mkdir(parents=True)
    with pytest.raises(RuntimeError, match="too warm"):
        train(made, output, alone())
    assert seen == ["too warm"]
