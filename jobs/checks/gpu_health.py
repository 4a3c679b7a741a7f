"""Health of this node's GPUs by NVML: `python -m jobs.checks.gpu_health` prints JSON.

NVML is asked in this process alone, which the agent ends after a time limit: a driver may hang. A value that
a GPU does not have is no problem.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jobs.core.child_process import output
from jobs.fabric.defects import NVLINK_REMEDY, nvlink_defect
from jobs.fabric.gpus import NvmlReading, read_nvml

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs that this job may use."""

    count: int | None
    """0 without a driver; None if NVML gave no answer, and for runs without GPUs."""
    problems: Sequence[Mapping[str, Any]] = ()
    """`severity`, `message` and `remedy` of each problem of a GPU."""
    reading: NvmlReading = field(default_factory=NvmlReading)
    """Their links, in the order of CUDA_VISIBLE_DEVICES."""


def has_driver(root: Path = Path("/")) -> bool:
    """Whether the NVIDIA driver is loaded."""
    return (root / "dev/nvidiactl").exists()


def read_node_gpus(root: Path = Path("/")) -> NodeGpus:
    """The answer of this module in a process of its own; a driver that does not answer is a problem."""
    if not has_driver(root):
        return NodeGpus(0)
    command = [sys.executable, "-m", "jobs.checks.gpu_health"]
    try:
        found = json.loads(output(command, _TIMEOUT_S))
        reading = NvmlReading.from_json(found["reading"]) or NvmlReading()
        return NodeGpus(int(found["gpus"]), list(found["problems"]), reading)
    except subprocess.TimeoutExpired:
        message = f"NVML did not answer within {_TIMEOUT_S:g} s"
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
        message = f"NVML cannot be used: {' '.join(str(error).split())}"
    remedy = "run nvidia-smi on the node; reload the driver or reboot the node"
    return NodeGpus(None, [{"severity": "warning", "message": message, "remedy": remedy}])


@functools.cache
def node_gpus() -> NodeGpus:
    """The answer of `read_node_gpus`, which takes seconds, read once."""
    return read_node_gpus()


_THROTTLED = {
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown (temperature or power brake)",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal slowdown of the hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "external power brake",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "thermal slowdown of the driver",
}
"""Reasons that slow a healthy, idle GPU never has. The limit of power is reached in normal work."""
_RESET = "have the GPU reset (nvidia-smi -r) or the node drained"
_REPLACE = "report the GPU for replacement; resubmit without the node"
_COOL = "report the node: cooling or power supply"


def problems(api: Any, name: str, handle: Any) -> list[dict[str, str]]:
    """Problems of one GPU: uncorrected memory errors, memory rows or pages to be replaced, throttling."""
    found = []

    def add(severity: str, message: str, remedy: str) -> None:
        found.append({"severity": severity, "message": f"{name}: {message}", "remedy": remedy})

    errors = _value(
        lambda: api.nvmlDeviceGetTotalEccErrors(
            handle, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, api.NVML_VOLATILE_ECC
        )
    )
    if errors:
        # hardware contains a single error: it ends the process that reads the memory, and no other one
        what = "uncorrected memory errors" if errors > 1 else "uncorrected memory error"
        severity = "error" if errors > 1 else "warning"
        add(severity, f"{errors} {what} (ECC) since the driver was loaded", _RESET)
    rows = _value(lambda: api.nvmlDeviceGetRemappedRows(handle))
    if rows is not None:
        _, _, pending, failed = rows
        if failed:
            add("error", "a memory row could not be replaced", _REPLACE)
        elif pending:
            add("warning", "a memory row is replaced at the next reset", _RESET)
    elif _value(lambda: api.nvmlDeviceGetRetiredPagesPendingStatus(handle)):
        add("warning", "a memory page is retired at the next reset", _RESET)
    reasons = _value(lambda: api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    for constant, text in _THROTTLED.items():
        if reasons & getattr(api, constant, 0):
            add("warning", f"throttled now: {text}", _COOL)
    return found


def _value(read: Callable[[], Any]) -> Any:
    """The value, or None where the device, the driver or the binding refuses it."""
    try:
        return read()
    except Exception:  # the binding raises errors of several types
        return None


def collect(api: Any, visible: str | None, reading: NvmlReading) -> dict[str, Any]:
    """Number, problems and links of the GPUs that `visible` (CUDA_VISIBLE_DEVICES) selects.

    `reading` is that of all GPUs; the result has its part on the selected ones (`NvmlReading.as_json`).

    NVML lists GPUs that the cgroup of the job hides, and refuses their handles: they are left out.
    """
    api.nvmlInit()
    handles: dict[str, tuple[str, Any]] = {}
    found = []
    for index in range(api.nvmlDeviceGetCount()):
        name = f"GPU {index}"
        try:
            handle = api.nvmlDeviceGetHandleByIndex(index)
            handles[api.nvmlDeviceGetUUID(handle)] = (name, handle)
        except Exception as error:
            if getattr(error, "value", None) != api.NVML_ERROR_NO_PERMISSION:
                found.append({"severity": "warning", "message": f"{name}: {error}", "remedy": _RESET})
    chosen = selected(list(handles), visible)
    own = part_of(reading, chosen)
    found += [problem for uuid in chosen for problem in problems(api, *handles[uuid])]
    found += [
        {"severity": "warning", "message": f"{handles[str(gpu.uuid)][0]}: {defect}", "remedy": NVLINK_REMEDY}
        for gpu in own.gpus
        if (defect := nvlink_defect(gpu, reading.gpus)) is not None
    ]
    return {"gpus": len(chosen), "problems": found, "reading": own.as_json()}


def part_of(reading: NvmlReading, uuids: Sequence[str]) -> NvmlReading:
    """The reading of these GPUs, in their order, and of the links between them."""
    by_uuid = {gpu.uuid: gpu for gpu in reading.gpus}
    gpus = tuple(by_uuid[uuid] for uuid in uuids if uuid in by_uuid)
    places = {gpu.pci.address for gpu in gpus}
    links = tuple(each for each in reading.links if {each.first, each.second} <= places)
    return replace(reading, gpus=gpus, links=links)


def selected(uuids: Sequence[str], visible: str | None) -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or start of their UUIDs, in its order."""
    if visible is None:
        return list(uuids)
    matches = (
        [uuid for index, uuid in enumerate(uuids) if name == str(index) or (name and uuid.startswith(name))]
        for name in map(str.strip, visible.split(","))
    )
    return [match[0] for match in matches if match]


def main() -> int:
    import pynvml

    reading = read_nvml() or NvmlReading()
    print(json.dumps(collect(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), reading)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
