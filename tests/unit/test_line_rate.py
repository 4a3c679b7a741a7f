"""Line rate of a run's network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.read.attempts import read_attempts
from disttrain.records.json_files import write_json
from tests.support.fake_runs import NODE, fake_run

ETH: dict[str, Any] = {"name": "eth0"}
PORT: dict[str, Any] = {"name": "mlx5_0", "port": 1}
ETHERNET = {
    "interfaces": [
        ETH | {"speed_mbit": 1000, "driver": "e1000"},
        ETH | {"speed_mbit": None},
    ],
    "fabrics": [],
}
EDR = {
    "interfaces": [ETH | {"speed_mbit": 1000, "driver": "igb"}],
    "fabrics": [
        PORT | {"rate": "100 Gb/sec (4X EDR)"},
        PORT | {"rate": None},
    ],
}
STORAGE = {
    "interfaces": [],
    "fabrics": [
        PORT | {"rate": "200 Gb/sec (4X HDR)", "for_compute": True},
        PORT | {"rate": "400 Gb/sec (4X NDR)", "for_compute": False},
    ],
}
VIRTUAL = {"interfaces": [ETH | {"speed_mbit": None}], "fabrics": []}
VETH = {"interfaces": [ETH | {"speed_mbit": 10_000, "driver": None}], "fabrics": []}


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
        write_json(run.attempt(0).node_record(number), NODE | record)
    write_json(run.attempt(0).node_oom(0), {"kills": 1})
    (attempt,) = read_attempts(run, [])
    assert attempt.line_rate_bytes_per_s == rate
