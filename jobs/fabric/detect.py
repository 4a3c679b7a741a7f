"""From a file-system root to the description of a node's fabric. No root privileges, no torch."""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path

from jobs.fabric.adapters import read_adapters
from jobs.fabric.choose_adapters import choose_adapters
from jobs.fabric.description import Fabric
from jobs.fabric.gpu_links import NvmlReading, read_nvml
from jobs.fabric.gpus import links_between, read_gpus
from jobs.fabric.interfaces import read_interfaces
from jobs.fabric.kernel_files import FileTree
from jobs.fabric.software import Process, read_software

RECORDED_NVML = "/nvml.json"
"""NVML's reading in a copied file tree."""


def detect(root: Path, process: Process | None = None, nvml: NvmlReading | None = None) -> Fabric:
    """The description that the files below `root` give. Odd and unreadable files count as missing.

    `process` has the environment in which NCCL will run; the default is an empty one. `nvml` is NVML's
    reading; the default is the one in `nvml.json` of the root, if it is there. Raises nothing.
    """
    tree = FileTree(root)
    nvml = nvml or _recorded_nvml(tree)
    interfaces = read_interfaces(tree)
    gpus = read_gpus(tree, nvml)
    kind, adapters = choose_adapters(read_adapters(tree, interfaces), interfaces, gpus)
    return Fabric(
        kind=kind,
        adapters=adapters,
        interfaces=interfaces,
        gpus=gpus,
        gpu_links=links_between(gpus, nvml),
        software=read_software(tree, process or Process(), nvml),
        product=_product(tree),
        host=tree.text("/proc/sys/kernel/hostname"),
    )


def detect_here() -> Fabric:
    """The description of this machine, with NVML and the environment of this process.

    NVML may take a second, and longer where a driver hangs.
    """
    return detect(Path("/"), current_process(), read_nvml())


def current_process() -> Process:
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container without an entry for this user
        home = os.path.expanduser("~")
    return Process(dict(os.environ), home, tuple(path for path in sys.path if path.startswith("/")))


def _recorded_nvml(tree: FileTree) -> NvmlReading | None:
    text = tree.text(RECORDED_NVML)
    if text is None:
        return None
    try:
        return NvmlReading.from_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _product(tree: FileTree) -> str | None:
    """Vendor and product by DMI; on processors without DMI, the model of the device tree."""
    folder = "/sys/class/dmi/id"
    vendor, name = (tree.text(f"{folder}/{file}") for file in ("sys_vendor", "product_name"))
    parts = [None if vendor and (name or "").startswith(vendor) else vendor, name]
    if tree.text(f"{folder}/chassis_asset_tag") == "OracleCloud.com":
        parts.append("(OracleCloud.com)")
    return " ".join(part for part in parts if part) or tree.text("/proc/device-tree/model")
