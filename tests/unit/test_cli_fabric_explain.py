"""`fabric explain` on copies of nodes and on this machine."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import submit
from jobs.cli import fabric_checks
from jobs.fabric.detect import detect
from tests.support.fabric_trees import KINDS
from tests.support.golden import golden
from tests.support.verbs import ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")


Trees = Callable[[str], Path]
Captured = pytest.CaptureFixture[str]


def test_every_tree(shared_tree: Trees, capsys: Captured) -> None:
    """Text and JSON of each tree, and the findings of one script on it."""
    Path("job.sh").write_text("NCCL_IB_HCA=mlx5_9 NCCL_NET=IB GLOO_SOCKET_IFNAME=eth7 NCCL_ALGO=Tree\n")
    parts = []
    for kind in KINDS:
        root = shared_tree(kind)
        document = ask_json(capsys, f"fabric explain --root '{root}'")
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        parts += [f"# {kind}, JSON {digest}", ask(capsys, f"fabric explain --root '{root}' --nodes 4")]
        found = ask_json(capsys, f"fabric lint job.sh --nodes 2 --root '{root}'", code=1)["findings"]
        parts += [json.dumps(each) for each in found]
    golden("fabric-trees.txt", "\n".join(parts) + "\n")


def test_one_node_needs_no_variable(shared_tree: Trees, capsys: Captured) -> None:
    alone = ask(capsys, f"fabric explain --root '{shared_tree('cpu')}' --nodes 1")
    assert alone.endswith("variables for a job of 1 node with gloo\n  none: the defaults are right\n")


def test_this_machine(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("jobs.fabric.detect.read_nvml", lambda: None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    text = ask(capsys, "fabric explain")
    assert "network between nodes: " in text
    derived, _, given = text.partition("\nvariables that are already set, and win\n")
    assert "GLOO_SOCKET_IFNAME" not in derived.partition("\nvariables for a job")[2]
    assert given.startswith(
        "  GLOO_SOCKET_IFNAME=eth9\n    set by environment\n"
        "    error [conflict]: the node has no interface 'eth9', so gloo fails; it has lo"
    )
    (found,) = (each for each in ask_json(capsys, "fabric explain")["given"] if each["value"] == "eth9")
    assert found["origin"] == "environment"
    assert found["findings"][0].startswith("error [conflict]: the node has no interface")


def test_a_given_interface_beside_the_derived_one(
    shared_tree: Trees, capsys: Captured, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    shutil.copytree(shared_tree("hdr_mixed"), root, symlinks=True)
    (root / "etc/nccl.conf").write_text("NCCL_SOCKET_IFNAME==ib99\nNCCL_IB_TIMEOUT=22\n")
    given = ask(capsys, f"fabric explain --root '{root}'").partition("\nvariables that are already set")[2]
    assert (
        "  NCCL_SOCKET_IFNAME==ib99\n    set by /etc/nccl.conf\n    error [conflict]: it selects none"
        in given
    )
    assert "    without it: =enp226s0 (the interface of gloo" in given
    assert given.endswith("  NCCL_IB_TIMEOUT=22\n    set by /etc/nccl.conf\n")
    rows = ask_json(capsys, f"fabric explain --root '{root}'")["variables"]
    (row,) = (each for each in rows if each["name"] == "NCCL_SOCKET_IFNAME")
    assert (row["value"], row["given"]) == ("=enp226s0", "=ib99")


def test_interfaces_that_are_not_known(shared_tree: Trees, capsys: Captured, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(shared_tree("cpu"), root, symlinks=True)
    (root / "proc/net/route").unlink()
    text = ask(capsys, f"fabric explain --root '{root}'")
    assert "GLOO_SOCKET_IFNAME: not known here, because there is no default route" in text
    assert "the defaults are right" not in text
    assert "not known" not in ask(capsys, f"fabric explain --root '{root}' --nodes 1")
    (root / "sys/class/net/eth0/operstate").write_text("down")
    text = ask(capsys, f"fabric explain --root '{root}'")
    assert "network between nodes: none: no interface of a device is up" in text
    (root / "sys/class/net/veth0").mkdir()
    (root / "sys/class/net/veth0/operstate").write_text("up")
    text = ask(capsys, f"fabric explain --root '{root}'")
    assert "network between nodes: none: no interface of a device is up" in text


def test_more_gpus_than_the_node_has(shared_tree: Trees, capsys: Captured) -> None:
    options = "--gpus-per-node 16"
    assert submit.main(shlex.split(f"fabric explain --root '{shared_tree('ndr')}' {options}")) == 2
    assert capsys.readouterr().err == "error: --gpus-per-node: 16, but this node has 8 GPUs\n"
    assert "with 16 GPUs each" in ask(capsys, f"fabric explain --root '{shared_tree('cpu')}' {options}")


def test_a_login_node_may_have_fewer_gpus_than_the_job(
    shared_tree: Trees, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = detect(shared_tree("ndr"))
    monkeypatch.setattr(fabric_checks, "detect_here", lambda: replace(fabric, gpus=fabric.gpus[:1]))
    text = ask(capsys, "fabric explain --gpus-per-node 8")
    assert "this node has 1 GPU; the nodes of the job may differ from it" in text
    assert "with 8 GPUs each" in text
    assert "this node has" not in ask(capsys, "fabric explain --gpus-per-node 1")


def test_a_root_that_is_no_copy_of_a_node(tmp_path: Path, capsys: Captured) -> None:
    ask(capsys, f"fabric explain --root {tmp_path}/missing", code=2)
    ask(capsys, f"fabric explain --root {tmp_path}", code=2)
    ask(capsys, "fabric explain --nodes 0", code=2)
    ask(capsys, "fabric explain --nodes 0", code=2)
