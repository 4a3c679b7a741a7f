"""Detection and NVML's links, on a machine that has a GPU."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from jobs.fabric.detect import detect, detect_here
from jobs.fabric.gpus import NvmlReading, read_nvml

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.version.hip is not None, reason="torch sees no GPU of NVIDIA"
)


def test_every_gpu_of_torch_is_detected_with_its_properties():
    by_uuid = {gpu.uuid: gpu for gpu in detect_here().gpus}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpu = by_uuid[f"GPU-{properties.uuid}"]
        assert gpu.name == properties.name
        assert gpu.compute_capability == (properties.major, properties.minor)
        assert gpu.memory_bytes >= properties.total_memory
        assert gpu.nvlinks is None or gpu.nvlinks_active <= gpu.nvlinks


def test_each_pair_of_gpus_has_a_path():
    reading = read_nvml()
    number = len(reading.gpus)
    assert len(reading.links) == number * (number - 1) // 2
    assert all(
        each.path.startswith("NV") or each.path in ("PIX", "PXB", "PHB", "NODE", "SYS")
        for each in reading.links
    )
    assert NvmlReading.from_json(json.loads(json.dumps(reading.as_json()))) == reading


def test_the_nccl_that_torch_loaded_is_found():
    found = detect_here().software
    if found.nccl_version is None:
        pytest.skip("NCCL is a part of torch's own library")
    assert found.nccl_version == ".".join(map(str, torch.cuda.nccl.version()[:3]))
    assert found.nvidia_driver == read_nvml().driver


def test_a_gpu_has_its_place_on_the_bus():
    fabric = detect_here()
    assert fabric.gpus
    for gpu in fabric.gpus:
        assert gpu.pci.vendor in ("0x10de", None)  # None: the container hides the PCI bus
        assert gpu.pci.address == gpu.pci.path[-1]
    assert {gpu.pci.address for gpu in detect(Path("/")).gpus} <= {gpu.pci.address for gpu in fabric.gpus}
    json.dumps(dataclasses.asdict(fabric))
