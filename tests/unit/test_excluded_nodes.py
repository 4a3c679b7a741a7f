"""The exclusion list of a runs folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.planned import ExcludedNodes
from jobs.core import excluded_nodes
from jobs.core.excluded_nodes import ExcludedNode


def entry(host: str, hours: float = 24.0, cluster: str | None = "west") -> ExcludedNode:
    return ExcludedNode.until(host, "slow link", cluster=cluster, by="sweep/run", hours=hours)


def test_entries_are_kept_until_they_expire(tmp_path: Path) -> None:
    for host, hours in (("n2", 1.0), ("n1", 1.0), ("old", -0.001)):
        excluded_nodes.add(tmp_path, entry(host, hours))
    assert [each.host for each in excluded_nodes.read(tmp_path)] == ["n1", "n2"]
    written = ExcludedNodes.model_validate(read_json(tmp_path / excluded_nodes.FILE))
    assert {each.host for each in written.nodes} == {"n1", "n2", "old"}
    excluded_nodes.add(tmp_path, entry("n3"))
    assert "old" not in (tmp_path / excluded_nodes.FILE).read_text(), "a change drops what has expired"


def test_a_node_is_excluded_on_its_cluster_only(tmp_path: Path) -> None:
    excluded_nodes.add(tmp_path, entry("n1", cluster="west"))
    excluded_nodes.add(tmp_path, entry("n2", cluster="east"))
    excluded_nodes.add(tmp_path, entry("n3", cluster=None))
    assert on_cluster(tmp_path, "west", ["n1", "n3"]) == ["n1", "n3"]
    assert on_cluster(tmp_path, "west", ["n7"]) == ["n1"], "Slurm refuses to exclude an unknown node"
    assert on_cluster(tmp_path, "west", None) == ["n1", "n3"], "Slurm gave no names"
    assert on_cluster(tmp_path, None, ["n2", "n3"]) == ["n2", "n3"]
    excluded_nodes.remove(tmp_path, ["n3"])
    named = excluded_nodes.on_cluster(
        excluded_nodes.read(tmp_path), "west", lambda: pytest.fail("not needed")
    )
    assert [each.host for each in named] == ["n1"]


def on_cluster(root: Path, cluster: str | None, names: list[str] | None) -> list[str]:
    return [
        each.host for each in excluded_nodes.on_cluster(excluded_nodes.read(root), cluster, lambda: names)
    ]


def test_a_node_is_listed_once(tmp_path: Path) -> None:
    excluded_nodes.add(tmp_path, entry("n1"))
    excluded_nodes.add(tmp_path, entry("n1", hours=48))
    assert len(excluded_nodes.read(tmp_path)) == 1


def test_changes_at_once_are_all_kept(tmp_path: Path) -> None:
    hosts = [f"n{number}" for number in range(8)]
    threads = [threading.Thread(target=excluded_nodes.add, args=(tmp_path, entry(host))) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.host for each in excluded_nodes.read(tmp_path)] == hosts


def test_some_or_all_are_removed(tmp_path: Path) -> None:
    for host in ("n1", "n2", "n3"):
        excluded_nodes.add(tmp_path, entry(host))
    assert [each.host for each in excluded_nodes.remove(tmp_path, ["n2"])] == ["n2"]
    assert len(excluded_nodes.remove(tmp_path, None)) == 2
    assert excluded_nodes.read(tmp_path) == []


def test_a_folder_without_a_list_excludes_none_and_an_unreadable_one_is_refused(tmp_path: Path) -> None:
    assert excluded_nodes.read(tmp_path) == []
    (tmp_path / excluded_nodes.FILE).write_text("{")
    with pytest.raises(ConfigError, match="remove it to use all nodes"):
        excluded_nodes.read(tmp_path)
