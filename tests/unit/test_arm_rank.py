"""The config of a step that an arm repeats."""

from __future__ import annotations

from pathlib import Path

from disttrain.comm_bench.arm_rank import config_of
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import fake_run


def test_a_compressed_scheme_acts_from_the_first_step(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "r", nodes=2, end="planned")
    record = read_json(run.run_json)
    record["config"]["parallel"]["gradient_communication"] = {"scheme": "powersgd", "warmup_steps": 100}
    write_json(run.run_json, record)
    config = config_of(run)
    section = config.parallel.gradient_communication
    assert (section.scheme, section.warmup_steps) == ("powersgd", 0)
