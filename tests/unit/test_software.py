"""Versions of libraries, files of variables and limits from a file tree, without importing a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fabric.description import Software
from jobs.fabric.gpus import NvmlReading
from jobs.fabric.kernel_files import FileTree
from jobs.fabric.software import Process, effective_limit, linker_folders, parse_variables, read_software
from tests.support.fabric_tree_builder import Tree
from tests.support.fabric_trees import tree


def read(root: Path, **environ: str) -> Software:
    return read_software(FileTree(root), Process(environ, "/home/me"), None)


def library(t: Tree, folder: str, version: str) -> None:
    """`libnccl.so.2` and the file that it leads to."""
    t.write(f"{folder}/libnccl.so.{version}", "ELF")
    t.link(f"{folder}/libnccl.so.2", f"{folder}/libnccl.so.{version}")


def test_the_nccl_that_pytorch_loads(tmp_path):
    t = Tree(tmp_path)
    library(t, "/usr/lib/x86_64-linux-gnu", "2.18.3")
    assert read(tmp_path).nccl_version == "2.18.3"
    library(t, "/opt/nccl/lib", "2.22.3")
    loaded = {"LD_LIBRARY_PATH": "/opt/nccl/lib"}
    assert read(tmp_path, **loaded).nccl_version == "2.22.3"
    t.nccl("2.27.5")
    beside = read(tmp_path, **loaded)
    assert beside.nccl_version == "2.27.5"
    assert (beside.nccl_evidence or "").endswith("/nvidia_nccl_cu12-2.27.5.dist-info")
    preloaded = read(tmp_path, LD_PRELOAD="/lib/x.so:/opt/nccl/lib/libnccl.so.2")
    assert (preloaded.nccl_version, preloaded.nccl_evidence) == ("2.22.3", "/opt/nccl/lib/libnccl.so.2")
    t.write("/venv/nvidia_nccl_cu13-2.30.7.dist-info/METADATA", "")
    own = read_software(FileTree(tmp_path), Process(python_path=("/venv",)), None)
    assert own.nccl_version == "2.30.7", "packages of the process, not those of the system"


def test_folders_of_the_linker(tmp_path):
    t = Tree(tmp_path)
    t.write("/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n/opt/own # comment")
    t.write("/etc/ld.so.conf.d/efa.conf", "/opt/amazon/efa/lib")
    t.write("/etc/ld.so.conf.d/other.txt", "/opt/unused")
    found = linker_folders(FileTree(tmp_path), {"LD_LIBRARY_PATH": ":/first:relative"})
    assert found[:3] == ("/first", "/opt/amazon/efa/lib", "/opt/own")
    assert "/opt/unused" not in found
    assert "/usr/lib64" in found


def test_plugins_and_whether_nccl_finds_them(tmp_path):
    root = tree("efa_p5", tmp_path)
    t, folder = Tree(root), "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
    names = ("libnccl-net-ofi.so", "libnccl-net.so")
    t.link(f"{folder}/{names[0]}", f"{folder}/{names[1]}")
    for environ, is_reachable in (({}, False), ({"LD_LIBRARY_PATH": folder}, True)):
        (found,) = read(root, **environ).nccl_plugins
        assert (found.kind, found.path, found.is_reachable, found.names) == (
            "net", f"{folder}/{names[0]}", is_reachable, names,
        )  # fmt: skip
    t.write("/usr/lib64/libnccl-tuner-ofi.so", "ELF")
    t.write("/usr/lib64/libnccl.so.2", "ELF")
    assert [each.kind for each in read(root).nccl_plugins] == ["tuner", "net"]


def test_the_loaded_libfabric_and_the_version_in_the_plugin(tmp_path):
    root, folder = tree("cxi", tmp_path), "/opt/cray/libfabric/1.15.2.0/lib64"
    t = Tree(root)
    t.write("/opt/aws-ofi-nccl/lib/libnccl-net.so", "\0\1Initializing aws-ofi-nccl 1.9.1-aws\0")
    newest = read(root)
    assert (newest.libfabric_version, newest.ofi_plugin_version) == ("1.22.0", "1.9.1")
    t.write(f"{folder}/pkgconfig/libfabric.pc", "Name: libfabric\nVersion: 1.15.2.0\n")
    assert read(root, LD_LIBRARY_PATH=folder).libfabric_version == "1.15.2.0"


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release", "560.35.03", True),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23", "550.54.15", False),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65  Release", "580.65", True),
        ("anything", "1.2", None),  # the version by NVML
    ],
)
def test_the_driver(text, version, is_open, tmp_path):
    Tree(tmp_path).write("/proc/driver/nvidia/version", text)
    found = read_software(FileTree(tmp_path), Process(), NvmlReading("1.2"))
    assert (found.nvidia_driver, found.is_open_driver) == (version, is_open)


def test_devices_and_sizes(tmp_path):
    nothing = read(tmp_path)
    assert (nothing.memory_lock, nothing.has_gdrcopy, nothing.has_peermem, nothing.shared_memory_bytes) == (
        None, None, None, None,
    )  # fmt: skip
    t = Tree(tmp_path)
    t.write("/proc/self/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0")
    t.write("/dev/gdrdrv", "")
    t.write("/sys/module/nv_peer_mem/refcnt", "0")
    found = read(tmp_path)
    assert (found.shared_memory_bytes, found.has_gdrcopy, found.has_peermem, found.has_verbs_devices) == (
        64 << 20, True, True, False,
    )  # fmt: skip


def test_lines_of_a_file_are_as_nccl_reads_them():
    text = """# NCCL_DEBUG=INFO
NCCL_IB_TIMEOUT=22

nonsense
=x
NCCL_IB_TIMEOUT=14
NCCL_PROTO = ^LL128
NCCL_DEBUG="WARN"
export NCCL_IB_SL=1
NCCL_IB_TC=41 # of the site
"""
    assert parse_variables(text) == (
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_PROTO ", " ^LL128"),
        ("NCCL_DEBUG", '"WARN"'),
        ("export NCCL_IB_SL", "1"),
        ("NCCL_IB_TC", "41 # of the site"),
    )


def test_files_in_the_order_of_nccl(tmp_path):
    t = Tree(tmp_path)
    t.write("/etc/nccl.conf", " NCCL_DEBUG=WARN ")
    t.write("/home/me/.nccl.conf", "NCCL_DEBUG=INFO")
    t.write("/scratch/job.conf", "NCCL_DEBUG=TRACE")

    def paths(**environ: str) -> list[str]:
        return [each.path for each in read(tmp_path, **environ).nccl_files]

    assert paths() == ["/home/me/.nccl.conf", "/etc/nccl.conf"]
    assert paths(NCCL_CONF_FILE="/scratch/job.conf") == ["/scratch/job.conf", "/etc/nccl.conf"]
    assert paths(NCCL_CONF_FILE="/missing") == ["/etc/nccl.conf"]
    assert read(tmp_path).nccl_files[1].variables == ((" NCCL_DEBUG", "WARN "),), "blanks at both ends"


ROOT, CONTAINER, USER = "000001ffffffffff", "00000000a80425fb", "0000000000000000"
"""All capabilities; Docker's default ones, without CAP_IPC_LOCK; none."""
INITIAL, ROOTLESS = "         0          0 4294967295\n", "         0       1000          1\n"


@pytest.mark.parametrize(
    ("limit", "capabilities", "uid_map", "expected"),
    [
        ("65536", ROOT, INITIAL, "unlimited"),
        ("65536", "0000000000004000", INITIAL, "unlimited"),  # CAP_IPC_LOCK alone
        ("65536", ROOT, None, "unlimited"),  # a kernel without user namespaces
        ("65536", ROOT, ROOTLESS, "65536"),  # root of a container only
        ("65536", CONTAINER, INITIAL, "65536"),
        ("65536", None, None, "65536"),
        ("unlimited", USER, INITIAL, "unlimited"),
        (None, ROOT, INITIAL, None),
    ],
)
def test_the_limit_of_locked_memory_has_no_effect_with_the_capability(
    limit, capabilities, uid_map, expected, tmp_path
):
    """Files as Linux 6.8 and 5.14 print them."""
    files = {
        "limits": limit and f"Limit\nMax locked memory         {limit:<20} {limit:<20} bytes\nMax file locks",
        "status": capabilities and f"CapPrm:\t{ROOT}\nCapEff:\t{capabilities}\nCapBnd:\t{ROOT}\n",
        "uid_map": uid_map,
    }
    assert effective_limit(*files.values()) == expected
    for name, text in files.items():
        if text:
            Tree(tmp_path).write(f"/proc/self/{name}", text)
    found = read(tmp_path)
    assert found.memory_lock == expected
    assert found.memory_lock_bytes == (int(expected) if expected == "65536" else None)
