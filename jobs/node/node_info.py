"""Hardware and packages of a node: `python -m jobs.node.node_info ATTEMPT_DIR NODE` writes `node-NN.json`.

It runs as a separate process beside torchrun and ends with it, so a driver that hangs delays no rank. A
value that cannot be read is null. Imports without torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from jobs.checks.gpu_health import selected
from jobs.checks.rank_python import RankPython, nccl_version
from jobs.core import journal, processes
from jobs.fabric.description import Fabric, Software
from jobs.fabric.detect import current_process, detect
from jobs.fabric.gpus import NvmlReading, read_nvml
from jobs.fabric.kernel_files import FileTree
from jobs.fabric.software import Process

TIMEOUT_S = 20
"""Seconds after which the process ends, even inside a driver's library."""
_PATH_VARIABLE = "DISTTRAIN_RANK_PYTHON_PATH"
_IMAGE_VARIABLE = "DISTTRAIN_IMAGE_PACKAGES"
_PACKAGES = re.compile(r"torch|triton|(nvidia-(nccl|cuda-runtime|cudnn|nvshmem).*)")


def start_node_info(
    attempt: Attempt,
    node: int,
    env: Mapping[str, str],
    module: str | None = None,
    python: RankPython | None = None,
) -> None:
    """Start the process that writes the record, as a child of the caller.

    `env` is the environment of the ranks, and `python` theirs: libraries, plugins and files of NCCL, and
    packages, are found by them. Of an image, the packages are recorded alone.
    `module` replaces this module where the scheduler adds to the record (`Allocation.node_info_module`).
    """
    # -P: the environment of the ranks lacks PYTHONSAFEPATH
    command = [sys.executable, "-P", "-m", module or "jobs.node.node_info", str(attempt.path), str(node)]
    env = {**env, _PATH_VARIABLE: os.pathsep.join(python.path if python else sys.path)}
    if python is not None and python.container is not None:
        env |= {**os.environ, _IMAGE_VARIABLE: json.dumps(dict(python.packages))}
    processes.spawn([*command, attempt.directory_id or ""], env=env)


def collect_node_info(node: int, *, root: Path = Path("/")) -> dict[str, Any]:
    """The record of this node (`records.NodeRecord`); `root` is the folder of `sys` and `proc`."""
    nvml, tree = read_nvml() or NvmlReading(), FileTree(root)
    process = current_process(_python_path()) if root == Path("/") else Process()
    fabric, image = detect(root, process, nvml), os.environ.get(_IMAGE_VARIABLE)
    if image is not None:
        fabric = replace(fabric, software=fabric.software.of_image(nccl_version(json.loads(image))))
    memory_kib = _match(r"^MemTotal: +(\d+) kB$", tree.text("/proc/meminfo"))
    return {
        "schema_version": 1,
        "node": node,
        "host": processes.host(),
        "taken": journal.utc_now(),
        "kernel": platform.release() or None,
        "processor": _match(r"^model name\s*: (.+)$", tree.text("/proc/cpuinfo")),
        "processors_usable": len(os.sched_getaffinity(0)),
        "memory_bytes": 1024 * int(memory_kib) if memory_kib else None,
        "memory_limit_bytes": _memory_limit_bytes(tree),
        **_network_fields(fabric),
        "driver": nvml.driver,
        "gpus": visible_gpus(nvml),
        "packages": _packages() if image is None else _recorded(json.loads(image)),
    }


def _match(pattern: str, text: str | None) -> str | None:
    match = re.search(pattern, text or "", re.MULTILINE)
    return match[1] if match else None


def _memory_limit_bytes(tree: FileTree) -> int | None:
    """The smallest memory limit of the control groups of this process, in bytes."""
    group = _match(r"^0::/(.*)$", tree.text("/proc/self/cgroup"))
    if group is None:
        return None
    folder = PurePosixPath("/sys/fs/cgroup", group)
    limits = [tree.integer(f"{each}/memory.max") for each in (folder, *folder.parents)]
    return min((limit for limit in limits if limit is not None), default=None)


def _network_fields(fabric: Fabric) -> dict[str, Any]:
    """The fields of the record on adapters, interfaces and communication libraries."""
    return {
        "fabric_kind": str(fabric.kind),
        "interfaces": [
            {**_fields(each, "name", "driver"), "speed_mbit": each.speed_mbit_per_s}
            for each in fabric.interfaces
            if each.is_up
        ],
        "fabrics": [
            {
                **_fields(adapter, "name", "firmware", "driver", "for_compute", "reason"),
                **_fields(port, "link_layer", "state", "rate"),
                "port": port.number,
            }
            for adapter in fabric.adapters
            for port in adapter.ports
        ],
        "gpu_paths": dict(Counter(link.path for link in fabric.gpu_links)),
        "product": fabric.product,
        "communication": _libraries(fabric.software),
    }


def _fields(part: object, *names: str) -> dict[str, Any]:
    return {"schema_version": 1, **{name: getattr(part, name) for name in names}}


def _libraries(software: Software) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "nccl": software.nccl_version,
        "nccl_path": software.nccl_evidence,
        "nccl_plugins": [each.path for each in software.nccl_plugins if each.is_reachable],
        "nccl_files": {file.path: file.as_dict() for file in software.nccl_files},
        "aws_ofi_nccl": software.ofi_plugin_version,
        "libfabric": software.libfabric_version,
        "memory_lock": software.memory_lock,
    }


def visible_gpus(reading: NvmlReading) -> list[dict[str, Any]]:
    """The GPUs that this job may use."""
    gpus = [
        {**_fields(gpu, "name", "memory_bytes", "uuid"), "pci_id": gpu.pci.address} for gpu in reading.gpus
    ]
    known = {gpu["uuid"]: gpu for gpu in gpus if None not in gpu.values()}
    return [known[uuid] for uuid in selected(list(known), os.environ.get("CUDA_VISIBLE_DEVICES"))]


def _python_path() -> list[str]:
    """Module search path of the ranks."""
    return os.environ.get(_PATH_VARIABLE, os.pathsep.join(sys.path)).split(os.pathsep)


def _packages() -> dict[str, str]:
    try:
        found = metadata.distributions(path=_python_path())
        return _recorded({each.metadata["Name"]: each.version for each in found})
    except Exception:  # damaged files of a package raise errors of several types
        return {}


def _recorded(versions: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in sorted(versions.items()) if name and _PACKAGES.fullmatch(name)}


def main(arguments: list[str], collect: Callable[[int], dict[str, Any]] = collect_node_info) -> int:
    """Write the record that `collect` makes of this node. Arguments: attempt, node, run directory's id."""
    signal.alarm(TIMEOUT_S)  # SIGALRM ends the process also while a driver's library hangs
    folder, node = Path(arguments[0]), int(arguments[1])
    attempt = Attempt(folder, int(folder.name), "".join(arguments[2:]) or None)
    record = collect(node)
    if not attempt.is_replaced():
        write_json(attempt.node_record(node), record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
