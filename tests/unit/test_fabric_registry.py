"""The registry of communication variables: its data is consistent, and answers by version."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fabric.description import FabricKind
from jobs.fabric.registry import AUTOMATIC, READ_BY_OTHERS, is_nonzero, parse_version, registry

ROOT = Path(__file__).parents[2]
KNOWN = registry()
TYPES = {None, "boolean", "integer", "choice", "list"}


@pytest.mark.parametrize("name", sorted(KNOWN.variables))
def test_an_entry_is_consistent(name: str) -> None:
    each = KNOWN.variables[name]
    assert each.kind in {"system", "debug", "internal", "alias", "dead"}
    assert each.library in {"nccl", "torch", "gloo", "libfabric", "nccl-rdma-sharp-plugins"}
    assert each.type in TYPES
    assert set(each.fabrics) <= set(FabricKind)
    if each.since and each.until:
        assert parse_version(each.since) <= parse_version(each.until)
    versions = [parse_version(version) for version, _ in each.defaults]
    assert versions == sorted(set(versions))
    if each.kind == "alias":
        assert each.replaced_by
    if each.replaced_by:
        assert KNOWN.variables[each.replaced_by].kind != "dead"
    default = each.defaults[-1][1] if each.defaults else "auto"
    assert default in AUTOMATIC or each.accepts(default), f"the default {default} is not allowed"


def test_the_registry_holds_all_variables_of_nccl() -> None:
    nccl = [each for each in KNOWN.variables.values() if each.library == "nccl" and each.kind != "dead"]
    assert len(nccl) >= 267
    assert KNOWN.read_from["nccl"] == "2.30.7"


@pytest.mark.parametrize(
    ("name", "version", "is_read"),
    [
        ("NCCL_DEBUG", "2.30.7", True),
        ("NCCL_P2P_DISABLE", "2.30.7", True),
        ("NCCL_NET_GDR_LEVEL", "2.27.5", True),
        ("NCCL_IB_CUDA_SUPPORT", "2.3.7", True),
        ("NCCL_IB_CUDA_SUPPORT", "2.4.2", False),
        ("NCCL_LL128_C2C", "2.26.5", False),
        ("NCCL_LL128_C2C", "2.27.3", True),
        ("NCCL_SHM_USE_CUDA_MEMCPY", "2.30.7", False),
        ("NCCL_TIMEOUT", "2.20.5", False),
    ],
)
def test_versions_that_read_a_variable(name: str, version: str, is_read: bool) -> None:
    assert KNOWN.variables[name].is_read_by(version) is is_read


def test_the_history_of_a_default() -> None:
    timeout = KNOWN.variables["NCCL_IB_TIMEOUT"]
    assert timeout.stale_default("18", "2.27.5") == ("2.23.4", "20")
    assert timeout.stale_default("18", "2.20.5") is None, "it is the default of that version"
    assert timeout.stale_default("22", None) is None
    assert KNOWN.variables["NCCL_BUFFSIZE"].stale_default("4194304", None) == (
        "2.6.4",
        "chosen automatically",
    )


@pytest.mark.parametrize(
    ("name", "value", "is_allowed"),
    [
        ("NCCL_IB_TIMEOUT", "31", True),
        ("NCCL_IB_TIMEOUT", "120", False),
        ("NCCL_IB_TIMEOUT", "0", False),
        ("NCCL_IB_TC", "0x60", True),
        ("NCCL_NET_GDR_LEVEL", "phb", True),
        ("NCCL_NET_GDR_LEVEL", "PHY", False),
        ("NCCL_PROTO", "^LL128", True),
        ("NCCL_PROTO", "LL,Simpel", False),
        ("NCCL_ALGO", "allreduce:^tree;broadcast:ring", True),
        ("NCCL_DEBUG_SUBSYS", "INIT,^COLL", True),
        ("NCCL_SOCKET_NTHREADS", "four", False),
        ("NCCL_TOPO_FILE", "/any/path", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "False", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "y", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "off", False),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "true", False),
        ("FI_CXI_ODP", "on", True),
        ("FI_CXI_ODP", "2", False),
        ("NCCL_IB_TC", "41 # of the site", True),
        ("NCCL_IB_TC", "41x", False),
        ("NCCL_IB_TC", "010", False),
    ],
)
def test_allowed_values(name: str, value: str, is_allowed: bool) -> None:
    assert KNOWN.variables[name].accepts(value) is is_allowed


def test_a_switch_is_on_at_any_number_but_0() -> None:
    on, off = ("1", "-1", "2 ", "0x1", "01"), ("0", "0\r", "00", "0x0", "true", "", None)
    assert [is_nonzero(text) for text in (*on, *off)] == [True] * len(on) + [False] * len(off)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NCCL_SOCKET_IFNMAE", "NCCL_SOCKET_IFNAME"),
        ("FI_CXI_RDV_PROTO", "FI_CXI_RDZV_PROTO"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_MY_PLUGINS_OWN", None),
    ],
)
def test_a_misspelt_name(name: str, meant: str | None) -> None:
    assert name not in KNOWN.variables
    assert KNOWN.is_of_interest(name)
    assert KNOWN.misspelt(name) == meant


@pytest.mark.parametrize(
    "name",
    ["NCCL_SHARP_ENABLE", "NCCL_UCX_TLS", "RCCL_DEBUG", "HCCL_SOCKET_IFNAME", "CCL_SOCKET_IFNAME"],
)
def test_names_of_other_libraries_are_not_misspelt(name: str) -> None:
    assert KNOWN.misspelt(name) is None


def test_the_document_names_the_prefixes_of_other_libraries() -> None:
    text = (ROOT / "docs" / "fabric.md").read_text()
    assert [prefix for prefix in READ_BY_OTHERS if f"`{prefix}`" not in text] == []
