"""Runs at the same time on one node: found exactly, and named in the report."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.overlaps import Interval, find_overlaps, intervals, overlaps_of
from analysis.read.load import load_runs
from analysis.report import write
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import NODE, fake_run

moments = st.integers(0, 12)
some_intervals = st.lists(
    st.builds(
        lambda run, host, start, length: Interval(Path(run), host, start, start + length),
        st.sampled_from("abcd"),
        st.sampled_from(["n1", "n2"]),
        moments,
        st.integers(0, 5),
    ),
    max_size=12,
)


@given(some_intervals)
def test_overlaps_are_those_of_a_count_by_the_second(given_: list[Interval]) -> None:
    expected = {}
    for one, other in itertools.combinations("abcd", 2):
        common = {
            (second, host)
            for second in range(20)
            for host in ("n1", "n2")
            if {one, other}
            <= {each.run.name for each in given_ if each.host == host and each.start <= second < each.end}
        }
        if common:
            seconds = len({second for second, _ in common})
            expected[one, other] = (seconds, {host for _, host in common})
    found = find_overlaps(given_)
    assert {
        (each.runs[0].name, each.runs[1].name): (each.seconds, set(each.hosts)) for each in found
    } == expected
    assert [each.seconds for each in found] == sorted((each.seconds for each in found), reverse=True)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [("ab", "bc", "same"), ("ab", "cd", "different"), ("ab", "", "unknown"), ("", "", "unknown")],
)
def test_shared_gpus_are_known_only_where_both_runs_recorded_theirs(
    one: str, other: str, shared: str
) -> None:
    pair = [Interval(Path(name), "n", 0, 1, frozenset(gpus)) for name, gpus in (("a", one), ("b", other))]
    assert [each.gpus for each in find_overlaps(pair)] == [shared]


def test_the_worst_case_of_several_nodes_counts() -> None:
    gpus = {"a": ["1", "2"], "b": ["1", "3"]}
    several = [
        Interval(Path(run), f"n{node}", 0, 1, frozenset([uuid]))
        for run, uuids in gpus.items()
        for node, uuid in enumerate(uuids)
    ]
    (overlap,) = find_overlaps(several)
    assert (overlap.hosts, overlap.seconds, overlap.gpus) == (["n0", "n1"], 1, "same")


@pytest.mark.parametrize("hosts", [("n0", "n1"), ("n1", "n0")])
def test_a_shared_gpu_on_one_node_outweighs_unknown_ones_on_another(hosts: tuple[str, str]) -> None:
    known, unknown = hosts
    several = [
        Interval(Path(run), host, 0, 1, gpus)
        for run in "ab"
        for host, gpus in ((known, frozenset(["1"])), (unknown, frozenset[str]()))
    ]
    assert [each.gpus for each in find_overlaps(several)] == ["same"]


def intervals_of(run: RunDir) -> list[Interval]:
    (loaded,) = load_runs([run.path.parent])
    return list(intervals(loaded))


def change(run: RunDir, **fields: object) -> None:
    path = run.attempt(0).record
    write_json(path, read_json(path) | fields)


def test_an_attempt_without_an_end_lasts_until_its_last_progress(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "a", end="running", hosts=["n"])
    (interval,) = intervals_of(run)
    assert interval.end == interval.start
    write_json(run.progress, {"attempt": 0, "updated": interval.start + 60})
    (interval,) = intervals_of(run)
    assert interval.end - interval.start == pytest.approx(60)


def test_a_record_without_nodes_or_times_is_left_out(tmp_path: Path) -> None:
    run = fake_run(tmp_path / "s" / "a", hosts=["n"])
    for fields in ({"nodes": None}, {"started": "soon"}, {"ended": 3}):
        before = read_json(run.attempt(0).record)
        change(run, **fields)
        assert intervals_of(run) == []
        write_json(run.attempt(0).record, before)


def test_gpus_are_read_from_the_nodes_records(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / "s" / name, nodes=2, hosts=["n", "n"]) for name in "ab"]
    for run in runs:
        for node in range(2):
            uuid = f"GPU-{node if node == 0 else run.name}"
            write_json(
                run.attempt(0).node_record(node),
                NODE | {"gpus": [{"name": "H100", "memory_bytes": 1, "pci_id": "0", "uuid": uuid}]},
            )
    (overlap,) = overlaps_of(load_runs([tmp_path / "s"]))
    assert (overlap.gpus, overlap.seconds) == ("same", 60)


def test_the_nodes_of_a_mini_cluster_are_one_machine(tmp_path: Path) -> None:
    runs = [fake_run(tmp_path / "s" / name, hosts=[f"mini-{name}"]) for name in "ab"]
    assert overlaps_of(load_runs([tmp_path / "s"])) == []
    for run in runs:
        slurm = {"SLURM_CONF": "/run/disttrain-mini/slurm.conf"}
        write_json(run.attempt(0).node_record(0), NODE | {"slurm": slurm})
    (overlap,) = overlaps_of(load_runs([tmp_path / "s"]))
    assert overlap.hosts == ["the machine of mini-cluster mini"]


@pytest.mark.usefixtures("empty_pngs")
def test_the_report_names_overlapping_runs_of_which_one_counts(tmp_path: Path) -> None:
    sweep = tmp_path / "s"
    for name, nodes in (("n1-r0", 1), ("n2-r0", 2)):
        fake_run(sweep / name, nodes=nodes, hosts=["gpu7", "gpu8"][:nodes])
    fake_run(sweep / "n4-r0", nodes=4)
    for name in "bc":
        fake_run(sweep / name, end="failed", hosts=["n"])
    write([sweep], tmp_path / "out")
    report = read_json(tmp_path / "out" / "report.json")
    assert report["overlaps"] == [
        {"run": "s/n1-r0", "other": "s/n2-r0", "hosts": ["gpu7"], "seconds": 60.0, "gpus": "unknown"}
    ]
    caveats = {each["kind"]: each for each in report["caveats"]}
    assert caveats["overlaps"]["runs"] == ["s/n1-r0", "s/n2-r0"]
    assert "unlike runs" in caveats, "n4 had its machines alone, n1 did not"
    tables = [table for section in report["sections"] for table in section["tables"]]
    table = next(each for each in tables if each["name"] == "runs")
    overlap = [column["name"] for column in table["columns"]].index("overlap")
    assert {row[0]: row[overlap] for row in table["rows"] if row[overlap]} == {
        "n1-r0": "n2-r0, 1.00 min on gpu7",
        "n2-r0": "n1-r0, 1.00 min on gpu7",
    }
