"""The doctor on a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import submit
from tests.support.minicluster import MiniCluster
from tests.support.verbs import TINY


def test_the_doctor_examines_a_node_and_drafts_a_profile(
    on_slurm: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert submit.main(["doctor", "--json", "--job"]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = {finding["key"] for finding in document["findings"]}
    assert {"signals.kill_wait", "signals.proctrack", "isolation.processors", "isolation.devices"} <= keys
    assert not {"runs.not_shared", "runs.local_locks", "node.clock", "controller.clock", "gpus.none"} & keys
    assert not [each for each in document["unchecked"] if "--job" in each["check"]]
    cluster = document["facts"]["cluster"]
    assert (cluster["name"], cluster["settings"]["SelectType"]) == (on_slurm.name, "select/cons_tres")
    (gpu, _) = cluster["partitions"]
    assert (gpu["name"], gpu["default"], gpu["gpus"]) == ("gpu", True, 4 * on_slurm.nodes)
    assert [*tmp_path.iterdir()] == []

    assert submit.main(["doctor", "--write-profile", "mine.yaml"]) == 0
    Path("tiny.yaml").write_text(TINY)
    arguments = ["run", "tiny.yaml", "--profile", "./mine.yaml", "--test-only"]
    assert submit.main(arguments) == 0, capsys.readouterr()
