"""Start of torchrun: the agreement of the nodes before it, and processes that the OOM killer ended."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.heartbeat import count_killed_probes, record_killed_probe
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import PROCESSORS, RunDir
from jobs.core import journal
from jobs.core.environment import AddedVariable
from jobs.fabric.description import Fabric, FabricKind, Interface
from jobs.node import launch, node_environment, rendezvous
from jobs.node.allocation import NodeContext


@pytest.mark.parametrize(
    ("before", "after", "probes", "recorded"),
    [
        (2, 2, 0, None),
        (2, 3, 0, 1),
        (2, 3, 1, None),
        (2, 5, 2, 1),
        (2, 3, 2, None),
        (None, 3, 0, None),
        (2, None, 0, None),
    ],
)
def test_kills_of_probes_are_left_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: int | None,
    after: int | None,
    probes: int,
    recorded: int | None,
) -> None:
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    node = tmp_path / "node"
    node.mkdir()
    for pid in range(probes):
        record_killed_probe(node, pid)
    monkeypatch.setattr(launch, "count_oom_kills", lambda: after)
    launch._record_oom_kills(attempt, 0, before, count_killed_probes(node))
    path = attempt.node_oom(0)
    assert (read_json(path)["kills"] if path.exists() else None) == recorded


def test_gloo_of_all_nodes_uses_the_interface_of_the_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each node is a thread here. A faster interface is named in the log, and a node with another network."""
    config = Config.model_validate({"resources": {"nodes": 2, "device": "cpu"}}).as_dict()
    run, hosts = RunDir(tmp_path / "runs" / "sweep" / "run"), ["n0", "n1"]
    write_json(run.run_json, {"config": config})
    attempt = run.attempt(0)
    opened = {"attempt": 0, "submission": 0, "started": journal.utc_now(), "nodes": hosts}
    write_json(attempt.record, opened)
    allocation = Mock(missing_gpus=lambda record: None, end_time=lambda: 2e9)
    slow = Interface("eth0", "up", 1, 1000, 1500, "igb", None, networks=("10.0.0.0/16",))
    fast = Interface("eth1", "up", 1, 100_000, 9000, "ice", None, networks=("10.1.0.0/16",))
    monkeypatch.setattr(
        node_environment, "detect_or_nothing", lambda _: Fabric(FabricKind.ETHERNET, interfaces=(slow, fast))
    )
    resolved: list[str] = []

    def interface_towards(host: str) -> str:
        resolved.append(host)
        return "eth0" if host == "n1" else "eth1"

    monkeypatch.setattr(node_environment, "interface_towards", interface_towards)

    def variables(rank: int) -> dict[str, str]:
        with contextlib.ExitStack() as held:
            node = NodeContext(run, 0, rank, hosts, allocation)
            added, _ = launch._agree(node, attempt, {"config": config}, held)
        return {name: each.value for name, each in added.items() if "IFNAME" in name}

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(variables, (0, 1)))
    assert found == [{"GLOO_SOCKET_IFNAME": "eth0"}, {"GLOO_SOCKET_IFNAME": "eth1"}]
    out = capsys.readouterr().out
    assert "GLOO_SOCKET_IFNAME=eth0 (derived): the node has a faster one (100 Gbit/s)" in out
    assert "pre-flight: warning: interface is eth0 on n0 and eth1 on n1; " in out
    assert sorted(resolved) == hosts, "a name that is resolved again may fail on one node alone"


def test_the_record_of_the_node_is_taken_in_the_environment_of_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"resources": {"device": "cpu"}}).as_dict()
    run = RunDir(tmp_path / "runs" / "sweep" / "run")
    write_json(run.run_json, {"schema_version": 1, "config": config})
    added = {
        "DISTTRAIN_DEADLINE": AddedVariable("2e9", "x", "config"),
        "NCCL_CONF_FILE": AddedVariable("/site/nccl.conf", "x", "site"),
        PROCESSORS: AddedVariable("0-7", "x", "derived"),
    }
    started: list[Mapping[str, str]] = []
    monkeypatch.setattr(launch, "_agree", lambda *_: (added, rendezvous.Endpoint("n0", 1)))
    monkeypatch.setattr(launch, "launch_command", lambda *_, is_bound: ["torchrun"] if is_bound else [])
    monkeypatch.setattr(launch.run_code, "code_problem", lambda *_: None)
    monkeypatch.setattr(launch.node_info, "start_node_info", lambda *given: started.append(given[2]))
    with contextlib.ExitStack() as held:
        prepared = launch._prepare(NodeContext(run, 0, 0, ["n0"], None), run.attempt(0), held)
    assert [each["NCCL_CONF_FILE"] for each in started] == ["/site/nccl.conf"]
    assert started == [prepared.env]
