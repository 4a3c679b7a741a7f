"""Start of torchrun: the agreement of the nodes before it, and processes that the OOM killer ended."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.records import process_limits
from disttrain.records.heartbeat import count_killed_probes, record_killed_probe
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import PROCESSORS, RunDir
from jobs.checks import rank_python
from jobs.core import journal
from jobs.core.environment import AddedVariable
from jobs.fabric.description import Fabric, FabricKind, Interface
from jobs.node import launch, node_environment, rendezvous
from jobs.node.allocation import NodeContext

SECOND = "low 0\nhigh 0\nmax 812\noom 4\noom_kill 3\noom_group_kill 1\n"
FIRST = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
OLD_FIRST = "oom_kill_disable 0\nunder_oom 0\n"  # before Linux 4.13


@pytest.mark.parametrize(
    ("own", "file", "text", "kills"),
    [
        ("0::/slurm/job_7/task_0", "slurm/job_7/task_0/memory.events", SECOND, 3),
        ("0::/", "memory.events", SECOND, 3),
        ("0::/", "other", "", None),
        ("0::/gone", "memory.events", SECOND, None),
        ("5:cpu,cpuacct:/b\n4:memory:/job_7\n0::/a", "memory/job_7/memory.oom_control", FIRST, 2),
        ("4:blkio,memory:/job_7", "memory/job_7/memory.oom_control", FIRST, 2),
        ("4:memory:/docker/ab", "memory/memory.oom_control", FIRST, 2),
        ("4:memory:/job_7", "memory/job_7/memory.oom_control", OLD_FIRST, None),
        ("3:name=memory-like:/job_7", "memory/job_7/memory.oom_control", FIRST, None),
        (None, "memory.events", SECOND, None),
    ],
)
def test_the_count_of_oom_kills_in_the_control_group_of_this_process(
    tmp_path, monkeypatch, own, file, text, kills
):
    """Of versions 1 and 2."""
    monkeypatch.setattr(process_limits, "ROOT", tmp_path)
    if own is not None:
        write_text(tmp_path / "proc/self/cgroup", f"{own}\n")
    write_text(tmp_path / "sys/fs/cgroup" / file, text)
    assert process_limits.count_oom_kills() == kills


@pytest.mark.parametrize(
    ("before", "after", "probes", "recorded"),
    [(2, 2, 0, None), (2, 3, 0, 1), (2, 3, 1, None), (2, 5, 2, 1), (None, 3, 0, None), (2, None, 0, None)],
)
def test_kills_of_probes_are_left_out(tmp_path, monkeypatch, before, after, probes, recorded):
    attempt = RunDir(tmp_path / "run").attempt(0)
    attempt.path.mkdir(parents=True)
    for pid in range(probes):
        record_killed_probe(tmp_path, pid)
    monkeypatch.setattr(launch, "count_oom_kills", lambda: after)
    launch._record_oom_kills(attempt, 0, before, count_killed_probes(tmp_path))
    path = attempt.node_oom(0)
    assert (read_json(path)["kills"] if path.exists() else None) == recorded


def planned(tmp_path: Path, nodes: int) -> RunDir:
    """A run on CPUs whose first attempt is open."""
    run = RunDir(tmp_path / "runs" / "sweep" / "run")
    config = Config.model_validate({"resources": {"nodes": nodes, "device": "cpu"}}).as_dict()
    write_json(run.run_json, {"config": config, "run_key": "abc"})
    hosts = [f"n{node}" for node in range(nodes)]
    opened = {"attempt": 0, "submission": 0, "started": journal.utc_now(), "nodes": hosts}
    write_json(run.attempt(0).record, opened)
    return run


def test_gloo_of_all_nodes_uses_the_interface_of_the_route(tmp_path, monkeypatch, capsys):
    """Each node is a thread here. A faster interface is named in the log, and a node with another network."""
    run, hosts = planned(tmp_path, 2), ["n0", "n1"]
    allocation = Mock(missing_gpus=lambda record: None, end_time=lambda: 2e9)
    slow = Interface("eth0", "up", 1, 1000, 1500, "igb", None, networks=("10.0.0.0/16",))
    fast = Interface("eth1", "up", 1, 100_000, 9000, "ice", None, networks=("10.1.0.0/16",))
    fabric = Fabric(FabricKind.ETHERNET, interfaces=(slow, fast))
    monkeypatch.setattr(node_environment, "detect_or_nothing", lambda *_, **__: fabric)
    resolved: list[str] = []

    def interface_towards(host: str) -> str:
        resolved.append(host)
        return "eth0" if host == "n1" else "eth1"

    monkeypatch.setattr(node_environment, "interface_towards", interface_towards)

    def interfaces(rank: int) -> dict[str, str]:
        with contextlib.ExitStack() as held:
            python = rank_python.find({}, os.environ, is_trainer=False)
            node = NodeContext(run, 0, rank, hosts, allocation)
            added, _ = launch._agree(node, run.attempt(0), read_json(run.run_json), python, held)
        return {name: each.value for name, each in added.items() if "IFNAME" in name}

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(interfaces, (0, 1))] == [{"GLOO_SOCKET_IFNAME": name} for name in ("eth0", "eth1")]
    out = capsys.readouterr().out
    assert "GLOO_SOCKET_IFNAME=eth0 (derived): the node has a faster one (100 Gbit/s)" in out
    assert "pre-flight: warning: interface is eth0 on n0 and eth1 on n1; " in out
    assert sorted(resolved) == hosts, "a name that is resolved again may fail on one node alone"


def test_the_record_of_the_node_is_taken_in_the_environment_of_the_ranks(tmp_path, monkeypatch):
    run = planned(tmp_path, 1)
    variables = {"DISTTRAIN_DEADLINE": "2e9", "NCCL_CONF_FILE": "/site/nccl.conf", PROCESSORS: "0-7"}
    added = {name: AddedVariable(value, "x", "site") for name, value in variables.items()}
    started: list[Any] = []
    monkeypatch.setattr(launch, "_agree", lambda *_: (added, rendezvous.Endpoint("n0", 1)))
    monkeypatch.setattr(launch.node_info, "start_node_info", lambda *given: started.append(given[2]))
    with contextlib.ExitStack() as held:
        prepared = launch._prepare(NodeContext(run, 0, 0, ["n0"], None), run.attempt(0), held)
    assert started == [prepared.env]
    assert prepared.env["NCCL_CONF_FILE"] == "/site/nccl.conf"
    assert {*node_environment.BINDING} <= {*prepared.command}, "ranks are bound to these processors"
