"""Rows of tables link the runs that they come from."""

from __future__ import annotations

from pathlib import Path

from analysis.read.load import load_runs
from analysis.report.sections import communication, waterfall
from analysis.study import Study, make_study
from disttrain.records.communication import CollectiveSummary, CommSummary
from disttrain.records.json_files import read_json, write_json
from tests.support.fake_runs import fake_sweep


def links_of(tables, name: str) -> list[list[str]]:
    (table,) = [table for table in tables if table.name == name]
    assert len(table.sources) == len(table.rows) > 0
    assert all(Path(link.path).name == link.name for links in table.sources for link in links)
    return [[link.name for link in links] for links in table.sources]


def study_of(sweep: Path) -> Study:
    return make_study(load_runs([sweep]))


def test_collectives_link_the_repeats_of_their_size(tmp_path: Path) -> None:
    sweep = fake_sweep(tmp_path, nodes=(2, 4), repeats=2)
    times = {"total_s": 0.02, "hidden_s": 0.01, "exposed_s": 0.01, "bus_bytes_per_s": 1e9}
    collectives = [
        CollectiveSummary(
            kind="all_reduce", bucket=at, bytes=100, transfer_s=0.01, algorithm_bytes_per_s=1e9, **times
        )
        for at in range(2)
    ]
    comm = CommSummary(
        method="profiler",
        sampled_steps=3,
        count=2,
        bytes=200,
        compute_s=0.1,
        collectives=collectives,
        **times,
    )
    for path in sweep.glob("*/metrics.json"):
        write_json(path, read_json(path) | {"comm": comm.model_dump(mode="json")})
    section = communication.build(study_of(sweep))
    assert section is not None
    repeats = [[f"n{nodes}x1-r0", f"n{nodes}x1-r1"] for nodes in (2, 4)]
    assert links_of(section.tables, "collectives") == [repeats[0]] * 2 + [repeats[1]] * 2


def test_parts_from_the_peak_link_the_repeats(tmp_path: Path) -> None:
    section = waterfall.build(study_of(fake_sweep(tmp_path, nodes=(1, 2), repeats=2, peak_flops=1e12)))
    assert section is not None
    assert set(map(tuple, links_of(section.tables, "waterfall_from_peak"))) == {("n2x1-r0", "n2x1-r1")}
