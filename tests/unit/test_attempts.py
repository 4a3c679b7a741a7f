"""Attempts of a run: rate of the network, rates between nodes, and the checks before the ranks started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.read.attempts import preflight_columns, read_attempts
from analysis.results.links import LOADED, SHARED_MACHINE, link_rates, unjudged_links
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.checks.finding import Finding
from jobs.checks.node_checks import verdict_record
from tests.support.fake_runs import NODE, fake_run
from tests.support.link_rates import record_rates
from tests.support.studies import attempt_of, run_of


def node(*speeds: tuple[int | None, str | None], **rates: bool | None) -> dict[str, Any]:
    """A node with interfaces of these speeds and drivers, and ports of these rates, for computing or not."""
    interfaces = [{"name": "eth0", "speed_mbit": speed, "driver": driver} for speed, driver in speeds]
    ports = [
        {"name": "mlx5_0", "port": 1, "rate": f"{rate.strip('_')} Gb/sec (4X)", "for_compute": is_for}
        for rate, is_for in rates.items()
    ]
    return NODE | {"interfaces": interfaces, "fabrics": [*ports, {"name": "mlx5_1", "port": 1, "rate": None}]}


ETHERNET, EDR = node((1000, "e1000"), (None, None)), node((1000, "igb"), _100=None)


@pytest.mark.parametrize(
    ("nodes", "rate"),
    [
        ([], None),
        ([node((None, "tun"))], None),
        ([node((10_000, None))], None),  # virtual
        ([ETHERNET], 125e6),
        ([EDR], 12.5e9),
        ([node(_200=True, _400=False)], 25e9),  # one is for storage
        ([EDR, ETHERNET], 125e6),
        ([EDR, node()], 12.5e9),  # of one node nothing is known
    ],
)
def test_the_fastest_device_of_the_slowest_node_counts(tmp_path: Path, nodes, rate) -> None:
    run = fake_run(tmp_path / "s" / "r")
    for number, record in enumerate(nodes):
        write_json(run.attempt(0).node_record(number), record)
    write_json(run.attempt(0).node_oom(0), {"kills": 1})
    (attempt,) = read_attempts(run, [])
    assert attempt.line_rate_bytes_per_s == rate


def test_link_rates_are_those_of_the_newest_attempt_that_measured_them(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    for number in range(4):
        write_json(run.attempt(number).record, {"nodes": [f"c{number}", f"d{number}"]})
        if number < 2:
            record_rates(run.attempt(number), {(0, 1): 5.0 + number, (1, 0): 7.0})
    write_json(run.attempt(3).preflight, {"bandwidth": 5})
    assert link_rates(read_attempts(run, [])) == {("c1", "d1"): 6.0, ("d1", "c1"): 7.0}
    assert link_rates(()) == {}


def test_links_of_a_shared_or_loaded_machine_are_not_judged() -> None:
    run = run_of()
    for busy, one_machine, reason in ((0.0, True, SHARED_MACHINE), (0.1, False, LOADED), (0.09, False, "")):
        loaded = replace(run, attempts=(attempt_of(one_machine=one_machine),))
        loaded.__dict__["busy_share"] = busy
        assert unjudged_links(loaded) == reason


@pytest.mark.parametrize(
    ("starts", "verdict", "seconds"),
    [
        (["warned", "passed"], "warned", 4.0),  # steps of the first start may be in the figures
        (["refused", "passed"], "passed", 4.0),  # nothing was trained
        (["passed", "skipped"], "skipped", 4.0),
        (["refused", "refused"], "refused", 4.0),
    ],
)
def test_a_run_counts_as_warned_if_any_of_its_starts_was(tmp_path: Path, starts, verdict, seconds) -> None:
    run = RunDir(tmp_path / "run")
    for number, start in enumerate(starts):
        severity: Any = {"warned": "warning", "refused": "error"}.get(start)
        problems = [Finding(severity, "links", f"start {number}", "look")] if severity else []
        mode = "off" if start == "skipped" else "basic"
        record = verdict_record(number, mode, ["n1"], [], {}, problems) | {"seconds": 2.0}
        write_json(run.attempt(number).preflight, record)
    columns = preflight_columns(read_attempts(run, []))
    assert (columns["preflight"], columns["preflight_s"]) == (verdict, seconds)
    message = {"warned": "start 0", "refused": "start 1"}.get(verdict)
    assert columns["preflight_warning"] == message
