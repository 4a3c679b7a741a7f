"""The nodes that submissions of a runs folder exclude: the list, `submit.py nodes`, and its effect."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from disttrain.records.planned import ExcludedNodes
from jobs.core import excluded_nodes
from jobs.core.code_copy import CommandReader
from jobs.core.excluded_nodes import ExcludedNode
from jobs.schedulers.slurm.scheduler import script_fields
from jobs.status.run_state import read_state
from jobs.submission.before import excluded_nodes_warning
from jobs.submission.decide import Action
from jobs.submission.prepare import PreparedRun, batch_of, prepare
from tests.support.commands import Commands
from tests.support.jobs import FakeScheduler, FakeSlurm, sweep_plan
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json, refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands.add("scontrol", "exit 1")


def add(host: str, hours: float = 24.0, cluster: str | None = "west") -> None:
    entry = ExcludedNode.until(host, "slow link", cluster=cluster, by="sweep/run", hours=hours)
    excluded_nodes.add(RUNS, entry)


def hosts() -> list[str]:
    return [each.host for each in excluded_nodes.read(RUNS)]


def test_entries_are_listed_once_until_they_expire() -> None:
    assert hosts() == []
    for host, hours in (("n2", 1.0), ("n1", 1.0), ("n1", 48.0), ("old", -0.001)):
        add(host, hours)
    assert hosts() == ["n1", "n2"]
    written = ExcludedNodes.model_validate(read_json(RUNS / excluded_nodes.FILE))
    assert {each.host for each in written.nodes} == {"n1", "n2", "old"}
    add("n1", cluster="east")
    assert hosts() == ["n1", "n1", "n2"], "clusters may name nodes alike"
    assert "old" not in (RUNS / excluded_nodes.FILE).read_text(), "a change drops what has expired"
    assert [each.host for each in excluded_nodes.remove(RUNS, ["n1"])] == ["n1", "n1"]
    assert [each.host for each in excluded_nodes.remove(RUNS, None)] == ["n2"]


@pytest.mark.parametrize(
    ("cluster", "nodes", "expected"),
    [
        ("west", ["n1", "n3"], ["n1", "n3"]),
        ("west", ["n7"], ["n1"]),  # Slurm refuses to exclude an unknown node
        ("west", None, ["n1", "n3"]),
        (None, ["n2", "n3"], ["n2", "n3"]),
        (None, None, ["n1", "n2", "n3"]),
    ],
)
def test_a_node_is_excluded_on_its_cluster_only(
    cluster: str | None, nodes: list[str] | None, expected: list[str]
) -> None:
    for host, of_cluster in (("n1", "west"), ("n2", "east"), ("n3", None)):
        add(host, cluster=of_cluster)
    found = excluded_nodes.on_cluster(excluded_nodes.read(RUNS), cluster, lambda: nodes)
    assert [each.host for each in found] == expected
    of_job = excluded_nodes.among(RUNS, cluster, nodes or ())
    assert [each.host for each in of_job] == [host for host in expected if host in (nodes or ())]


def test_the_names_of_nodes_are_asked_for_only_where_an_entry_needs_them() -> None:
    add("n1")
    entries = excluded_nodes.read(RUNS)
    assert len(excluded_nodes.on_cluster(entries, "west", lambda: pytest.fail("not needed"))) == 1


def test_changes_at_once_are_all_kept() -> None:
    names = [f"n{number}" for number in range(8)]
    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hosts() == names


def test_an_unreadable_list_refuses_submissions_and_not_running_jobs() -> None:
    add("n1")
    (RUNS / excluded_nodes.FILE).write_text("{")
    with pytest.raises(ConfigError, match="remove it to use all nodes"):
        excluded_nodes.read(RUNS)
    assert excluded_nodes.among(RUNS, "west", ["n1"]) == []


def test_nodes_are_excluded_shown_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no excluded nodes" in ask(capsys, "nodes")
    shown = ask(capsys, "nodes --exclude n1 n2 --reason ' slow\n link' --hours 2")
    assert ("slow link" in shown, "sbatch" in shown) == (True, False), "no cluster answers"
    assert "used again: n1" in ask(capsys, "nodes --clear n1")
    (entry,) = ask_json(capsys, "nodes")["excluded_nodes"]
    assert (entry["host"], entry["reason"], entry["cluster"]) == ("n2", "slow link", None)
    assert ask_json(capsys, "nodes --clear-all")["excluded_nodes"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--clear n7", "--clear: no excluded node 'n7'"),
        ("--exclude n[1-3]", "--exclude: 'n[1-3]' is not the name of one node"),
        ("--reason slow", "--reason: has an effect only with --exclude"),
        ("--hours 2 --clear-all", "--hours: has an effect only with --exclude"),
        ("--exclude n1 --hours nan", "'nan' is not a number above 0"),
        ("--exclude n1 --hours 8761", "'8761' is more than 8760 hours"),
        ("--exclude n1 --hours 0", "'0' is not a number above 0"),
    ],
)
def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str], options: str, message: str) -> None:
    assert message in refused(capsys, f"nodes {options}")
    assert not RUNS.exists()


def test_nodes_are_excluded_on_the_cluster_that_answers(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.add("sbatch", "exit 1")
    commands.add(
        "scontrol", 'case "$1" in ping) echo "slurmctld is UP";; *) echo "ClusterName = west";; esac'
    )
    commands.add("sinfo", "printf 'node01\\nnode01\\nnode02\\n'")
    unknown = refused(capsys, "nodes --exclude node1")
    assert "--exclude: the cluster has no node 'node1'; did you mean 'node01'?" in unknown
    ask(capsys, "nodes --exclude node01")
    assert [each.cluster for each in excluded_nodes.read(RUNS)] == ["west"]
    commands.add("sinfo", "exit 1")
    ask(capsys, "nodes --exclude node3")
    add("far1", cluster="east")
    assert "sbatch --exclude=node01,node3 train" in ask(capsys, "nodes")


def prepared(scheduler: FakeScheduler, action: Action | None = None, **options: bool) -> PreparedRun:
    (plan,) = sweep_plan("a").runs
    action, code = action or Action("submit", "demo", "a", "", plan), {"code": {"hash": "c0de", "path": "."}}
    (found,) = prepare([action], scheduler, RUNS, code, CommandReader(RUNS), **options)
    assert isinstance(found, PreparedRun)
    return found


def test_a_submission_excludes_them_and_records_it() -> None:
    assert "excluded_nodes" not in prepared(FakeSlurm()).record
    for host in ("n2", "n1"):
        add(host, cluster=None)
    found = prepared(FakeSlurm())
    assert found.record["excluded_nodes"] == ["n1", "n2"]
    assert script_fields(batch_of([found])).excluded_nodes == ["n1", "n2"]
    assert excluded_nodes_warning(RUNS, FakeSlurm())[0].startswith("excluded nodes: n1, n2 ")
    by_hand = prepared(FakeSlurm(), excluding=False)
    assert "excluded_nodes" not in by_hand.record, "Slurm has already chosen the nodes of this job"
    assert "excluded_nodes" not in prepared(FakeScheduler()).record, "one machine has no other node"
    assert excluded_nodes_warning(RUNS, FakeScheduler()) == []


def test_a_resumed_run_forgets_the_nodes_that_it_excluded_before() -> None:
    run = make_run(RUNS, "demo/a", "failed")
    write_json(run.run_json, read_json(run.run_json) | {"excluded_nodes": ["n9"]})
    resumed = Action("retry", "demo", "a", "", None, read_state(run))
    assert "excluded_nodes" not in prepared(FakeSlurm(), resumed).record


def test_a_skipped_pre_flight_is_recorded() -> None:
    modes = [
        prepared(FakeSlurm(), skip_preflight=skip).record["config"]["job"]["preflight"]
        for skip in (False, True)
    ]
    assert modes == ["auto", "off"]
