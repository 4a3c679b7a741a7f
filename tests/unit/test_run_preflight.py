"""The pre-flight of several nodes: each a thread here, with the facts that a test gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.node import Preflight
from disttrain.records.run_directory import Attempt, RunDir
from jobs.checks import node_checks, node_facts
from jobs.checks.finding import Finding
from jobs.checks.node_facts import NodeFacts
from jobs.core import excluded_nodes, journal
from jobs.core.exit_evidence import read_evidence
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.lint import JobVariables
from jobs.node import peers, preflight, rendezvous
from jobs.node.allocation import NodeContext
from jobs.node.node_environment import NodeNetwork
from jobs.node.peers import NodeFailed

HOSTS = ["n0", "n1", "n2"]
RECORD: dict[str, Any] = {
    "config": {
        "resources": {"nodes": 3, "gpus_per_node": 1, "device": "auto"},
        "job": {"rendezvous_timeout_s": 60.0, "preflight": "auto"},
    }
}
ABSENT_WITHIN_S = 3.0
"""Wait for a node that a test leaves out: enough for the others on a busy machine."""

NETWORK = NodeNetwork(Fabric(FabricKind.ETHERNET), JobVariables({}, [], []), "eth9")


def run_preflight(node: NodeContext, attempt: Attempt, record: Mapping[str, Any]) -> str | None:
    return preflight.run_preflight(node, attempt, record, NETWORK, {})


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    run = RunDir(tmp_path / "runs" / "sweep" / "run")
    write_json(run.run_json, {"config": {}})
    made = run.attempt(0)
    write_json(made.record, {"attempt": 0, "submission": 0, "started": journal.utc_now(), "nodes": HOSTS})
    write_json(journal.entry(run, 0).path("intent"), {"cluster_name": "west"})
    return made


def node(attempt: Attempt, rank: int) -> NodeContext:
    run = RunDir(attempt.path.parent.parent)
    return NodeContext(run, 0, rank, HOSTS, Mock(missing_gpus=lambda record: None))


@pytest.fixture
def together(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    """Runs the pre-flight on these nodes at once; each has the healthy facts with its changes."""

    def run(changes: Mapping[int, Mapping[str, Any]], ranks: tuple[int, ...] = (0, 1, 2)) -> list[str | None]:
        collect = node_facts.collect

        def collected(rank: int, *values: Any, **arguments: Any) -> NodeFacts:
            own = collect(rank, *values, **arguments)
            return replace(own, **changes.get(rank, {}))

        monkeypatch.setattr(preflight.node_facts, "collect", collected)
        config = RECORD["config"]
        if len(ranks) < len(HOSTS):
            config = {**config, "job": {**config["job"], "rendezvous_timeout_s": ABSENT_WITHIN_S}}

        def outcome(rank: int) -> str | None:
            return run_preflight(node(attempt, rank), attempt, {"config": config})

        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(outcome, ranks))

    return run


def test_equal_nodes_pass(together: Callable[..., list[str | None]], attempt: Attempt) -> None:
    assert together({}) == [None, None, None]
    found = Preflight.model_validate(read_json(attempt.preflight))
    assert (found.verdict, found.mode, found.message) == ("passed", "basic", None)
    assert [each.host for each in found.nodes] == HOSTS
    assert len({each.agreement_hash for each in found.nodes}) == 1
    low, high = found.nodes[1].clock_offset_s or (9, 9)
    assert low <= 0 <= high
    assert found.seconds < 5


def test_a_bad_node_is_refused_on_all_nodes_and_excluded(
    together: Callable[..., list[str | None]], attempt: Attempt
) -> None:
    reasons = together({1: {"missing_gpus": "this node has 3 of the 4 GPUs that the job requested"}})
    assert len(set(reasons)) == 1
    assert str(reasons[0]).startswith("pre-flight: node n1: this node has 3 of the 4 GPUs")
    (entry,) = excluded_nodes.read(attempt.path.parents[3])
    assert (entry.host, entry.cluster, entry.by) == ("n1", "west", "sweep/run")
    evidence = read_evidence(RunDir(attempt.path.parent.parent), attempt, {0: 69, 1: 69, 2: 69}, None, None)
    assert evidence.nodes_at_fault == [1]
    assert str(evidence.preflight_refusal).startswith("node n1: ")


def test_the_exclusion_list_has_the_error_of_a_node_and_not_its_warnings(attempt: Attempt) -> None:
    slow = Finding("warning", "storage_rate", "node n1 writes 1.0 MB/s", "", hosts=("n1",))
    bad = Finding("error", "links", "the link of node n1 moves 1.0 MB/s", "", hosts=("n1",))
    preflight._exclude(node(attempt, 0), ["n1"], [slow, bad])
    (entry,) = excluded_nodes.read(attempt.path.parents[3])
    assert entry.reason == bad.problem


def test_a_job_on_an_excluded_node_gets_a_warning(
    together: Callable[..., list[str | None]], attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    root = attempt.path.parents[3]
    for host, cluster in (("n1", "west"), ("n2", "east"), ("n7", "west")):
        excluded_nodes.add(
            root, excluded_nodes.ExcludedNode.until(host, "slow link", cluster=cluster, by="ann")
        )
    assert together({}) == [None, None, None]
    found = Preflight.model_validate(read_json(attempt.preflight))
    assert (found.verdict, found.at_fault) == ("warned", [])
    assert [(each.check, each.nodes) for each in found.problems] == [("excluded", ["n1"])]
    assert "warning: node n1 is on the exclusion list (ann: slow link); resubmit" in capsys.readouterr().out


def test_a_problem_of_all_nodes_excludes_none(
    together: Callable[..., list[str | None]], attempt: Attempt
) -> None:
    little = {"free_bytes": {str(attempt.path.parent.parent): 1000}}
    reasons = together(dict.fromkeys(range(3), little))
    assert all("free, and the run needs" in str(reason) for reason in reasons)
    assert excluded_nodes.read(attempt.path.parents[3]) == []


def test_a_node_that_does_not_share_the_folder_is_named(
    together: Callable[..., list[str | None]], attempt: Attempt
) -> None:
    reasons = together({}, ranks=(0, 2))
    assert len(set(reasons)) == 1
    assert "node n1 wrote nothing that node n0 can see" in str(reasons[0])
    assert [each.host for each in excluded_nodes.read(attempt.path.parents[3])] == ["n1"]


def test_a_folder_of_node_0_alone_excludes_no_node(
    together: Callable[..., list[str | None]], attempt: Attempt
) -> None:
    (reason,) = together({}, ranks=(0,))
    assert str(reason).startswith("pre-flight: nodes n1, n2 wrote nothing that node n0 can see")
    assert "\n" not in str(reason)
    assert excluded_nodes.read(attempt.path.parents[3]) == []


@pytest.mark.parametrize("failure", ["exit code 1", None])
def test_a_problem_of_the_measurement_is_kept(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, failure: str | None
) -> None:
    slow = Finding("error", "links", "the link of node n1 is slow", "x", hosts=("n1",))
    monkeypatch.setattr(preflight, "_run_measurement", lambda *_: failure)
    monkeypatch.setattr(preflight, "judged_bandwidth", lambda *_: ({}, [slow]))
    start = preflight._Start(node(attempt, 0), attempt, RECORD["config"], "full", {}, 0.0)
    write_json(start.result_file, {})
    _, findings = preflight._measured(start, [])
    assert [finding.problem for finding in findings] == [failure or slow.problem]


def test_the_failure_of_another_node_ends_the_wait(attempt: Attempt) -> None:
    peers.record_node_exit(attempt, 1, 69)
    with pytest.raises(NodeFailed, match="node 1 has ended with exit code 69"):
        run_preflight(node(attempt, 0), attempt, RECORD)
    with pytest.raises(NodeFailed):
        run_preflight(node(attempt, 2), attempt, RECORD)


def test_a_skipped_pre_flight_is_recorded_and_still_needs_the_gpus(attempt: Attempt) -> None:
    config = RECORD["config"]
    record = {"config": {**config, "job": {**config["job"], "preflight": "off"}}}
    first = node(attempt, 0)
    assert run_preflight(first, attempt, record) is None
    found = Preflight.model_validate(read_json(attempt.preflight))
    assert (found.verdict, found.mode, found.nodes) == ("skipped", "off", [])
    lacking = replace(first, allocation=Mock(missing_gpus=lambda record: "0 of 4 GPUs"))
    assert run_preflight(lacking, attempt, record) == "0 of 4 GPUs"


@pytest.mark.parametrize(
    ("configured", "several", "gpus", "mode"),
    [
        ("auto", True, 1, "full"),
        ("auto", True, 0, "basic"),
        ("auto", False, 1, "basic"),
        ("auto", False, 4, "basic"),
        ("full", True, 0, "full"),
        ("full", False, 1, "basic"),
        ("full", False, 4, "full"),
        ("basic", True, 4, "basic"),
        ("off", True, 4, "off"),
    ],
)
def test_the_bandwidth_is_measured_between_machines_and_between_gpus(
    configured: str, several: bool, gpus: int, mode: str
) -> None:
    assert preflight.resolved_mode(configured, several_machines=several, gpus=gpus) == mode


@pytest.mark.parametrize(
    ("hosts", "configured", "mode"),
    [(["n0"], "full", "full"), (["n0"], "auto", "basic"), (["127.0.0.1"] * 2, "full", "basic")],
)
def test_one_node_with_several_gpus_measures_between_them(
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    configured: str,
    mode: str,
) -> None:
    shape = {"nodes": len(hosts), "gpus_per_node": 2, "device": "cuda"}
    job = {**RECORD["config"]["job"], "preflight": configured}
    record = {"config": {**RECORD["config"], "resources": shape, "job": job}}
    reduced = [{"bytes": 2**30, "bus_bytes_per_s": 1e9, "seconds": 1.0}]
    result = {
        "backend": "nccl", "links": [], "all_reduce": reduced,
        "ranks": 2, "message_bytes": 2**24, "seconds": 9.0,
    }  # fmt: skip
    collect = node_facts.collect
    monkeypatch.setattr(
        preflight.node_facts,
        "collect",
        lambda *a, **k: replace(collect(*a, **k), gpus=2, nvlink=(30e9, False)),
    )
    monkeypatch.setattr(preflight, "has_driver", lambda: True)
    monkeypatch.setattr(
        preflight, "_run_measurement", lambda start, port: write_json(start.result_file, result)
    )
    alone = replace(node(attempt, 0), hosts=hosts)
    assert run_preflight(alone, attempt, record) is None
    found = Preflight.model_validate(read_json(attempt.preflight))
    assert found.mode == mode
    slow = [each for each in found.problems if each.check == "all_reduce"]
    assert len(slow) == (mode == "full")


def test_the_space_needed_includes_one_more_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "s" / "r")
    step = tmp_path / "ckpt" / "s" / "r" / "step-00000020"
    step.mkdir(parents=True)
    (step / "data").write_bytes(bytes(1000))
    needed = preflight.space_needed(run, {"checkpoint": {"dir": str(tmp_path / "ckpt")}})
    assert needed == {
        str(run.path): node_checks.MIN_FREE_BYTES,
        str(step.parent): node_checks.MIN_FREE_BYTES + 1000,
    }


def test_without_a_measurement_of_the_links_node_0_alone_measures_storage(
    together: Callable[..., list[str | None]], attempt: Attempt, capsys: pytest.CaptureFixture[str]
) -> None:
    together({})
    found = Preflight.model_validate(read_json(attempt.preflight))
    assert found.mode == "basic"
    assert [each.write_bytes_per_s is not None for each in found.nodes] == [True, False, False]
    assert "pre-flight: node n0 writes " in capsys.readouterr().out


def test_the_machine_of_the_user_measures_no_storage(attempt: Attempt) -> None:
    alone = replace(node(attempt, 0), allocation=None)
    assert preflight._rate_folder(alone, attempt, "basic") is None
    assert preflight._rate_folder(alone, attempt, "full") == attempt.preflight_folder
    assert preflight._rate_folder(node(attempt, 0), attempt, "basic") == attempt.path


def test_a_follower_opens_the_folder_before_each_read(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS caches that a file is absent until its folder is opened."""
    listed = []
    monkeypatch.setattr(peers.os, "listdir", lambda folder: listed.append(folder) or [])  # type: ignore[func-returns-value]
    write_json(attempt.preflight, {"message": None})
    write_json(attempt.rendezvous, {"address": "n0", "port": 1})
    port = attempt.preflight_folder / "port.json"
    peers.answer_of_node_0(attempt, None, 0, port, attempt.preflight)
    rendezvous.wait_for_endpoint(attempt, 0)
    assert set(listed) == {attempt.path, attempt.preflight_folder}


def test_the_ranks_of_a_node_have_the_variables_of_torchrun(attempt: Attempt) -> None:
    first, second = preflight.rank_variables(node(attempt, 1), 2, 29500)
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("2", "3", "6")
    assert (second["LOCAL_RANK"], second["LOCAL_WORLD_SIZE"]) == ("1", "2")
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("n0", "29500")
