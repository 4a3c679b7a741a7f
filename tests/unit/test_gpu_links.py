"""NVML's reading of GPUs and their links, from stand-ins for its binding."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest

from jobs.fabric.gpus import NvmlReading, normal_address, read_nvml


class NvmlError(Exception):
    pass


def binding(
    addresses: list[str], peers: dict[tuple[int, int], tuple[int, str]], level: int = 50
) -> types.ModuleType:
    """A stand-in for pynvml. `peers`: by GPU and link, the kind of the other end and its address."""
    module = types.ModuleType("pynvml")

    def peer(gpu: int, link: int) -> tuple[int, str]:
        if (gpu, link) not in peers:
            raise NvmlError("not supported")
        return peers[gpu, link]

    functions: dict[str, Any] = {
        "NVML_P2P_STATUS_OK": 0,
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "550.54.15",
        "nvmlDeviceGetCount": lambda: len(addresses),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetPciInfo": lambda gpu: types.SimpleNamespace(busId=addresses[gpu]),
        "nvmlDeviceGetName": lambda gpu: "NVIDIA H100",
        "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
        "nvmlDeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: (9, 0),
        "nvmlDeviceGetNvLinkState": lambda gpu, link: int(bool(peer(gpu, link)[1])),
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: peer(gpu, link)[0],
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, link: types.SimpleNamespace(busId=peer(gpu, link)[1]),
        "nvmlDeviceGetTopologyCommonAncestor": lambda first, second: level,
        "nvmlDeviceGetP2PStatus": lambda first, second, index: 0 if index == 0 else 1,
    }
    vars(module).update(functions)
    return module


ADDRESSES = ["00000000:1A:00.0", "00000000:3D:00.0"]


def read(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType | None) -> NvmlReading | None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return read_nvml()


def test_a_gpu_whose_handle_is_refused_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = binding(ADDRESSES, {})

    def handle(index: int) -> int:
        if index == 0:
            raise NvmlError("insufficient permissions")
        return index

    vars(module)["nvmlDeviceGetHandleByIndex"] = handle
    reading = read(monkeypatch, module)
    assert reading is not None
    assert [gpu.pci.address for gpu in reading.gpus] == ["0000:3d:00.0"]


def test_links_through_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {(gpu, link): (2, "00000000:C5:00.0") for gpu in (0, 1) for link in range(18)}
    peers[1, 17] = (2, "")  # an inactive link
    reading = read(monkeypatch, binding(ADDRESSES, peers))
    assert reading is not None
    assert [(each.first, each.second, each.path, each.is_p2p) for each in reading.links] == [
        ("0000:1a:00.0", "0000:3d:00.0", "NV17", True)
    ]
    assert [(gpu.nvlinks_active, gpu.nvlinks) for gpu in reading.gpus] == [(18, 18), (17, 18)]
    assert all(gpu.is_behind_nvswitch for gpu in reading.gpus)
    assert reading.gpus[0].compute_capability == (9, 0)


def test_links_from_gpu_to_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {(gpu, link): (0, ADDRESSES[1 - gpu]) for gpu in (0, 1) for link in range(4)}
    reading = read(monkeypatch, binding(ADDRESSES, peers))
    assert reading is not None
    assert [each.path for each in reading.links] == ["NV4"]
    assert not any(gpu.is_behind_nvswitch for gpu in reading.gpus)


@pytest.mark.parametrize(("level", "path"), [(10, "PIX"), (30, "PHB"), (40, "NODE"), (77, "SYS")])
def test_paths_over_pci(level: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(monkeypatch, binding(ADDRESSES, {}, level))
    assert reading is not None
    assert [each.path for each in reading.links] == [path]
    assert (reading.gpus[0].nvlinks, reading.gpus[0].has_c2c) == (None, None)


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, None) is None


def test_a_gpu_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = binding(ADDRESSES, {})

    def lost(gpu: int) -> Any:
        if gpu == 0:
            raise NvmlError("GPU is lost")
        return types.SimpleNamespace(busId=ADDRESSES[gpu])

    module.nvmlDeviceGetPciInfo = lost  # type: ignore[attr-defined]
    reading = read(monkeypatch, module)
    assert reading is not None
    assert [gpu.pci.address for gpu in reading.gpus] == ["0000:3d:00.0"]
    assert reading.links == ()


def test_a_reading_survives_json(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = read(monkeypatch, binding(ADDRESSES, {}))
    assert reading is not None
    assert NvmlReading.from_json(json.loads(json.dumps(reading.as_json()))) == reading


def test_addresses_in_the_spelling_of_sysfs() -> None:
    assert normal_address("00000000:1A:00.0") == "0000:1a:00.0"
    assert normal_address(b"00000008:01:00.0") == "0008:01:00.0"
    assert normal_address("00010000:01:00.0") == "10000:01:00.0"
