"""Versions of libraries from a file tree, without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fabric.description import Software
from jobs.fabric.kernel_files import FileTree
from jobs.fabric.software import Process, linker_folders, read_software
from tests.support.fabric_tree_builder import Tree
from tests.support.fabric_trees import tree


def read(root: Path, **environ: str) -> Software:
    return read_software(FileTree(root), Process(environ), None)


def library(t: Tree, folder: str, version: str) -> None:
    """`libnccl.so.2` and the file that it leads to."""
    t.write(f"{folder}/libnccl.so.{version}", "ELF")
    t.link(f"{folder}/libnccl.so.2", f"{folder}/libnccl.so.{version}")


def test_the_nccl_that_pytorch_loads(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    library(t, "/usr/lib/x86_64-linux-gnu", "2.18.3")
    assert read(tmp_path).nccl_version == "2.18.3"
    library(t, "/opt/nccl/lib", "2.22.3")
    assert read(tmp_path, LD_LIBRARY_PATH="/opt/nccl/lib").nccl_version == "2.22.3"
    t.nccl("2.27.5")
    beside = read(tmp_path, LD_LIBRARY_PATH="/opt/nccl/lib")
    assert beside.nccl_version == "2.27.5"
    assert (beside.nccl_evidence or "").endswith("/nvidia_nccl_cu12-2.27.5.dist-info")
    preloaded = read(tmp_path, LD_PRELOAD="/lib/x.so:/opt/nccl/lib/libnccl.so.2")
    assert (preloaded.nccl_version, preloaded.nccl_evidence) == ("2.22.3", "/opt/nccl/lib/libnccl.so.2")


def test_packages_of_the_process_come_before_those_of_the_system(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.nccl("2.27.5")
    t.write("/venv/nvidia_nccl_cu13-2.30.7.dist-info/METADATA", "")
    process = Process(python_path=("/venv",))
    assert read_software(FileTree(tmp_path), process, None).nccl_version == "2.30.7"
    assert read_software(FileTree(tmp_path), Process(python_path=()), None).nccl_version is None


def test_folders_of_the_linker(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.write("/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n/opt/own # comment")
    t.write("/etc/ld.so.conf.d/efa.conf", "/opt/amazon/efa/lib")
    t.write("/etc/ld.so.conf.d/other.txt", "/opt/unused")
    found = linker_folders(FileTree(tmp_path), {"LD_LIBRARY_PATH": ":/first:relative"})
    assert found[:3] == ("/first", "/opt/amazon/efa/lib", "/opt/own")
    assert "/opt/unused" not in found
    assert "/usr/lib64" in found


def test_plugins_and_whether_nccl_finds_them(tmp_path: Path) -> None:
    root = tree("efa_p5", tmp_path)
    path = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    names = ("libnccl-net-ofi.so", "libnccl-net.so")
    Tree(root).link(path.replace("-net.so", "-net-ofi.so"), path)
    (found,) = read(root).nccl_plugins
    assert (found.kind, found.is_reachable, found.names) == ("net", False, names)
    (found,) = read(root, LD_LIBRARY_PATH=path.rpartition("/")[0]).nccl_plugins
    assert (found.path.rpartition("/")[2], found.is_reachable, found.names) == (names[0], True, names)
    t = Tree(root)
    t.write("/usr/lib64/libnccl-tuner-ofi.so", "ELF")
    t.write("/usr/lib64/libnccl.so.2", "ELF")
    assert [each.kind for each in read(root).nccl_plugins] == ["tuner", "net"]


def test_libfabric_and_its_plugin(tmp_path: Path) -> None:
    efa = read(tree("efa_p5", tmp_path / "efa"))
    assert (efa.libfabric_version, efa.ofi_plugin_version) == ("1.22.0amzn4.0", "1.13.2")
    cray = read(tree("cxi", tmp_path / "cxi"))
    assert cray.libfabric_version == "1.22.0"
    assert cray.libfabric_evidence == "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1"
    loaded = tmp_path / "cxi/opt/cray/libfabric/1.15.2.0/lib64/pkgconfig/libfabric.pc"
    loaded.parent.mkdir()
    loaded.write_text("Name: libfabric\nVersion: 1.15.2.0\n")
    older = read(tmp_path / "cxi", LD_LIBRARY_PATH="/opt/cray/libfabric/1.15.2.0/lib64")
    assert older.libfabric_version == "1.15.2.0"


def test_the_version_of_the_plugin_stands_in_the_plugin(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    t.write("/opt/aws-ofi-nccl/lib/libnccl-net.so", "\0\1Initializing aws-ofi-nccl 1.9.1-aws\0")
    assert read(tmp_path).ofi_plugin_version == "1.9.1"


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release", "560.35.03", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23", "550.54.15", False),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65  Release", "580.65", True),
        ("anything", None, None),
    ],
)
def test_the_driver(text: str, version: str | None, is_open: bool | None, tmp_path: Path) -> None:
    Tree(tmp_path).write("/proc/driver/nvidia/version", text)
    found = read(tmp_path)
    assert (found.nvidia_driver, found.is_open_driver) == (version, is_open)


def test_limits(tmp_path: Path) -> None:
    t = Tree(tmp_path)
    assert (read(tmp_path).memory_lock, read(tmp_path).has_gdrcopy, read(tmp_path).has_peermem) == (None,) * 3
    t.write(
        "/proc/self/limits", "Max locked memory         8388608              unlimited            bytes     "
    )
    t.write("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0")
    t.write("/dev/gdrdrv", "")
    found = read(tmp_path)
    assert (found.memory_lock, found.memory_lock_bytes) == ("8388608", 8 << 20)
    assert found.shared_memory_bytes == 64 << 20
    assert found.has_gdrcopy is True
