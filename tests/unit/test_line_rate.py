"""Line rate of a run's network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.read.attempts import read_attempts
from disttrain.records.json_files import write_json
from tests.support.fake_runs import fake_run

ETHERNET = {"interfaces": [{"speed_mbit": 1000, "driver": "e1000"}, {"speed_mbit": None}], "fabrics": []}
EDR = {
    "interfaces": [{"speed_mbit": 1000, "driver": "igb"}],
    "fabrics": [{"rate": "100 Gb/sec (4X EDR)"}, {"rate": None}],
}
STORAGE = {
    "interfaces": [],
    "fabrics": [
        {"rate": "200 Gb/sec (4X HDR)", "for_compute": True},
        {"rate": "400 Gb/sec (4X NDR)", "for_compute": False},
    ],
}
VIRTUAL = {"interfaces": [{"speed_mbit": None}], "fabrics": []}
VETH = {"interfaces": [{"speed_mbit": 10_000, "driver": None}], "fabrics": []}


@pytest.mark.parametrize(
    ("nodes", "rate"),
    [
        ([], None),
        ([VIRTUAL], None),
        ([VETH], None),
        ([ETHERNET], 125e6),
        ([EDR], 12.5e9),
        ([STORAGE], 25e9),
        ([EDR, ETHERNET], 125e6),  # the slowest node
    ],
)
def test_the_fastest_device_of_the_slowest_node_counts(
    tmp_path: Path, nodes: list[dict[str, Any]], rate: float | None
) -> None:
    run = fake_run(tmp_path / "s" / "r")
    for number, record in enumerate(nodes):
        write_json(run.attempt(0).node_record(number), record)
    write_json(run.attempt(0).node_oom(0), {"kills": 1})
    (attempt,) = read_attempts(run, [])
    assert attempt.line_rate_bytes_per_s == rate
