"""Runs at the same time on one node."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.overlaps import Interval, find_overlaps, overlaps_of
from analysis.read.load import load_runs
from analysis.study import make_study
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.fake_runs import NODE, fake_run

some_intervals = st.lists(
    st.builds(
        lambda run, host, start, length: Interval(Path(run), host, start, start + length),
        st.sampled_from("abcd"), st.sampled_from(["n1", "n2"]), st.integers(0, 12), st.integers(0, 5),
    ),
    max_size=12,
)  # fmt: skip


@given(some_intervals)
def test_overlaps_are_those_of_a_count_by_the_second(intervals: list[Interval]) -> None:
    expected = {}
    for one, other in itertools.combinations("abcd", 2):
        common = {
            (second, host)
            for second in range(20)
            for host in ("n1", "n2")
            if {one, other}
            <= {each.run.name for each in intervals if each.host == host and each.start <= second < each.end}
        }
        if common:
            expected[one, other] = (len({second for second, _ in common}), {host for _, host in common})
    overlaps = find_overlaps(intervals)
    assert {
        (*(run.name for run in each.runs),): (each.seconds, {*each.hosts}) for each in overlaps
    } == expected
    assert [each.seconds for each in overlaps] == sorted((each.seconds for each in overlaps), reverse=True)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (["ab"], ["bc"], "same"),
        (["ab"], ["cd"], "different"),
        (["ab"], [""], "unknown"),
        (["1", "2"], ["1", "3"], "same"),  # on two nodes, of which the worst counts
        (["1", ""], ["1", ""], "same"),
        (["", "1"], ["", "1"], "same"),
        (["1", ""], ["2", ""], "unknown"),
    ],
)
def test_shared_gpus_are_known_only_where_both_runs_recorded_theirs(
    one: list[str], other: list[str], shared: str
) -> None:
    intervals = [
        Interval(Path(run), f"n{node}", 0, 1, frozenset(gpus))
        for run, nodes in (("a", one), ("b", other))
        for node, gpus in enumerate(nodes)
    ]
    (overlap,) = find_overlaps(intervals)
    assert (overlap.gpus, overlap.seconds, len(overlap.hosts)) == (shared, 1, len(one))


def pair(tmp_path: Path, hosts: list[str] | None = None) -> list[RunDir]:
    return [fake_run(tmp_path / "s" / name, nodes=2, hosts=hosts) for name in "ab"]


def test_gpus_are_those_of_the_records_of_the_nodes(tmp_path: Path) -> None:
    for run in pair(tmp_path, ["n0", "n1"]):
        for node, uuid in enumerate((f"GPU-{run.name}", "GPU-1")):
            gpu = {"name": "H100", "memory_bytes": 1, "pci_id": "0", "uuid": uuid}
            write_json(run.attempt(0).node_record(node), NODE | {"gpus": [gpu]})
    (overlap,) = overlaps_of(load_runs([tmp_path / "s"]))
    assert (overlap.gpus, overlap.seconds, overlap.hosts) == ("same", 60, ["n0", "n1"])


def test_the_nodes_of_a_mini_cluster_are_one_machine(tmp_path: Path) -> None:
    runs = pair(tmp_path)
    assert overlaps_of(load_runs([tmp_path / "s"])) == []
    for run in runs:
        slurm = {"SLURM_CONF": "/run/disttrain-mini/slurm.conf"}
        write_json(run.attempt(0).node_record(0), NODE | {"slurm": slurm})
    (overlap,) = overlaps_of(load_runs([tmp_path / "s"]))
    assert overlap.hosts == ["the machine of mini-cluster mini"]


@pytest.mark.parametrize(
    ("fields", "progress_attempt", "seconds"),
    [
        ({}, 0, [60]),
        ({"ended": None}, 0, [25]),  # until the last progress
        ({"ended": None}, 1, []),  # that of another attempt; a start alone lasts no time
        ({"nodes": None}, 0, []),
        ({"started": "soon"}, 0, []),
        ({"ended": 3}, 0, []),
    ],
)
def test_an_attempt_lasts_until_its_end_or_its_last_progress(
    tmp_path: Path, fields: dict[str, object], progress_attempt: int, seconds: list[float]
) -> None:
    run, _ = pair(tmp_path, ["n0", "n1"])
    (first, _) = load_runs([tmp_path / "s"])
    write_json(run.attempt(0).record, read_json(run.attempt(0).record) | fields)
    updated = first.attempts[0].span[0] + 25
    write_json(run.progress, {"attempt": progress_attempt, "updated": updated})
    assert [each.seconds for each in overlaps_of(load_runs([tmp_path / "s"]))] == seconds


def test_a_study_has_the_overlaps_of_runs_that_count_and_the_longest_of_each_run(tmp_path: Path) -> None:
    for name in "abc":
        fake_run(tmp_path / "s" / name, hosts=["n"])
    fake_run(tmp_path / "s" / "alone")
    record = RunDir(tmp_path / "s" / "c").attempt(0).record
    write_json(record, read_json(record) | {"ended": "2026-01-02T03:03:15Z"})
    runs = load_runs([tmp_path / "s"])
    names = {Path(path).name: seconds for path, seconds in make_study(runs).overlap_s.items()}
    assert names == {"a": 60, "b": 60, "c": 10}
    left_out = [replace(run, included=run.name in ("a", "alone")) for run in runs]
    counted = [[run.name for run in each.runs] for each in make_study(left_out).overlaps]
    assert counted == [["a", "b"], ["a", "c"]]
