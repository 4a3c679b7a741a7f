"""The GPUs of this node by NVML, in a process of its own: a driver may hang. Standard library only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.fabric.gpu_links import NvmlReading
from jobs.node.child_process import output

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
    """The answer of `jobs.node.preflight.gpu_health`; a driver that does not answer is a problem."""
    if not has_driver(root):
        return NodeGpus(0)
    command = [sys.executable, "-m", "jobs.node.preflight.gpu_health"]
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
