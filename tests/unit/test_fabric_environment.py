"""The communication variables that an agent adds: derived on its node, and checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrain.config.config_tree import Config
from disttrain.records.planned import EnvRecord
from disttrain.records.run_directory import ADAPTERS
from jobs.core import environment
from jobs.fabric.description import ConfigurationFile, Fabric, FabricKind, Gpu, Interface, PciDevice, Software
from jobs.fabric.detect import detect
from jobs.fabric.software import Process
from jobs.node import node_environment as module
from jobs.node.node_environment import node_network
from tests.support.fabric_trees import tree

GRACE = (Gpu(PciDevice("0009:01:00.0"), has_c2c=True),)
INTERFACES = tuple(Interface(name, "up", 1, 1000, None, None, None) for name in ("eth0", "hsn0"))
SLINGSHOT = Fabric(
    FabricKind.SLINGSHOT, interfaces=INTERFACES, gpus=GRACE, software=Software(nccl_version="2.27.5")
)


def record(profile: dict[str, Any] | None = None, **env: str) -> dict[str, Any]:
    config = Config.model_validate({"job": {"env": env}, "resources": {"nodes": 2}}).as_dict()
    return {"config": config, "profile": profile}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module, "log_line", lines.append)
    return lines


def test_derived_variables_are_recorded_with_evidence_and_reference() -> None:
    found = node_network(SLINGSHOT, record(), {}, 2, "hsn0")
    added = environment.added_variables(record()["config"], {}, fabric=found.added)
    written = found.record(added)
    read = EnvRecord.model_validate(json.loads(json.dumps(written)))
    variables = read.variables
    guard = variables["NCCL_LL128_C2C"]
    assert (guard.value, guard.source) == ("0", "derived")
    assert guard.evidence
    assert guard.reference == "https://github.com/NVIDIA/nccl/issues/2001"
    assert (guard.since, guard.until) == ("2.27.3", None)
    assert (variables["GLOO_SOCKET_IFNAME"].value, variables["NCCL_SOCKET_IFNAME"].value) == ("hsn0", "=hsn0")


def test_versions_that_the_derived_values_hold_for_are_recorded() -> None:
    software = Software(
        nccl_version="2.27.5",
        nvidia_driver="550.54.15",
        ofi_plugin_version="1.13.2",
        libfabric_version="1.22.0",
    )
    found = node_network(replace(SLINGSHOT, software=software), record(), {}, 2)
    written = found.record({})
    versions = EnvRecord.model_validate(json.loads(json.dumps(written))).versions
    assert versions is not None
    assert (versions.nccl, versions.nvidia_driver) == ("2.27.5", "550.54.15")
    assert (versions.aws_ofi_nccl, versions.libfabric) == ("1.13.2", "1.22.0")
    del written["versions"]  # an older record
    assert EnvRecord.model_validate(written).versions is None


def test_values_of_user_site_shell_and_files_win_and_are_recorded() -> None:
    files = (
        ConfigurationFile("/home/ada/.nccl.conf", (("NCCL_DEBUG", "INFO"),)),
        ConfigurationFile("/etc/nccl.conf", (("NCCL_DEBUG", "TRACE"), ("NCCL_LL128_C2C", "1"))),
    )
    fabric = replace(SLINGSHOT, software=replace(SLINGSHOT.software, nccl_files=files))
    profile = {"environment": {"FI_CXI_RX_MATCH_MODE": {"value": "software", "reason": "x"}}, "srun": {}}
    run = record(profile, FI_CXI_DEFAULT_CQ_SIZE="65536")
    shell = {"NCCL_NET_GDR_LEVEL": "SYS", "PATH": "/bin"}
    found = node_network(fabric, run, shell, 2, "hsn0")
    overridden = {
        "NCCL_DEBUG", "NCCL_LL128_C2C", "FI_CXI_RX_MATCH_MODE", "FI_CXI_DEFAULT_CQ_SIZE",
        "NCCL_NET_GDR_LEVEL",
    }  # fmt: skip
    assert not overridden & found.added.keys()
    inherited = EnvRecord.model_validate(found.record({})).inherited
    assert {name: (each.value, each.origin) for name, each in inherited.items()} == {
        "NCCL_DEBUG": ("INFO", "/home/ada/.nccl.conf"),
        "NCCL_LL128_C2C": ("1", "/etc/nccl.conf"),
        "NCCL_NET_GDR_LEVEL": ("SYS", "environment"),
    }
    errors = [each for each in found.variables.findings if each.severity == "error"]
    assert [(each.name, each.kind, each.origin) for each in errors] == [
        ("NCCL_LL128_C2C", "corruption", "/etc/nccl.conf")
    ]


def test_the_shared_variables_and_the_interface_should_agree() -> None:
    first = node_network(SLINGSHOT, record(), {}, 2, "hsn0").agreement
    other = replace(SLINGSHOT, software=Software(nccl_version="2.26.2"))
    second = node_network(other, record(), {}, 2, "eth0").agreement
    assert (first["interface"], second["interface"]) == ("hsn0", "eth0")
    assert "NCCL_LL128_C2C=0" in first["derived variables"]
    assert "IFNAME" not in first["derived variables"], "names of devices may differ"
    assert "NCCL_LL128_C2C" not in second["derived variables"]


def test_findings_reach_the_log_without_secrets_and_hints(log: list[str]) -> None:
    run = record(None, NCCL_IB_TIMEOUT="99", NCCL_SOCKET_NTHREADS="4")
    node_network(SLINGSHOT, run, {}, 2, "hsn0").log_findings()
    assert [line.split(":")[:2] for line in log] == [["error", " NCCL_IB_TIMEOUT=99 (job.env)"]]


def test_runs_on_processors_derive_no_variable_of_nccl() -> None:
    run = record()
    run["config"]["resources"]["device"] = "cpu"
    found = node_network(SLINGSHOT, run, {}, 2, "hsn0")
    assert found.added.keys() == {"GLOO_SOCKET_IFNAME"}


def test_ranks_get_the_adapters_that_were_chosen_for_computing(tmp_path: Path) -> None:
    fabric = detect(tree("hdr_mixed", tmp_path), Process())
    run = record(None, NCCL_IB_HCA="mlx5")  # of the user: prefix of the storage adapters, too
    expected = ",".join(f"mlx5_{number}/1" for number in range(8))
    for one in (record(), run):
        assert node_network(fabric, one, {}, 2).added[ADAPTERS].value == expected
    assert ADAPTERS not in node_network(fabric, run, {}, 1).added
    run["config"]["resources"]["device"] = "cpu"
    assert ADAPTERS not in node_network(fabric, run, {}, 2).added
    assert ADAPTERS not in node_network(SLINGSHOT, record(), {}, 2).added, "none was detected"


def test_gpus_that_the_pci_bus_does_not_show_count_with_device_cuda() -> None:
    run = record()
    fabric = replace(SLINGSHOT, gpus=())
    assert "NCCL_SOCKET_IFNAME" not in node_network(fabric, run, {}, 2, "hsn0").added
    run["config"]["resources"]["device"] = "cuda"
    assert "NCCL_SOCKET_IFNAME" in node_network(fabric, run, {}, 2, "hsn0").added


def test_a_failing_detection_leaves_the_run_without_derived_variables(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("odd file")

    monkeypatch.setattr(module, "detect", fail)
    assert module.detect_or_nothing(record()) == Fabric(FabricKind.NONE)
    assert log == ["the network of this node is not described: RuntimeError: odd file"]


def test_libraries_are_found_where_the_ranks_search_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    root, folder = tree("efa_p5", tmp_path), "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
    profile = {"environment": {"LD_LIBRARY_PATH": {"value": folder, "reason": "the plugin"}}}
    records = (record(), record(LD_LIBRARY_PATH=folder), record(profile))
    found = [module.detect_or_nothing(each, root).software.nccl_plugins for each in records]
    assert [any(plugin.is_reachable for plugin in plugins) for plugins in found] == [False, True, True]
