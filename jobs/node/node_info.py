"""Hardware and packages of a node: `python -m jobs.node.node_info ATTEMPT_DIR NODE` writes `node-NN.json`.

It runs as a separate process beside torchrun and ends with it, so a driver that hangs delays no rank. A
value that cannot be read is null. Imports without torch.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from disttrain.records.json_files import write_json
from disttrain.records.run_directory import Attempt
from jobs.core import journal, processes

TIMEOUT_S = 20
"""Seconds after which the process ends, even inside a driver's library."""
_PACKAGES = re.compile(r"torch|triton|(nvidia-(nccl|cuda-runtime|cudnn|nvshmem).*)")
_LOOPBACK = "lo"


def start_node_info(attempt: Attempt, node: int, module: str | None = None) -> None:
    """Start the process that writes the record, as a child of the caller.

    `module` replaces this module where the scheduler adds to the record (`Allocation.node_info_module`).
    """
    command = [sys.executable, "-m", module or "jobs.node.node_info", str(attempt.path), str(node)]
    processes.spawn([*command, attempt.directory_id or ""])


def collect_node_info(node: int, *, root: Path = Path("/")) -> dict[str, Any]:
    """The record of this node (`records.NodeRecord`); `root` is the folder of `sys` and `proc`."""
    driver, gpus = _value_or(_visible_gpus, (None, []))
    return {
        "schema_version": 1,
        "node": node,
        "host": processes.host(),
        "taken": journal.utc_now(),
        "kernel": platform.release() or None,
        "processor": _value_or(lambda: _processor(root), None),
        "processors_usable": _value_or(lambda: len(os.sched_getaffinity(0)), None),
        "memory_bytes": _value_or(lambda: _memory_bytes(root), None),
        "memory_limit_bytes": _value_or(lambda: _memory_limit_bytes(root), None),
        "interfaces": _value_or(lambda: _interfaces(root), []),
        "fabrics": _value_or(lambda: _fabrics(root), []),
        "driver": driver,
        "gpus": gpus,
        "packages": _value_or(_packages, {}),
    }


def _value_or(find: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return find()
    except Exception:  # drivers' files and libraries may raise any exception
        return otherwise


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:  # also EINVAL: the speed of an interface that is down
        return None


def _processor(root: Path) -> str | None:
    found = re.search(r"^model name\s*: (.+)$", (root / "proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else None


def _memory_bytes(root: Path) -> int | None:
    found = re.search(r"^MemTotal: +(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else None


def _memory_limit_bytes(root: Path) -> int | None:
    """The smallest memory limit of the control groups of this process, in bytes."""
    own = re.search(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
    if own is None:
        return None
    top = root / "sys/fs/cgroup"
    folder = top / own[1]
    limits = [
        _read_text(each / "memory.max") for each in (folder, *folder.parents) if each.is_relative_to(top)
    ]
    return min((int(limit) for limit in limits if limit and limit.isdigit()), default=None)


def _interfaces(root: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted((root / "sys/class/net").iterdir()):
        if path.name == _LOOPBACK or _read_text(path / "operstate") not in ("up", "unknown"):
            continue
        speed = _read_text(path / "speed")
        found.append(
            {
                "schema_version": 1,
                "name": path.name,
                "speed_mbit": int(speed) if speed and speed.isdigit() and int(speed) > 0 else None,
                "driver": _driver(path),
            }
        )
    return found


def _fabrics(root: Path) -> list[dict[str, Any]]:
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return []
    return [
        {
            "schema_version": 1,
            "name": device.name,
            "port": int(port.name),
            "link_layer": _read_text(port / "link_layer"),
            "state": _port_state(_read_text(port / "state")),
            "rate": _read_text(port / "rate"),
            "firmware": _read_text(device / "fw_ver"),
            "driver": _driver(device),
        }
        for device in sorted(folder.iterdir())
        for port in sorted((device / "ports").iterdir(), key=lambda port: int(port.name))
    ]


def _port_state(state: str | None) -> str | None:
    """The name in a state such as `4: ACTIVE`."""
    return state.rpartition(":")[2].strip() if state else None


def _driver(device: Path) -> str | None:
    try:
        return os.readlink(device / "device" / "driver").rpartition("/")[2]
    except OSError:
        return None


def _visible_gpus() -> tuple[str | None, list[dict[str, Any]]]:
    """Version of the driver, and the GPUs that this job may use."""
    import pynvml

    pynvml.nvmlInit()
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        found.append(
            {
                "schema_version": 1,
                "name": pynvml.nvmlDeviceGetName(device),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(device).total),
                "pci_id": pynvml.nvmlDeviceGetPciInfo(device).busId,
                "uuid": pynvml.nvmlDeviceGetUUID(device),
            }
        )
    return pynvml.nvmlSystemGetDriverVersion(), _selected(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _selected(gpus: list[dict[str, Any]], chosen: str | None) -> list[dict[str, Any]]:
    """Those of `gpus` that CUDA_VISIBLE_DEVICES names, by index or start of their UUIDs, in its order."""
    if chosen is None:
        return gpus
    found = []
    for choice in map(str.strip, chosen.split(",")):
        matching = [
            gpu
            for index, gpu in enumerate(gpus)
            if choice == str(index) or (choice and gpu["uuid"].startswith(choice))
        ]
        found += matching[:1]
    return found


def _packages() -> dict[str, str]:
    names = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    return {name: version for name, version in sorted(names.items()) if name and _PACKAGES.fullmatch(name)}


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
