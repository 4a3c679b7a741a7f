"""The variables that an agent adds on its node: derived from the network, and the binding to processors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from disttrain.config.config_tree import Config
from disttrain.masking import MASK
from disttrain.records.planned import EnvRecord
from disttrain.records.run_directory import ADAPTERS, RunDir
from jobs.checks.gpu_health import NodeGpus
from jobs.core import environment
from jobs.fabric.description import ConfigurationFile, Fabric, FabricKind, Gpu, Interface, PciDevice, Software
from jobs.fabric.gpus import NvmlReading
from jobs.node import node_environment
from jobs.node.allocation import NodeContext
from jobs.node.node_environment import NodeNetwork, detect_or_nothing, network_of_node, node_network
from tests.support.fabric_trees import tree

Trees = Callable[[str], Fabric]
SOFTWARE = Software("2.27.5", nvidia_driver="550.54", ofi_plugin_version="1.13.2", libfabric_version="1.22.0")
INTERFACES = tuple(Interface(name, "up", 1, 1000, None, None, None) for name in ("eth0", "hsn0"))
GRACE = (Gpu(PciDevice("0009:01:00.0"), has_c2c=True),)
SLINGSHOT = Fabric(FabricKind.SLINGSHOT, interfaces=INTERFACES, gpus=GRACE, software=SOFTWARE)


def record(env: Mapping[str, str] = {}, profile: Mapping[str, str] = {}, **resources: Any) -> dict[str, Any]:
    """`run.json` with variables of the config and of the site profile."""
    fields = {"job": {"env": dict(env)}, "resources": {"nodes": 2} | resources}
    values = {name: {"value": value, "reason": "x"} for name, value in profile.items()}
    return {"config": Config.model_validate(fields).as_dict(), "profile": {"environment": values, "srun": {}}}


def network(
    fabric: Fabric = SLINGSHOT, run: Mapping[str, Any] | None = None, environ: Mapping[str, str] = {},
    nodes: int = 2, interface: str | None = "hsn0",
) -> NodeNetwork:  # fmt: skip
    return node_network(fabric, run or record(), environ, nodes, interface)


def written(found: NodeNetwork) -> EnvRecord:
    added = environment.added_variables(record()["config"], {}, fabric=found.added)
    return EnvRecord.model_validate(json.loads(json.dumps(found.record(added))))


GPUS = [Gpu(PciDevice(f"0:{n}", ()), uuid=f"GPU-{n}") for n in range(4)]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"gpus_per_node": 2}, GPUS[:2]),
        ({"gpus_per_node": 2, "device": "shared"}, GPUS[:1]),
        ({"gpus_per_node": 2, "device": "cpu"}, []),
        ({"gpus_per_node": 8}, GPUS),
    ],
)
def test_the_gpus_of_a_command(resources, expected, monkeypatch):
    reading = NvmlReading(gpus=tuple(GPUS))
    monkeypatch.setattr(node_environment, "node_gpus", lambda: NodeGpus(4, reading=reading))
    assert [*node_environment.gpus_of_ranks(record(**resources)["config"])] == expected


@pytest.mark.parametrize(
    ("own", "of_site", "expected"),
    [(None, None, None), (None, 15.0, 900.0), (0, 15.0, None), (30, 15.0, 1800.0), (30, None, 1800.0)],
)
def test_the_limit_of_silence_is_that_of_the_run_else_that_of_the_site(own, of_site, expected):
    run = {"config": {"job": {"idle_timeout_min": own}}, "profile": {"idle_timeout_min": of_site}}
    assert environment.idle_limit_s(run) == expected


def test_derived_variables_and_their_versions_are_recorded():
    found = written(network())
    guard = found.variables["NCCL_LL128_C2C"]
    assert (guard.value, guard.source, guard.since, guard.until) == ("0", "derived", "2.27.3", None)
    assert (guard.evidence, guard.reference) == (
        "network slingshot, GPU with NVLink-C2C", "https://github.com/NVIDIA/nccl/issues/2001",
    )  # fmt: skip
    assert found.variables["NCCL_SOCKET_IFNAME"].value == "=hsn0"
    assert found.versions is not None
    assert found.versions.model_dump(exclude={"schema_version"}) == {
        "nccl": "2.27.5", "nvidia_driver": "550.54", "aws_ofi_nccl": "1.13.2", "libfabric": "1.22.0",
    }  # fmt: skip


def test_values_of_user_site_shell_and_files_win_and_are_recorded():
    files = (
        ConfigurationFile("/home/ada/.nccl.conf", (("NCCL_DEBUG", "INFO"),)),
        ConfigurationFile("/etc/nccl.conf", (("NCCL_DEBUG", "TRACE"), ("NCCL_LL128_C2C", "1"))),
    )
    fabric = replace(SLINGSHOT, software=replace(SOFTWARE, nccl_files=files))
    run = record({"FI_CXI_DEFAULT_CQ_SIZE": "65536"}, {"FI_CXI_RX_MATCH_MODE": "software"})
    found = network(fabric, run, {"NCCL_NET_GDR_LEVEL": "SYS", "PATH": "/bin"})
    inherited = written(found).inherited
    assert {name: (each.value, each.origin) for name, each in inherited.items()} == {
        "NCCL_DEBUG": ("INFO", "/home/ada/.nccl.conf"),
        "NCCL_LL128_C2C": ("1", "/etc/nccl.conf"),
        "NCCL_NET_GDR_LEVEL": ("SYS", "environment"),
    }
    own = {"FI_CXI_DEFAULT_CQ_SIZE", "FI_CXI_RX_MATCH_MODE"}
    assert not {*inherited, *own} & found.added.keys()
    errors = [each for each in found.variables.findings if each.severity == "error"]
    assert [(each.name, each.kind, each.origin) for each in errors] == [
        ("NCCL_LL128_C2C", "corruption", "/etc/nccl.conf")
    ]


def test_the_shared_variables_and_the_interface_should_agree():
    first = network().agreement
    assert first["interface"] == "hsn0"
    assert "NCCL_LL128_C2C=0" in first["derived variables"]
    assert "IFNAME" not in first["derived variables"], "names of devices may differ"
    other = network(replace(SLINGSHOT, software=Software("2.26.2")), interface="eth0").agreement
    assert other["interface"] == "eth0"
    assert "NCCL_LL128_C2C" not in other["derived variables"]


def test_errors_and_warnings_reach_the_log_without_secrets(capsys):
    run = record({"NCCL_IB_TIMEOUT": "99", "NCCL_MY_TOKEN": "hush", "NCCL_SOCKET_NTHREADS": "4"})
    found = network(run=run)
    found.log_findings()
    lines = [line.partition("agent: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(" (job.env)")[0] for line in lines] == [
        "error: NCCL_IB_TIMEOUT=99", f"warning: NCCL_MY_TOKEN={MASK}",
    ]  # fmt: skip
    findings = {each["name"]: each["value"] for each in found.record({})["findings"]}
    assert (findings["NCCL_MY_TOKEN"], findings["NCCL_IB_TIMEOUT"]) == (MASK, "99")


COMPUTE = ",".join(f"mlx5_{number}/1" for number in range(8))


@pytest.mark.parametrize(
    ("run", "nodes", "is_shown", "expected"),
    [
        (record(), 2, True, {ADAPTERS: COMPUTE, "NCCL_SOCKET_IFNAME": "=enp226s0"}),
        (record({"NCCL_IB_HCA": "mlx5"}), 2, True, {ADAPTERS: COMPUTE}),  # it names storage as well
        (record(), 1, True, {ADAPTERS: None, "GLOO_SOCKET_IFNAME": None}),
        (record(device="cpu"), 2, True, {ADAPTERS: None, "NCCL_SOCKET_IFNAME": None}),
        (record(), 2, False, {ADAPTERS: None, "NCCL_SOCKET_IFNAME": None}),
        (record(device="cuda"), 2, False, {ADAPTERS: COMPUTE, "NCCL_SOCKET_IFNAME": "=enp226s0"}),
    ],
)
def test_adapters_are_those_of_the_gpus_of_a_run(run, nodes, is_shown, expected, fabric_of):
    """Some containers hide the PCI bus, and with it the GPUs."""
    fabric = fabric_of("hdr_mixed")
    fabric = fabric if is_shown else replace(fabric, gpus=())
    added = network(fabric, run, nodes=nodes, interface=None).added
    assert {name: added[name].value if name in added else None for name in expected} == expected
    assert ADAPTERS not in network().added, "none was detected"


def test_the_interface_is_that_towards_another_node(tmp_path):
    here, nowhere = "127.0.0.1", "no-such-node.invalid"
    for rank, hosts in ((1, [here, nowhere]), (0, [nowhere, here]), (2, [here, nowhere, nowhere])):
        assert (
            network_of_node(NodeContext(RunDir(tmp_path), 0, rank, hosts, None), record()).interface == "lo"
        )
    alone = network_of_node(NodeContext(RunDir(tmp_path), 0, 0, [here] * 2, None), record())
    assert alone.interface is None, "nodes that are one machine"


def test_a_failing_detection_leaves_the_run_without_derived_variables(capsys):
    assert detect_or_nothing({}) == Fabric(FabricKind.NONE)
    assert "the network of this node is not described" in capsys.readouterr().out


def test_libraries_are_found_where_the_ranks_search_them(tmp_path, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    root = tree("efa_p5", tmp_path)
    path = {"LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"}
    other = {"LD_LIBRARY_PATH": "/opt"}
    runs = (record(), record(path), record({}, path), record(path, other), record(other, path))
    found = [detect_or_nothing(run, root).software.nccl_plugins for run in runs]
    assert [plugin.is_reachable for (plugin,) in found] == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"usable": range(8, 56)}, None),
        ({"threads": 11}, None),
        ({"threads": 12}, "the job has too few processors"),  # 48 for four ranks of 12 and a helper each
        ({"binding": "none"}, "job.binding is none"),
        ({"allocation": None}, "runs on this machine share its processors"),
        ({"ranks": 1}, "one rank uses all processors of the job"),
        ({"device": "cpu"}, "no rank has a GPU of its own"),
        ({"numactl": None}, "torchrun needs the command numactl"),
        ({"ranks": 9}, "no GPU was found for each rank"),
        ({"unknown": True}, "the kernel does not name the NUMA node of each GPU"),
    ],
)
def test_ranks_are_bound_where_torchrun_can(changes, reason, fabric_of, monkeypatch):
    """Eight GPUs on two NUMA nodes of 48 processors."""
    usable = changes.get("usable", range(96))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(usable))
    fabric = fabric_of("ndr")
    gpus = NvmlReading(gpus=tuple(Gpu(PciDevice(gpu.pci.address)) for gpu in fabric.gpus))
    monkeypatch.setattr(node_environment, "node_gpus", lambda: NodeGpus(8, (), gpus))
    fabric = replace(fabric, gpus=()) if "unknown" in changes else fabric
    run = record(
        gpus_per_node=changes.get("ranks", 8),
        device=changes.get("device", "cuda"),
        threads_per_rank=changes.get("threads", 1),
    )
    run["config"]["job"]["binding"] = changes.get("binding", "auto")
    found = node_environment.bound_processors(
        run["config"], changes.get("allocation", Mock()), fabric, has_numactl="numactl" not in changes
    )
    assert found.value == ("" if reason else f"{min(usable)}-{max(usable)}")
    assert found.reason.startswith(f"ranks are not bound: {reason}" if reason else "torchrun binds")
