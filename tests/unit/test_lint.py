"""Lint of communication variables by the registry and by the devices of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jobs.fabric.derive import derive
from jobs.fabric.description import (
    Adapter,
    AdapterKind,
    Fabric,
    FabricKind,
    Gpu,
    GpuLink,
    Interface,
    PciDevice,
    Plugin,
    Port,
    Software,
)
from jobs.fabric.lint import Finding, FindingSeverity, lint
from jobs.fabric.settings import Setting

GPUS = (Gpu(PciDevice("0000:13:00.0")),)
PLUGIN = Software(nccl_plugins=(Plugin("net", "/opt/libnccl-net.so", is_reachable=True),))
ETHERNETS = tuple(Interface(name, "up", 1, None, None, None, None) for name in ("eth0", "eth1"))
HCAS = tuple(
    Adapter(name, AdapterKind.VERBS, None, None, None, (Port(1, "InfiniBand", "ACTIVE", None, 4, None),), "x")
    for name in ("mlx5_1", "mlx5_10")
)
INFINIBAND = Fabric(FabricKind.INFINIBAND, adapters=HCAS, interfaces=ETHERNETS, gpus=GPUS)
ROCE = Fabric(FabricKind.ROCE, gpus=GPUS)
EFA = Fabric(FabricKind.EFA, gpus=GPUS, software=PLUGIN)
CPU = Fabric(FabricKind.ETHERNET, interfaces=ETHERNETS)


def findings(variables: str, **about: object) -> list[Finding]:
    pairs = [pair.split("=", 1) for pair in variables.split()]
    return lint({name: Setting(name, value, "here") for name, value in pairs}, **about)


def summary(variables: str, **about: object) -> list[tuple[str, str, str]]:
    return [(each.severity, each.kind, each.name) for each in findings(variables, **about)]


@pytest.mark.parametrize(
    ("variable", "nccl", "severity", "kind", "words"),
    [
        ("NCCL_SOCKET_IFNMAE=eth0", None, "error", "unknown", "did you mean 'NCCL_SOCKET_IFNAME'"),
        ("FI_CXI_RDV_PROTO=alt_read", None, "error", "unknown", "did you mean 'FI_CXI_RDZV_PROTO'"),
        ("NCCL_MY_PLUGINS_OWN=1", None, "warning", "unknown", "no NCCL up to 2.30.7 reads it"),
        ("NCCL_TIMEOUT=1800", None, "warning", "not-read", "init_process_group"),
        ("NCCL_ASYNC_ERROR_HANDLING=1", None, "info", "renamed", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_IB_CUDA_SUPPORT=1", "2.27.5", "warning", "not-read", "only 2.3.7 and older; use NCCL_NET_GDR"),
        (
            "NCCL_IB_CUDA_SUPPORT=1",
            None,
            "warning",
            "not-read",
            "NCCL 2.30.7 does not read it",
        ),
        ("NCCL_SHM_USE_CUDA_MEMCPY=1", "2.30.7", "warning", "not-read", "only 2.30.4 and older"),
        ("NCCL_SHM_USE_CUDA_MEMCPY=1", "2.27.5", "warning", "debug", "undocumented"),
        ("NCCL_RAS_ADDR=localhost:1", "2.20.5", "warning", "not-read", "only 2.24.3 and newer"),
        ("NCCL_MIN_NCHANNELS=8", None, "warning", "renamed", "NCCL_MIN_CTAS"),
        ("NCCL_IB_TIMEOUT=120", None, "error", "out-of-range", "from 1 to 31"),
        (
            "NCCL_BUFFSIZE=4M",
            None,
            "error",
            "out-of-range",
            "'4M' is not allowed",
        ),
        ("NCCL_IB_TIMEOUT=120M", None, "error", "out-of-range", "from 1 to 31"),
        ("NCCL_NET_GDR_LEVEL=PHY", None, "error", "out-of-range", "LOC, PIX, PXB, PXN, PHB, SYS"),
        ("NCCL_NET_GDR_LEVEL=5", None, "warning", "out-of-range", "'5' is not allowed; it takes LOC, PIX"),
        ("NCCL_IB_TIMEOUT=18", None, "warning", "old-default", "before NCCL 2.23.4; the default is now 20"),
        ("NCCL_P2P_DISABLE=1", None, "warning", "debug", "for debugging"),
        ("NCCL_DEBUG=INFO", None, "warning", "debug", "floods"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=1", None, "warning", "conflict", "prevents the overlap"),
        ("CUDA_LAUNCH_BLOCKING=1", None, "warning", "debug", "communication and computation never overlap"),
        ("NCCL_DEBUG_FILE=/tmp/nccl.log", None, "warning", "conflict", "add %h.%p"),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", None, "warning", "debug", "wraps the process group"),
    ],
)
def test_one_variable(variable: str, nccl: str | None, severity: str, kind: str, words: str) -> None:
    (found,) = findings(variable, nccl_version=nccl)
    assert (found.severity, found.kind) == (severity, kind)
    assert words in found.message


@pytest.mark.parametrize(
    "variables",
    [
        "NCCL_DEBUG=WARN", "NCCL_IB_TIMEOUT=22", "NCCL_SOCKET_IFNAME==eth0", "NCCL_CROSS_NIC=1", "PATH=/bin",
        "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", "FI_LOG_FILE=x", "OMP_NUM_THREADS=4",
        "CUDA_VISIBLE_DEVICES=0",
    ],
)  # fmt: skip
def test_no_findings(variables: str) -> None:
    assert findings(variables) == []


@pytest.mark.parametrize(
    ("variables", "fabric", "nodes", "expected"),
    [
        ("NCCL_IB_QPS_PER_CONNECTION=4", CPU, 2, [("info", "no-effect", "NCCL_IB_QPS_PER_CONNECTION")]),
        ("NCCL_IB_GID_INDEX=3", INFINIBAND, 2, [("info", "no-effect", "NCCL_IB_GID_INDEX")]),
        ("NCCL_IB_GID_INDEX=3", ROCE, 2, []),
        ("NCCL_IB_TC=96", ROCE, 1, [("info", "no-effect", "NCCL_IB_TC")]),
        ("NCCL_DEBUG=WARN", CPU, 2, [("info", "no-effect", "NCCL_DEBUG")]),
        ("NCCL_SOCKET_NTHREADS=4", INFINIBAND, 2, [("info", "no-effect", "NCCL_SOCKET_NTHREADS")]),
        ("FI_EFA_USE_DEVICE_RDMA=1", INFINIBAND, 2, [("info", "no-effect", "FI_EFA_USE_DEVICE_RDMA")]),
        ("NCCL_TOPO_FILE=/x.xml", EFA, 2, [("warning", "conflict", "NCCL_TOPO_FILE")]),
        ("NCCL_IB_HCA=mlx5_1", INFINIBAND, 2, [("warning", "conflict", "NCCL_IB_HCA")]),
        ("NCCL_IB_HCA==mlx5_1,mlx5_10", INFINIBAND, 2, []),
        ("NCCL_IB_HCA==mlx5_3", INFINIBAND, 2, [("error", "conflict", "NCCL_IB_HCA")]),
        ("NCCL_SOCKET_IFNAME=^eth,lo", INFINIBAND, 2, [("error", "conflict", "NCCL_SOCKET_IFNAME")]),
        ("NCCL_SOCKET_IFNAME=", INFINIBAND, 2, []),  # as if it was not set
        ("NCCL_SOCKET_IFNAME==eth1 GLOO_SOCKET_IFNAME=eth1", INFINIBAND, 2, []),
        ("GLOO_SOCKET_IFNAME=eth2", CPU, 2, [("error", "conflict", "GLOO_SOCKET_IFNAME")]),
        ("GLOO_SOCKET_IFNAME==eth0", CPU, 2, [("error", "out-of-range", "GLOO_SOCKET_IFNAME")]),
    ],
)  # fmt: skip
def test_variables_on_a_network(
    variables: str, fabric: Fabric, nodes: int, expected: list[tuple[str, str, str]]
) -> None:
    assert summary(variables, fabric=fabric, nodes=nodes, nccl_version="2.20.5") == expected


def test_a_faster_interface_of_a_node_with_several_is_named() -> None:
    slow, fast = (
        Interface(name, "up", 1, speed, None, "mlx5_core", None)
        for name, speed in (("eth0", 1000), ("eth1", 100_000))
    )
    fabric = Fabric(FabricKind.ETHERNET, interfaces=(slow, fast), gpus=GPUS)
    (found,) = findings("GLOO_SOCKET_IFNAME=eth0", fabric=fabric, nodes=2)
    assert (found.severity, found.kind) == ("warning", "fallback")
    assert "faster one (100 Gbit/s)" in found.message
    assert found.message.endswith("GLOO_SOCKET_IFNAME=eth1 and NCCL_SOCKET_IFNAME==eth1 in the profile")
    assert findings("GLOO_SOCKET_IFNAME=eth1", fabric=fabric, nodes=2) == []
    derived = [each.name for each in derive(fabric, 2, 1, interface="eth0")]
    assert derived == ["GLOO_SOCKET_IFNAME"], "NCCL is not restricted to the slow one"


def test_slow_tcp_of_slingshot_is_found_as_well_and_not_that_beside_rdma() -> None:
    slow, *fast = (
        Interface(name, "up", 1, speed, None, "cxi_ss1", None)
        for name, speed in (("nmn0", 1000), ("hsn0", 200_000), ("hsn1", 200_000))
    )
    fabric = Fabric(FabricKind.SLINGSHOT, interfaces=(slow, *fast), gpus=GPUS)
    found = [each.message for each in findings("GLOO_SOCKET_IFNAME=nmn0", fabric=fabric, nodes=2)]
    assert [each for each in found if each.endswith("NCCL_SOCKET_IFNAME==hsn0,hsn1 in the profile")]
    rdma = replace(fabric, kind=FabricKind.INFINIBAND)
    assert findings("GLOO_SOCKET_IFNAME=nmn0", fabric=rdma, nodes=2) == []


def test_bridges_are_not_proposed() -> None:
    bridge, device = (
        Interface(name, "up", 1, 10_000, None, driver, None)
        for name, driver in (("docker0", None), ("eth0", "ice"))
    )
    fabric = Fabric(FabricKind.ETHERNET, interfaces=(bridge, device), gpus=GPUS)
    (found,) = findings("NCCL_SOCKET_IFNAME=^docker,eth", fabric=fabric, nodes=2)
    assert found.message.endswith("write = and one of eth0")


def test_a_value_that_the_suite_derives_is_no_debug_setting() -> None:
    slingshot = Fabric(FabricKind.SLINGSHOT, gpus=GPUS, software=PLUGIN)
    variables, derived = "NCCL_LL128_C2C=0", {"NCCL_LL128_C2C": "0"}
    assert summary(variables, fabric=slingshot, nodes=2, derived=derived) == []
    assert summary(variables, fabric=slingshot, nodes=2) == [("warning", "debug", "NCCL_LL128_C2C")]


def test_a_name_with_blanks_is_read_by_nothing() -> None:
    for name in ("NCCL_DEBUG ", "export NCCL_DEBUG"):
        (found,) = lint({name: Setting(name, " WARN", "nccl.conf:1")})
        assert (found.severity, found.kind) == ("warning", "not-read")
        assert found.message.endswith("so this sets nothing; write NCCL_DEBUG=WARN")
    for comment in ("  # NCCL_DEBUG", " #NCCL_SOCKET_IFNAME", "\t# the NCCL_NET"):
        assert lint({comment: Setting(comment, "x", "nccl.conf:1")}) == []


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("NCCL_IB_DISABLE=1 NCCL_IB_HCA=x", [("warning", "NCCL_IB_DISABLE")]),
        ("NCCL_IB_DISABLE=0 NCCL_IB_HCA=x", []),
        ("NCCL_IB_DISABLE=false NCCL_IB_HCA=x", []),
        ("NCCL_IB_DISABLE=01 NCCL_IB_HCA=x", [("warning", "NCCL_IB_DISABLE")]),
        ("NCCL_IB_DISABLE=1 NCCL_NET=IB", [("error", "NCCL_NET")]),
        ("NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL", [("warning", "NCCL_P2P_DISABLE")]),
        ("NCCL_P2P_DISABLE=1 NCCL_P2P_NET_CHUNKSIZE=131072", []),
        ("NCCL_NET=IB NCCL_NET_PLUGIN=ofi", [("error", "NCCL_NET_PLUGIN")]),
        ("NCCL_NET=IB NCCL_NET_PLUGIN=none", []),
        ("NCCL_ALGO=Tree", [("error", "NCCL_ALGO")]),
        ("NCCL_ALGO=Tree,Ring", []),
        ("NCCL_ALGO=allreduce:Tree", []),
        ("NCCL_ALGO=^Tree", []),
    ],
)
def test_variables_that_contradict_each_other(variables: str, expected: list[tuple[str, str]]) -> None:
    found = summary(variables)
    assert [(severity, name) for severity, kind, name in found if kind == "conflict"] == expected


def test_text_after_a_blank_does_not_belong_to_an_integer() -> None:
    setting = Setting("NCCL_IB_TC", "41 # of the site", "nccl.conf:1")
    assert lint({setting.name: setting}) == []


def test_a_value_that_a_shell_computes_is_not_judged() -> None:
    setting = Setting("NCCL_IB_TIMEOUT", "$TIMEOUT", "job.sh:3", is_literal=False)
    assert lint({setting.name: setting}) == []


def test_the_worst_comes_first() -> None:
    found = summary("NCCL_P2P_DISABLE=1 NCCL_ASYNC_ERROR_HANDLING=1 NCCL_IB_TIMEOUT=99")
    assert [severity for severity, *_ in found] == list(FindingSeverity)


@pytest.mark.parametrize(("further", "nodes"), [("", 1), (" NCCL_IB_DISABLE=1", 2), (" NCCL_NET=Socket", 2)])
def test_a_list_of_adapters_that_nccl_does_not_use_is_not_judged(further: str, nodes: int) -> None:
    def judged(variables: str, nodes: int) -> list[Finding]:
        found = findings(variables, fabric=INFINIBAND, nodes=nodes)
        return [each for each in found if each.name == "NCCL_IB_HCA" and each.kind == "conflict"]

    assert judged("NCCL_IB_HCA==nope", 2)
    assert not judged(f"NCCL_IB_HCA==nope{further}", nodes)


GRACE = (Gpu(PciDevice("0009:01:00.0"), has_c2c=True),)
FABRICS = {
    "gh200": Fabric(FabricKind.SLINGSHOT, gpus=GRACE),
    "slingshot": Fabric(FabricKind.SLINGSHOT, gpus=GPUS),
    "nvlink": Fabric(FabricKind.INFINIBAND, gpus=GPUS, gpu_links=(GpuLink("a", "b", "NV18"),)),
    "pcie": Fabric(FabricKind.ETHERNET, gpus=GPUS),
}


@pytest.mark.parametrize(
    ("fabric", "variables", "about", "expected"),
    [
        ("gh200", "", {"nccl_version": "2.27.5"}, ["corruption NCCL_LL128_C2C"]),
        ("gh200", "", {}, ["corruption NCCL_LL128_C2C"]),
        ("gh200", "", {"nccl_version": "2.26.5"}, []),
        ("gh200", "NCCL_LL128_C2C=00 FI_CXI_RDZV_GET_MIN=0x0", {}, []),
        ("gh200", "NCCL_PROTO=^LL128", {}, []),
        ("gh200", "NCCL_PROTO=^LL", {}, ["corruption NCCL_LL128_C2C"]),
        ("gh200", "NCCL_LL128_C2C=0 FI_CXI_RDZV_GET_MIN=2049", {}, ["corruption FI_CXI_RDZV_GET_MIN"]),
        ("slingshot", "FI_CXI_RDZV_GET_MIN=2049", {}, []),
        ("pcie", "NCCL_PROTO=LL,ll128", {}, ["corruption NCCL_PROTO"]),
        ("nvlink", "NCCL_PROTO=LL128", {}, []),
        ("slingshot", "FI_CXI_RDZV_PROTO=alt_read", {"srun_network": ""}, ["deadlock FI_CXI_RDZV_PROTO"]),
        ("slingshot", "FI_CXI_RDZV_PROTO=alt_read", {"srun_network": "job_vni,disable_rdzv_get"}, []),
        ("slingshot", "FI_CXI_RDZV_PROTO=alt_read", {}, []),
        ("slingshot", "", {"srun_network": "disable_rdzv_get"}, ["deadlock FI_CXI_RDZV_PROTO"]),
        ("slingshot", "FI_CXI_DISABLE_HOST_REGISTER=no", {}, ["deadlock FI_CXI_DISABLE_HOST_REGISTER"]),
        ("slingshot", "FI_CXI_DISABLE_HOST_REGISTER=true", {}, []),
        ("slingshot", "FI_MR_CACHE_MONITOR=memhooks", {}, ["deadlock FI_MR_CACHE_MONITOR"]),
        ("slingshot", "FI_MR_CACHE_MONITOR=kdreg2", {}, []),
        ("pcie", "TORCH_NCCL_BLOCKING_WAIT=yes", {}, ["deadlock TORCH_NCCL_BLOCKING_WAIT"]),
        ("pcie", "TORCH_NCCL_BLOCKING_WAIT=False", {}, []),
        ("nvlink", "NCCL_NET=IB", {"nodes": 1}, ["conflict NCCL_NET"]),
        ("nvlink", "NCCL_NET=IB", {}, []),
        ("nvlink", "NCCL_ALGO=Tree", {"nccl_version": "2.23.4"}, []),
    ],
)
def test_known_bad_combinations(
    fabric: str, variables: str, about: dict[str, object], expected: list[str]
) -> None:
    found = findings(variables, fabric=FABRICS[fabric], **({"nodes": 2} | about))
    assert [f"{each.kind} {each.name}" for each in found if each.severity == "error"] == expected


@pytest.mark.parametrize(
    ("kind", "words", "severity", "text"),
    [
        ("dead_hca", "NCCL_IB_HCA==mlx5_3", "error", "so NCCL uses TCP; set =mlx5_0,"),
        ("dead_hca", "NCCL_IB_HCA=mlx5_0:2 NCCL_NET=IB", "error", "no active port of mlx5_0, mlx5_1"),
        ("ndr", "NCCL_IB_HCA=^mlx5", "error", "so NCCL uses TCP; set =mlx5_0,mlx5_1"),
        ("hdr_mixed", "NCCL_IB_HCA==mlx5_0,mlx5_99", "warning", "no adapter 'mlx5_99'; it has mlx5_0"),
        ("hdr_mixed", "NCCL_IB_HCA=mlx5_0", None, ""),
    ],
)
def test_adapters_of_a_node(
    kind: str, words: str, severity: str | None, text: str, fabric_of: Callable[[str], Fabric]
) -> None:
    found = [each for each in findings(words, fabric=fabric_of(kind), nodes=2) if each.name == "NCCL_IB_HCA"]
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(text in each.message and each.source for each in found)
