"""Combinations of variables that corrupt data, deadlock or fail."""

from __future__ import annotations

import pytest

from jobs.fabric.description import Fabric, FabricKind, Gpu, GpuLink, PciDevice, Software
from jobs.fabric.findings import FindingKind, FindingSeverity, LintContext, Setting
from jobs.fabric.guards import GUARDS, allows_ll128

GRACE = (Gpu(PciDevice("0009:01:00.0"), has_c2c=True),)
HOPPER = (Gpu(PciDevice("0000:13:00.0")),)
FABRICS = {
    "gh200": Fabric(FabricKind.SLINGSHOT, gpus=GRACE),
    "slingshot": Fabric(FabricKind.SLINGSHOT, gpus=HOPPER),
    "old efa": Fabric(FabricKind.EFA, gpus=HOPPER, software=Software(ofi_plugin_version="1.5.0")),
    "efa": Fabric(FabricKind.EFA, gpus=HOPPER, software=Software(ofi_plugin_version="1.13.2")),
    "nvlink": Fabric(FabricKind.INFINIBAND, gpus=HOPPER, gpu_links=(GpuLink("a", "b", "NV18"),)),
    "pcie": Fabric(FabricKind.ETHERNET, gpus=HOPPER),
}
CORRUPTION, DEADLOCK, CONFLICT = FindingKind.CORRUPTION, FindingKind.DEADLOCK, FindingKind.CONFLICT


def judged(fabric: str | None, variables: str, **about: object) -> list[tuple[str, FindingKind]]:
    """Name and kind of each error of the guards."""
    pairs = [pair.split("=", 1) for pair in variables.split()]
    settings = {name: Setting(name, value, "here") for name, value in pairs}
    context = LintContext(settings, FABRICS[fabric] if fabric else None, **about)
    found = [finding for guard in GUARDS for finding in guard(context)]
    return [(each.name, each.kind) for each in found if each.severity is FindingSeverity.ERROR]


@pytest.mark.parametrize(
    ("fabric", "variables", "nccl", "expected"),
    [
        ("gh200", "", "2.27.5", [("NCCL_LL128_C2C", CORRUPTION)]),
        ("gh200", "", None, [("NCCL_LL128_C2C", CORRUPTION)]),
        ("gh200", "", "2.26.5", []),
        ("gh200", "NCCL_LL128_C2C=00", "2.27.5", []),
        ("gh200", "NCCL_LL128_C2C=0 FI_CXI_RDZV_GET_MIN=0x0", "2.27.5", []),
        ("gh200", "NCCL_LL128_C2C=0", "2.27.5", []),
        ("gh200", "NCCL_PROTO=^LL128", "2.27.5", []),
        ("gh200", "NCCL_PROTO=Simple", "2.27.5", []),
        ("gh200", "NCCL_PROTO=LL128 NCCL_LL128_C2C=0", "2.26.5", [("NCCL_PROTO", CORRUPTION)]),
        ("gh200", "NCCL_PROTO=LL,LL128,Simple", "2.27.5", [("NCCL_PROTO", CORRUPTION)]),
        ("slingshot", "", "2.27.5", []),
        ("pcie", "NCCL_PROTO=LL128", "2.27.5", [("NCCL_PROTO", CORRUPTION)]),
        ("nvlink", "NCCL_PROTO=LL128", "2.27.5", []),
        ("nvlink", "NCCL_PROTO=^LL", "2.27.5", []),
        ("old efa", "", "2.27.5", [("NCCL_PROTO", CORRUPTION)]),
        ("old efa", "NCCL_PROTO=simple", "2.27.5", []),
        ("efa", "", "2.27.5", []),
        ("gh200", "NCCL_LL128_C2C=0 FI_CXI_RDZV_GET_MIN=2049", None, [("FI_CXI_RDZV_GET_MIN", CORRUPTION)]),
        ("slingshot", "FI_CXI_RDZV_GET_MIN=2049", None, []),
    ],
)
def test_corruption(
    fabric: str, variables: str, nccl: str | None, expected: list[tuple[str, FindingKind]]
) -> None:
    assert judged(fabric, variables, nodes=2, nccl_version=nccl) == expected


def test_a_guard_against_corruption_names_its_source() -> None:
    context = LintContext({}, FABRICS["gh200"], nodes=2, nccl_version="2.27.5")
    (found,) = (finding for guard in GUARDS for finding in guard(context))
    assert found.source == "https://github.com/NVIDIA/nccl/issues/2001"


@pytest.mark.parametrize(
    ("variables", "network", "expected"),
    [
        ("FI_CXI_RDZV_PROTO=alt_read", "", [("FI_CXI_RDZV_PROTO", DEADLOCK)]),
        ("FI_CXI_RDZV_PROTO=alt_read", "disable_rdzv_get", []),
        ("FI_CXI_RDZV_PROTO=alt_read", "job_vni,disable_rdzv_get", []),
        ("FI_CXI_RDZV_PROTO=alt_read", None, []),
        ("", "disable_rdzv_get", [("FI_CXI_RDZV_PROTO", DEADLOCK)]),
        ("FI_CXI_DISABLE_HOST_REGISTER=0", None, [("FI_CXI_DISABLE_HOST_REGISTER", DEADLOCK)]),
        ("FI_CXI_DISABLE_HOST_REGISTER=no", None, [("FI_CXI_DISABLE_HOST_REGISTER", DEADLOCK)]),
        ("FI_CXI_DISABLE_HOST_REGISTER=true", None, []),
        ("FI_MR_CACHE_MONITOR=memhooks", None, [("FI_MR_CACHE_MONITOR", DEADLOCK)]),
        ("FI_MR_CACHE_MONITOR=kdreg2", None, []),
    ],
)
def test_deadlocks_on_slingshot(
    variables: str, network: str | None, expected: list[tuple[str, FindingKind]]
) -> None:
    assert judged("slingshot", variables, nodes=2, srun_network=network) == expected


@pytest.mark.parametrize(
    ("variables", "about", "expected"),
    [
        ("TORCH_NCCL_BLOCKING_WAIT=1", {}, [("TORCH_NCCL_BLOCKING_WAIT", DEADLOCK)]),
        ("TORCH_NCCL_BLOCKING_WAIT=0", {}, []),
        ("TORCH_NCCL_BLOCKING_WAIT=False", {}, []),
        ("TORCH_NCCL_BLOCKING_WAIT=yes", {}, [("TORCH_NCCL_BLOCKING_WAIT", DEADLOCK)]),
        ("NCCL_NET=IB", {"nodes": 1}, [("NCCL_NET", CONFLICT)]),
        ("NCCL_NET=IB", {"nodes": 2}, []),
        ("NCCL_NET=IB", {}, []),
        ("NCCL_NET=IB NCCL_NET_PLUGIN=ofi", {"nodes": 2}, [("NCCL_NET_PLUGIN", CONFLICT)]),
        ("NCCL_NET=IB NCCL_NET_PLUGIN=none", {"nodes": 2}, []),
        ("NCCL_SOCKET_NTHREADS=8 NCCL_NSOCKS_PERTHREAD=16", {}, [("NCCL_SOCKET_NTHREADS", CONFLICT)]),
        ("NCCL_SOCKET_NTHREADS=8 NCCL_NSOCKS_PERTHREAD=8", {}, []),
        ("NCCL_SOCKET_NTHREADS=0x8 NCCL_NSOCKS_PERTHREAD=16", {}, [("NCCL_SOCKET_NTHREADS", CONFLICT)]),
        ("NCCL_ALGO=Tree", {"nccl_version": "2.24.3"}, [("NCCL_ALGO", CONFLICT)]),
        ("NCCL_ALGO=Tree", {"nccl_version": "2.23.4"}, []),
        ("NCCL_ALGO=Tree,Ring", {}, []),
        ("NCCL_ALGO=allreduce:Tree", {}, []),
        ("NCCL_ALGO=^Tree", {}, []),
    ],
)
def test_failures(variables: str, about: dict[str, object], expected: list[tuple[str, FindingKind]]) -> None:
    assert judged(None, variables, **about) == expected


@pytest.mark.parametrize(
    ("protocols", "allowed"),
    [
        (None, True), ("^LL128", False), ("^LL", True), ("Simple", False), ("LL,ll128", True),
        ("Simple;allreduce:LL128", True), ("^LL128;broadcast:^LL128,LL", False),
    ],
)  # fmt: skip
def test_whether_a_list_of_protocols_allows_ll128(protocols: str | None, allowed: bool) -> None:
    assert allows_ll128(protocols) is allowed
