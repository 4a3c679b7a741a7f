"""Lint of communication variables by the registry and by the devices of a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobs.fabric.description import Fabric, FabricKind, Gpu, GpuLink, Interface, PciDevice
from jobs.fabric.lint import Finding, FindingSeverity, lint
from jobs.fabric.registry import AUTOMATIC, READ_BY_OTHERS, is_nonzero, parse_version, registry
from jobs.fabric.settings import Setting

GPUS = (Gpu(PciDevice("0000:13:00.0")),)
GRACE = (Gpu(PciDevice("0009:01:00.0"), has_c2c=True),)


def interfaces(driver: str | None = "mlx5_core", **speeds: int) -> tuple[Interface, ...]:
    return tuple(Interface(name, "up", 1, speed, None, driver, None) for name, speed in speeds.items())


FABRICS = {
    "cpu": Fabric(FabricKind.ETHERNET, interfaces=interfaces(eth0=1000, eth1=1000)),
    "roce": Fabric(FabricKind.ROCE, gpus=GPUS),
    "gh200": Fabric(FabricKind.SLINGSHOT, gpus=GRACE),
    "slingshot": Fabric(FabricKind.SLINGSHOT, gpus=GPUS),
    "nvlink": Fabric(FabricKind.INFINIBAND, gpus=GPUS, gpu_links=(GpuLink("a", "b", "NV18"),)),
    "pcie": Fabric(FabricKind.ETHERNET, gpus=GPUS),
}


@pytest.fixture
def findings(fabric_of: Callable[[str], Fabric]) -> Callable[..., list[Finding]]:
    """`findings(variables, fabric, ...)`: `variables` are `NAME=VALUE ...`."""

    def found(variables: str, fabric: str | Fabric | None = None, **about: Any) -> list[Finding]:
        pairs = [pair.split("=", 1) for pair in variables.split()]
        if isinstance(fabric, str):
            fabric = FABRICS.get(fabric) or fabric_of(fabric)
        return lint({name: Setting(name, value, "here") for name, value in pairs}, fabric=fabric, **about)

    return found


NODES, ONE = {"nodes": 2}, {"nodes": 1}
Findings = Callable[..., list[Finding]]


@pytest.mark.parametrize(
    ("variables", "about", "expected"),
    [
        ("NCCL_SOCKET_IFNMAE=eth0", {}, "error unknown"),
        ("NCCL_MY_PLUGINS_OWN=1", {}, "warning unknown"),
        ("NCCL_ASYNC_ERROR_HANDLING=1", {}, "info renamed"),
        ("NCCL_MIN_NCHANNELS=8", {}, "warning renamed"),
        ("NCCL_IB_CUDA_SUPPORT=1", {}, "warning not-read"),
        ("NCCL_SHM_USE_CUDA_MEMCPY=1", {"nccl_version": "2.30.7"}, "warning not-read"),
        ("NCCL_SHM_USE_CUDA_MEMCPY=1", {"nccl_version": "2.27.5"}, "warning debug"),
        ("NCCL_IB_TIMEOUT=120", {}, "error out-of-range"),
        ("NCCL_NET_GDR_LEVEL=PHY", {}, "error out-of-range"),
        ("NCCL_NET_GDR_LEVEL=5", {}, "warning out-of-range"),
        ("NCCL_IB_TIMEOUT=18", {}, "warning old-default"),
        ("NCCL_P2P_DISABLE=1", {}, "warning debug"),
        ("NCCL_DEBUG_FILE=/tmp/nccl.log", {}, "warning conflict"),
        ("NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", {}, ""),
        ("NCCL_IB_TIMEOUT=22 NCCL_SOCKET_IFNAME==eth0 NCCL_CROSS_NIC=1", {}, ""),
        ("PATH=/bin FI_LOG_FILE=x OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES=0", {}, ""),
        # variables without effect on a network
        ("NCCL_IB_GID_INDEX=3", {"fabric": "nvlink"}, "info no-effect"),
        ("NCCL_IB_TC=96", {"fabric": "roce"} | NODES, ""),
        ("NCCL_IB_TC=96", {"fabric": "roce"} | ONE, "info no-effect"),
        ("NCCL_DEBUG=WARN", {"fabric": "cpu"}, "info no-effect"),
        # names of devices
        ("NCCL_IB_HCA=^mlx5", {"fabric": "ndr"}, "error conflict"),
        ("NCCL_IB_HCA=^mlx5", {"fabric": "ndr"} | ONE, "info no-effect"),
        ("NCCL_IB_HCA==mlx5_3 NCCL_NET=Socket", {"fabric": "dead_hca"}, ""),
        ("NCCL_IB_HCA==mlx5_3", {"fabric": "dead_hca"}, "error conflict"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_99", {"fabric": "hdr_mixed"}, "warning conflict"),
        ("NCCL_IB_HCA=mlx5_0", {"fabric": "hdr_mixed"}, ""),
        ("NCCL_SOCKET_IFNAME=^eth,lo", {"fabric": "ethernet_two"}, "error conflict"),
        ("NCCL_SOCKET_IFNAME=", {"fabric": "ethernet_two"}, ""),  # as if it was not set
        ("GLOO_SOCKET_IFNAME=eth2,eth3", {"fabric": "cpu"}, "error conflict"),
        ("GLOO_SOCKET_IFNAME==eth0", {"fabric": "cpu"}, "error out-of-range"),
        ("GLOO_SOCKET_IFNAME=eth0", {"fabric": "ethernet_two"}, "warning fallback"),
        ("GLOO_SOCKET_IFNAME=eth0", {"fabric": "ethernet_two"} | ONE, ""),
        ("GLOO_SOCKET_IFNAME=eth1", {"fabric": "ethernet_two"}, ""),
        ("GLOO_SOCKET_IFNAME=nmn0", {"fabric": "cxi", "nccl_version": "2.26.2"}, "warning fallback"),
    ],
)
def test_variables_by_themselves(variables, about, expected, findings):
    """At most the first variable has a finding."""
    found = findings(variables, **about)
    assert [f"{each.severity} {each.kind}" for each in found] == ([expected] if expected else [])
    assert all(variables.startswith(f"{each.name}=") for each in found)


@pytest.mark.parametrize(
    ("variables", "about", "expected"),
    [
        ("NCCL_IB_DISABLE=01 NCCL_IB_HCA=x", {}, "warning NCCL_IB_DISABLE"),
        ("NCCL_IB_DISABLE=false NCCL_IB_HCA=x", {}, ""),
        ("NCCL_IB_DISABLE=1 NCCL_NET=IB", {}, "error NCCL_NET"),
        ("NCCL_ALGO=Tree", {}, "error NCCL_ALGO"),
        ("", {"fabric": "gh200", "nccl_version": "2.27.5"}, "error NCCL_LL128_C2C"),
        ("", {"fabric": "gh200"} | ONE, ""),
        ("", {"fabric": "gh200", "nccl_version": "2.26.5"}, ""),
        ("NCCL_PROTO=^LL128", {"fabric": "gh200"}, ""),
        ("NCCL_LL128_C2C=00 FI_CXI_RDZV_GET_MIN=2049", {"fabric": "gh200"}, "error FI_CXI_RDZV_GET_MIN"),
        ("FI_CXI_RDZV_GET_MIN=2049", {"fabric": "slingshot"}, ""),
        ("NCCL_PROTO=LL,ll128", {"fabric": "pcie"}, "error NCCL_PROTO"),
        ("NCCL_PROTO=LL128", {"fabric": "nvlink"}, ""),
        (
            "FI_CXI_RDZV_PROTO=alt_read",
            {"fabric": "slingshot", "srun_network": ""},
            "error FI_CXI_RDZV_PROTO",
        ),
        (
            "FI_CXI_RDZV_PROTO=alt_read",
            {"fabric": "slingshot", "srun_network": "job_vni,disable_rdzv_get"},
            "",
        ),
        ("FI_CXI_RDZV_PROTO=alt_read", {"fabric": "slingshot"}, ""),
        ("", {"fabric": "slingshot", "srun_network": "disable_rdzv_get"}, "error FI_CXI_RDZV_PROTO"),
        ("NCCL_NET=IB", {"fabric": "nvlink"} | ONE, "error NCCL_NET"),
        ("NCCL_NET=IB", {"fabric": "nvlink"} | NODES, ""),
    ],
)
def test_combinations(variables, about, expected, findings):
    found = findings(variables, **about)
    known = [each for each in found if each.kind in ("conflict", "corruption", "deadlock")]
    assert [f"{each.severity} {each.name}" for each in known] == ([expected] if expected else [])


def test_the_worst_comes_first(findings):
    found = findings("NCCL_P2P_DISABLE=1 NCCL_ASYNC_ERROR_HANDLING=1 NCCL_IB_TIMEOUT=99")
    assert [each.severity for each in found] == list(FindingSeverity)


@pytest.mark.parametrize(
    ("variables", "fabric", "proposed"),
    [
        ("GLOO_SOCKET_IFNAME=eth0", "ethernet_two", "GLOO_SOCKET_IFNAME=eth1 and NCCL_SOCKET_IFNAME==eth1"),
        ("GLOO_SOCKET_IFNAME=nmn0", "cxi", "NCCL_SOCKET_IFNAME==hsn0,hsn1,hsn2,hsn3"),
        ("NCCL_SOCKET_IFNAME=^docker,eth", "ethernet_25g", "write = and one of eth0"),  # no bridge
        ("NCCL_IB_HCA==mlx5_3", "dead_hca", "so NCCL uses TCP; set =mlx5_0,mlx5_1,mlx5_2,mlx5_4,"),
        ("NCCL_IB_HCA==mlx5_3 NCCL_NET=IB", "dead_hca", "so NCCL fails; set =mlx5_0"),
    ],
)
def test_the_names_to_write(variables, fabric, proposed, findings):
    assert any(proposed in each.message for each in findings(variables, fabric, nodes=2))


def test_slow_tcp_beside_rdma_is_no_finding(fabric_of, findings):
    rdma = replace(fabric_of("cxi"), kind=FabricKind.INFINIBAND)
    assert "fallback" not in [each.kind for each in findings("GLOO_SOCKET_IFNAME=nmn0", rdma, nodes=2)]


def test_a_prefix_that_names_more_adapters(fabric_of, findings):
    node = fabric_of("ndr")
    more = (replace(node.adapters[0], name="mlx5_10"), *node.adapters)
    for value, count in (("mlx5_1", 1), ("=mlx5_1,mlx5_10", 0)):
        assert len(findings(f"NCCL_IB_HCA={value}", replace(node, adapters=more))) == count


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        (Setting("NCCL_DEBUG ", " WARN", "nccl.conf:1"), ["not-read"]),
        (Setting("export NCCL_DEBUG", "WARN", "nccl.conf:1"), ["not-read"]),
        (Setting("  # NCCL_DEBUG", "x", "nccl.conf:1"), []),
        (Setting("NCCL_IB_TC", "41 # of the site", "nccl.conf:1"), []),
        (Setting("NCCL_IB_TIMEOUT", "$TIMEOUT", "job.sh:3", is_literal=False), []),  # a shell computes it
        (Setting("NCCL_LL128_C2C", "0", "derived"), []),
        (Setting("NCCL_LL128_C2C", "0", "job.env"), []),
        (Setting("NCCL_LL128_C2C", "1", "job.env"), ["debug"]),
    ],
)
def test_names_and_values_of_odd_sources(setting, kinds):
    """A value that the suite derives is no debug setting, whoever sets it."""
    found = lint({setting.name: setting}, derived={"NCCL_LL128_C2C": "0"})
    assert [each.kind for each in found] == kinds
    assert all("write NCCL_DEBUG=WARN" in each.message for each in found if each.kind == "not-read")


KNOWN = registry()


@pytest.mark.parametrize("name", sorted(KNOWN.variables))
def test_an_entry_of_the_registry_is_consistent(name):
    each = KNOWN.variables[name]
    assert each.kind in {"system", "debug", "internal", "alias", "dead"}
    assert each.library in {"nccl", "torch", "gloo", "libfabric", "nccl-rdma-sharp-plugins"}
    assert each.type in {None, "boolean", "integer", "choice", "list"}
    assert set(each.fabrics) <= set(FabricKind)
    if each.since and each.until:
        assert parse_version(each.since) <= parse_version(each.until)
    versions = [parse_version(version) for version, _ in each.defaults]
    assert versions == sorted(set(versions))
    assert each.kind != "alias" or each.replaced_by
    if each.replaced_by:
        assert KNOWN.variables[each.replaced_by].kind != "dead"
    default = each.defaults[-1][1] if each.defaults else "auto"
    assert default in AUTOMATIC or each.accepts(default), f"the default {default} is not allowed"


def test_the_history_of_a_default():
    timeout = KNOWN.variables["NCCL_IB_TIMEOUT"]
    assert timeout.stale_default("18", "2.27.5") == ("2.23.4", "20")
    assert timeout.stale_default("18", "2.20.5") is None, "it is the default of that version"
    assert timeout.stale_default("22", None) is None
    automatic = KNOWN.variables["NCCL_BUFFSIZE"].stale_default("4194304", None)
    assert automatic == ("2.6.4", "chosen automatically")


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("NCCL_IB_TIMEOUT", ["1", "31"], ["0", "32", "120M", "four"]),
        ("NCCL_IB_TC", ["0x60", "41 # of the site"], ["41x", "010"]),
        ("NCCL_NET_GDR_LEVEL", ["phb"], ["PHY"]),
        ("NCCL_PROTO", ["^LL128"], ["LL,Simpel", ""]),
        ("NCCL_ALGO", ["allreduce:^tree;broadcast:ring"], ["allreduce:bush"]),
        ("NCCL_TOPO_FILE", ["/any/path"], []),
        ("TORCH_NCCL_BLOCKING_WAIT", ["False", "y"], ["off"]),
        ("FI_CXI_ODP", ["on"], ["2"]),
    ],
)
def test_allowed_values(name, allowed, refused):
    accepts = KNOWN.variables[name].accepts
    assert [list(map(accepts, values)) for values in (allowed, refused)] == [
        [True] * len(allowed), [False] * len(refused),
    ]  # fmt: skip


def test_a_switch_is_on_at_any_number_but_0():
    on, off = ("1", "-1", "2 ", "0x1", "01"), ("0", "0\r", "00", "0x0", "true", "", None)
    assert [is_nonzero(text) for text in (*on, *off)] == [True] * len(on) + [False] * len(off)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNMAE", "NCCL_SOCKET_IFNAME"),
        ("NCLL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("FI_CXI_RDV_PROTO", "FI_CXI_RDZV_PROTO"),
        ("NCCL_MY_PLUGINS_OWN", None),
        ("OMP_NUM_THREAD", None),
        *((f"{prefix}SOCKET_IFNAME", None) for prefix in READ_BY_OTHERS),
    ],
)
def test_a_misspelt_name(name, meant):
    assert name not in KNOWN.variables
    assert KNOWN.misspelt(name) == meant
