"""The pre-flight of several nodes: each a thread here, with the facts that a test gives it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.records.json_files import read_json, write_json
from disttrain.records.node import Preflight
from disttrain.records.run_directory import Attempt, RunDir
from jobs.checks import node_facts
from jobs.checks.node_checks import MIN_FREE_BYTES
from jobs.core import excluded_nodes, journal
from jobs.core.excluded_nodes import ExcludedNode
from jobs.core.exit_evidence import read_evidence
from jobs.fabric.description import Fabric, FabricKind
from jobs.fabric.lint import JobVariables
from jobs.node import peers, preflight, rendezvous
from jobs.node.allocation import NodeContext
from jobs.node.node_environment import NodeNetwork
from jobs.node.peers import NodeFailed
from tests.support.link_rates import ring

HOSTS = ["n0", "n1", "n2"]
NETWORK = NodeNetwork(Fabric(FabricKind.ETHERNET), JobVariables({}, [], []), "eth9")
ABSENT_WITHIN_S = 3.0
"""Wait for a node that a test leaves out: enough for the others on a busy machine."""
LINKS = """\
import json, os, sys
result = json.loads(os.environ["FAKE_RESULT"])
if os.environ["RANK"] == "0":
    open(sys.argv[1], "w").write(json.dumps(result))
sys.exit("no route to host" if result is None else 0)
"""
"""In place of `disttrain.comm_bench.links`: rank 0 writes the result that a test gives, or all fail."""


class Nodes:
    """The nodes of an attempt that is in a runs folder of its own."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.run, self._patch = root / "runs", RunDir(root / "runs" / "sweep" / "run"), patch
        write_json(self.run.run_json, {"config": {}})
        self.attempt = self.run.attempt(0)
        record = {"attempt": 0, "submission": 0, "started": journal.utc_now(), "nodes": HOSTS}
        write_json(self.attempt.record, record)
        write_json(journal.entry(self.run, 0).path("intent"), {"cluster_name": "west"})

    def node(self, rank: int, hosts: Sequence[str] = HOSTS, missing_gpus: str | None = None) -> NodeContext:
        return NodeContext(self.run, 0, rank, hosts, Mock(missing_gpus=lambda record: missing_gpus))

    def check(
        self, node: NodeContext, mode: str = "auto", within_s: float = 60.0, **resources: Any
    ) -> str | None:
        shape = {"nodes": 3, "gpus_per_node": 1, "device": "auto"} | resources
        job = {"rendezvous_timeout_s": within_s, "preflight": mode}
        record = {"config": {"resources": shape, "job": job}}
        return preflight.run_preflight(node, self.attempt, record, NETWORK, {})

    def change(self, changes: Mapping[int, Mapping[str, Any]]) -> None:
        """Give these nodes, by rank, other facts."""
        collect = node_facts.collect
        self._patch.setattr(
            preflight.node_facts,
            "collect",
            lambda rank, *values, **named: replace(collect(rank, *values, **named), **changes.get(rank, {})),
        )

    def together(
        self,
        changes: Mapping[int, Mapping[str, Any]] = {},
        ranks: Sequence[int] = (0, 1, 2),
        mode: str = "auto",
    ) -> list[str | None]:
        """The outcomes on these nodes, which check at once."""
        self.change(changes)
        within_s = 60.0 if len(ranks) == len(HOSTS) else ABSENT_WITHIN_S
        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(lambda rank: self.check(self.node(rank), mode, within_s), ranks))

    @property
    def found(self) -> Preflight:
        return Preflight.model_validate(read_json(self.attempt.preflight))

    def excluded(self) -> list[str]:
        return [each.host for each in excluded_nodes.read(self.root)]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(tmp_path, monkeypatch)


@pytest.fixture
def measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """`measurement(result)`: the measurement of the links gives this result; with None it fails."""
    package = tmp_path / "fake" / "disttrain" / "comm_bench"
    package.mkdir(parents=True)
    for name, text in {"../__init__.py": "", "__init__.py": "", "links.py": LINKS}.items():
        (package / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    return lambda result: monkeypatch.setenv("FAKE_RESULT", json.dumps(result))


def bandwidth(slow: Mapping[int, float]) -> dict[str, Any]:
    """The measurement of a ring of three nodes whose links have these fractions of the usual rate."""
    links = [{"source": a, "target": b, "bytes_per_s": rate} for (a, b), rate in ring(3, slow).items()]
    return {
        "backend": "gloo",
        "ranks": 3,
        "links": links,
        "all_reduce": [],
        "message_bytes": 1,
        "seconds": 1.0,
    }


def test_equal_nodes_pass_and_node_0_alone_measures_storage(nodes):
    assert nodes.together() == [None, None, None]
    found = nodes.found
    assert (found.verdict, found.mode, found.message) == ("passed", "basic", None)
    assert [each.host for each in found.nodes] == HOSTS
    assert len({each.agreement_hash for each in found.nodes}) == 1
    assert [each.write_bytes_per_s is not None for each in found.nodes] == [True, False, False]
    assert found.nodes[0].clock_offset_s is None
    low, high = found.nodes[1].clock_offset_s or (9, 9)
    assert low <= 0 <= high


def test_a_bad_node_is_refused_on_all_nodes_and_excluded(nodes):
    reasons = nodes.together({1: {"missing_gpus": "this node has 3 of the 4 GPUs"}}, mode="full")
    assert reasons == [reasons[0]] * 3
    assert str(reasons[0]).startswith("pre-flight: node n1: this node has 3 of the 4 GPUs; ")
    (entry,) = excluded_nodes.read(nodes.root)
    assert (entry.host, entry.cluster, entry.by) == ("n1", "west", "sweep/run")
    evidence = read_evidence(nodes.run, nodes.attempt, {0: 69, 1: 69, 2: 69}, None, None)
    assert evidence.nodes_at_fault == [1]
    assert str(evidence.preflight_refusal).startswith("node n1: ")
    assert nodes.found.bandwidth is None
    assert not (nodes.attempt.preflight_folder / "port.json").exists(), "links are measured after the facts"


def test_a_job_on_an_excluded_node_gets_a_warning(nodes):
    for host, cluster in (("n1", "west"), ("n2", "east"), ("n7", "west")):
        excluded_nodes.add(nodes.root, ExcludedNode.until(host, "slow link", cluster=cluster, by="ann"))
    assert nodes.together() == [None, None, None]
    found = nodes.found
    assert (found.verdict, found.at_fault) == ("warned", [])
    assert [(each.check, each.nodes) for each in found.problems] == [("excluded", ["n1"])]


@pytest.mark.parametrize(
    ("ranks", "excluded", "silent"),
    [((0, 2), ["n1"], "node n1"), ((0,), [], "nodes n1, n2")],  # a folder of node 0 alone
)
def test_a_node_that_does_not_share_the_folder_is_named(ranks, excluded, silent, nodes):
    reasons = nodes.together(ranks=ranks)
    assert reasons == [reasons[0]] * len(ranks)
    assert str(reasons[0]).startswith(f"pre-flight: {silent} wrote nothing that node n0 can see")
    assert nodes.excluded() == excluded


def test_a_problem_of_all_nodes_excludes_none(nodes):
    little = {"free_bytes": {str(nodes.run.path): 1000}}
    reasons = nodes.together({rank: little for rank in range(3)})
    assert all("free, and the run needs" in str(reason) for reason in reasons)
    assert nodes.excluded() == []


def test_a_slow_link_is_refused_and_its_error_is_the_reason(nodes, measurement):
    """The node has slow storage as well, which is a warning."""
    measurement(bandwidth({1: 0.1}))
    reasons = nodes.together({1: {"write_bytes_per_s": 1e6}}, mode="full")
    assert reasons == [reasons[0]] * 3
    assert str(reasons[0]).startswith("pre-flight: the link of node n1 moves 10.0 MB/s")
    (entry,) = excluded_nodes.read(nodes.root)
    assert (entry.host, entry.reason.partition(" moves")[0]) == ("n1", "the link of node n1")
    assert {each.check for each in nodes.found.problems} == {"storage_rate", "links"}
    assert all(each.read_bytes_per_s is not None for each in nodes.found.nodes), "all measure storage"


@pytest.mark.parametrize(("result", "verdict"), [(bandwidth({}), "passed"), (None, "warned")])
def test_a_measurement_that_fails_is_a_warning(result, verdict, nodes, measurement):
    measurement(result)
    assert nodes.together(mode="full") == [None, None, None]
    found = nodes.found
    assert (found.verdict, found.mode, found.bandwidth is None) == (verdict, "full", result is None)
    assert [each.message for each in found.problems] == (
        [] if result else ["the measurement failed with exit code 1: no route to host"]
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_the_failure_of_another_node_ends_the_wait(rank, nodes):
    peers.record_node_exit(nodes.attempt, 1, 69)
    with pytest.raises(NodeFailed, match="node 1 has ended with exit code 69"):
        nodes.check(nodes.node(rank))


def test_a_verdict_that_arrives_with_the_failures_is_the_reason(nodes, monkeypatch):
    """Node 0 writes it before its own exit; here after another node has looked for it."""
    real = os.listdir

    def listdir(path):
        if path == nodes.attempt.exits:
            write_json(nodes.attempt.preflight, {"message": "node n1 is bad"})
        return real(path)

    peers.record_node_exit(nodes.attempt, 0, 69)
    monkeypatch.setattr(os, "listdir", listdir)
    assert nodes.check(nodes.node(2)) == "pre-flight: node n1 is bad"


def test_a_skipped_pre_flight_is_recorded_and_still_needs_the_gpus(nodes):
    assert nodes.check(nodes.node(1), "off") is None
    assert not nodes.attempt.preflight.exists(), "node 0 records it"
    assert nodes.check(nodes.node(0), "off") is None
    assert (nodes.found.verdict, nodes.found.mode, nodes.found.nodes) == ("skipped", "off", [])
    assert nodes.check(nodes.node(0, missing_gpus="0 of 4 GPUs"), "off") == "0 of 4 GPUs"


@pytest.mark.parametrize(
    ("configured", "several", "gpus", "mode"),
    [
        ("auto", True, 1, "full"),
        ("auto", True, 0, "basic"),
        ("auto", False, 4, "basic"),
        ("full", True, 0, "full"),
        ("full", False, 1, "basic"),
        ("full", False, 2, "full"),
        ("basic", True, 4, "basic"),
        ("off", True, 4, "off"),
    ],
)
def test_the_bandwidth_is_measured_between_machines_and_between_gpus(configured, several, gpus, mode):
    assert preflight.resolved_mode(configured, several_machines=several, gpus=gpus) == mode


@pytest.mark.parametrize(
    ("hosts", "configured", "mode"),
    [(["n0"], "full", "full"), (["n0"], "auto", "basic"), (["127.0.0.1"] * 2, "full", "basic")],
)
def test_one_node_with_several_gpus_measures_between_them(
    hosts, configured, mode, nodes, measurement, monkeypatch
):
    monkeypatch.setattr(preflight, "has_driver", lambda: True)
    measurement(None)
    shape = {"nodes": len(hosts), "gpus_per_node": 2, "device": "cuda"}
    assert nodes.check(nodes.node(0, hosts), configured, **shape) is None
    assert nodes.found.mode == mode
    problems = [each.check for each in nodes.found.problems]
    assert problems == (["all_reduce"] if mode == "full" else [])


def test_the_space_needed_includes_one_more_checkpoint(tmp_path):
    run, folder = RunDir(tmp_path / "runs" / "s" / "r"), tmp_path / "ckpt" / "s" / "r"
    for step, size in ((10, 5000), (20, 1000)):  # the newest one counts
        (folder / f"step-{step:08d}").mkdir(parents=True)
        (folder / f"step-{step:08d}" / "data").write_bytes(bytes(size))
    needed = preflight.space_needed(run, {"checkpoint": {"dir": str(tmp_path / "ckpt")}})
    assert needed == {str(run.path): MIN_FREE_BYTES, str(folder): MIN_FREE_BYTES + 1000}


def test_a_folder_is_opened_before_each_read(nodes, monkeypatch):
    """NFS caches that a file is absent, and compares a folder with the server when it is opened."""
    listed: list[Path] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or real(path))
    attempt: Attempt = nodes.attempt
    write_json(attempt.preflight, {"message": None})
    write_json(attempt.rendezvous, {"address": "n0", "port": 1})
    peers.answer_of_node_0(attempt, None, 0, attempt.preflight_folder / "port.json", attempt.preflight)
    rendezvous.wait_for_endpoint(attempt, 0)
    assert {attempt.path, attempt.preflight_folder} <= {*listed}


def test_the_ranks_of_a_node_have_the_variables_of_torchrun(nodes):
    first, second = preflight.rank_variables(nodes.node(1), 2, 29500)
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("2", "3", "6")
    assert (second["LOCAL_RANK"], second["LOCAL_WORLD_SIZE"]) == ("1", "2")
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("n0", "29500")
