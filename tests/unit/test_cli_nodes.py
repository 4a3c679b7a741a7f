"""`submit.py nodes`, and its effect on submissions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import submit
from jobs.core import excluded_nodes
from jobs.core.code_copy import CommandReader
from jobs.schedulers.slurm.scheduler import script_fields
from jobs.submission.before import excluded_nodes_warning
from jobs.submission.decide import Action
from jobs.submission.prepare import PreparedRun, batch_of, prepare
from tests.support.commands import Commands
from tests.support.jobs import FakeScheduler, FakeSlurm, sweep_plan

CODE = {"code": {"hash": "c0de", "path": "."}}


@pytest.fixture
def runs(tmp_path: Path, commands: Commands) -> Path:
    commands.add("scontrol", "exit 1")
    return tmp_path / "runs"


def nodes(runs: Path, *arguments: str) -> int:
    return submit.main(["nodes", "--runs", str(runs), *arguments])


def test_nodes_are_excluded_shown_and_cleared(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes(runs) == 0
    assert "no excluded nodes" in capsys.readouterr().out
    assert nodes(runs, "--exclude", "n1", "n2", "--reason", "slow link", "--hours", "2") == 0
    shown = capsys.readouterr().out
    assert "n1" in shown
    assert "slow link" in shown
    assert "2 excluded nodes" in shown
    assert "sbatch" not in shown, "no cluster answers"
    assert nodes(runs, "--clear", "n1") == 0
    assert "used again: n1" in capsys.readouterr().out
    assert nodes(runs, "--json") == 0
    assert [each["host"] for each in json.loads(capsys.readouterr().out)["excluded_nodes"]] == ["n2"]
    assert nodes(runs, "--clear-all") == 0
    assert excluded_nodes.read(runs) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--clear", "n7"), "--clear: no excluded node 'n7'"),
        (("--exclude", "n[1-3]"), "--exclude: 'n[1-3]' is not the name of one node"),
        (("--reason", "slow"), "--reason: has an effect only with --exclude"),
        (("--hours", "2", "--clear-all"), "--hours: has an effect only with --exclude"),
        (("--exclude", "n1", "--hours", "nan"), "'nan' is not a number above 0"),
        (("--exclude", "n1", "--hours", "1e9"), "'1e9' is more than 8760 hours"),
        (("--exclude", "n1", "--hours", "0"), "'0' is not a number above 0"),
        (("--exclude", "n1", "--hours=-5"), "'-5' is not a number above 0"),
    ],
)
def test_bad_names_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert nodes(runs, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not runs.exists()


def test_nodes_are_excluded_on_the_cluster_that_answers(
    runs: Path, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.add("sbatch", "exit 1")
    commands.add(
        "scontrol", 'case "$1" in ping) echo "slurmctld is UP";; *) echo "ClusterName = west";; esac'
    )
    commands.add("sinfo", "printf 'node01\\nnode01\\nnode02\\n'")
    assert nodes(runs, "--exclude", "node1") == 2
    assert "--exclude: the cluster has no node 'node1'; did you mean 'node01'?" in capsys.readouterr().err
    assert nodes(runs, "--exclude", "node01") == 0
    assert [each.cluster for each in excluded_nodes.read(runs)] == ["west"]
    commands.add("sinfo", "exit 1")
    assert nodes(runs, "--exclude", "node3") == 0
    excluded_nodes.add(runs, excluded_nodes.ExcludedNode.until("far1", "slow", cluster="east", by="ann"))
    capsys.readouterr()
    assert nodes(runs) == 0
    assert (
        "jobs by hand do not read this list: sbatch --exclude=node01,node3 jobs/" in capsys.readouterr().out
    )


def prepared(runs: Path, scheduler: FakeScheduler, **options: bool) -> PreparedRun:
    (plan,) = sweep_plan("a").runs
    (found,) = prepare(
        [Action("submit", "demo", "a", "", plan)], scheduler, runs, CODE, CommandReader(runs), **options
    )
    assert isinstance(found, PreparedRun)
    return found


def test_a_submission_excludes_them_and_records_it(runs: Path) -> None:
    assert "excluded_nodes" not in prepared(runs, FakeSlurm()).record
    nodes(runs, "--exclude", "n2", "n1")
    found = prepared(runs, FakeSlurm())
    assert found.record["excluded_nodes"] == ["n1", "n2"]
    assert script_fields(batch_of([found])).excluded_nodes == ["n1", "n2"]
    assert excluded_nodes_warning(runs, FakeSlurm())[0].startswith("excluded nodes: n1, n2 ")
    by_hand = prepared(runs, FakeSlurm(), excluding=False)
    assert "excluded_nodes" not in by_hand.record, "Slurm has already chosen the nodes of this job"
    assert "excluded_nodes" not in prepared(runs, FakeScheduler()).record, "one machine has no other node"
    assert excluded_nodes_warning(runs, FakeScheduler()) == []


def test_a_skipped_pre_flight_is_recorded(runs: Path) -> None:
    assert prepared(runs, FakeSlurm()).record["config"]["job"]["preflight"] == "auto"
    assert prepared(runs, FakeSlurm(), skip_preflight=True).record["config"]["job"]["preflight"] == "off"
