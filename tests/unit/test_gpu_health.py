"""GPUs by NVML: their links, their health, and which of them are those of the job."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from jobs.checks import gpu_health
from jobs.checks.gpu_health import NodeGpus, read_node_gpus
from jobs.fabric.gpus import NvmlReading, normal_address, read_nvml

NOT_PERMITTED, LOST = 4, 15
"""`NVML_ERROR_NO_PERMISSION`, `NVML_ERROR_GPU_IS_LOST`"""
ADDRESSES = ("00000000:1A:00.0", "00000001:1A:00.0", "00000002:1A:00.0")
Links = Sequence[tuple[int, str]]
"""Of each link the kind of the other end and its address, which is empty for an inactive link."""
Install = Callable[..., Any]


def gpu(links: Links = (), refused: int | None = None, **answers: Any) -> dict[str, Any]:
    """A GPU of `tests.support.nvml`; it refuses calls without an answer, or with `refused` its handle."""
    calls = {
        "Name": "NVIDIA H100",
        "MemoryInfo": {"total": 80 << 30},
        "CudaComputeCapability": (9, 0),
    } | answers
    for number, (kind, address) in enumerate(links):
        calls |= {f"NvLinkState {number}": int(bool(address)), f"NvLinkRemoteDeviceType {number}": kind}
        calls[f"NvLinkRemotePciInfo {number}"] = {"busId": address}
    return {"calls": calls} | ({} if refused is None else {"refused": refused})


@pytest.fixture
def nvml(replay: Install) -> Install:
    """`nvml(*gpus, level=50)`: put these GPUs in the place of `pynvml`, with one topology of all pairs."""

    def install(*gpus: dict[str, Any], level: int = 50) -> Any:
        session: dict[str, Any] = {"driver": "550.54.15", "gpus": {}}
        for number, each in enumerate(gpus):
            calls = {"UUID": f"GPU-{number}", "PciInfo": {"busId": ADDRESSES[number]}} | each["calls"]
            for other in range(len(gpus)):
                calls |= {f"TopologyCommonAncestor GPU-{other}": level, f"P2PStatus GPU-{other} 0": 0}
            calls = {f"nvmlDeviceGet{name}": [answer] for name, answer in calls.items()}
            session["gpus"][f"GPU-{number}"] = {**each, "pci_bus_id": ADDRESSES[number], "calls": calls}
        return replay(lambda recorded: (recorded.clear(), recorded.update(session)))

    return install


SWITCH = (2, "00000000:C5:00.0")


@pytest.mark.parametrize(
    ("first", "second", "level", "path", "nvlinks", "is_behind_nvswitch"),
    [
        ([SWITCH] * 18, [SWITCH] * 17 + [(2, "")], 50, "NV17", [(18, 18), (17, 18)], True),
        ([(0, ADDRESSES[1])] * 4, [(0, ADDRESSES[0])] * 4, 50, "NV4", [(4, 4)] * 2, False),
        ([], [], 10, "PIX", [(None, None)] * 2, None),
        ([], [], 30, "PHB", [(None, None)] * 2, None),
        ([], [], 40, "NODE", [(None, None)] * 2, None),
        ([], [], 77, "SYS", [(None, None)] * 2, None),
    ],
)
def test_links_of_two_gpus(first, second, level, path, nvlinks, is_behind_nvswitch, nvml):
    nvml(gpu(first), gpu(second), level=level)
    reading = read_nvml()
    assert reading is not None
    assert [(each.first, each.second, each.path, each.is_p2p) for each in reading.links] == [
        ("0000:1a:00.0", "0001:1a:00.0", path, True)
    ]
    assert [(gpu.nvlinks_active, gpu.nvlinks) for gpu in reading.gpus] == nvlinks
    assert {gpu.is_behind_nvswitch for gpu in reading.gpus} == {is_behind_nvswitch}
    assert (reading.driver, reading.gpus[0].memory_bytes, reading.gpus[0].has_c2c) == (
        "550.54.15", 80 << 30, None,
    )  # fmt: skip
    assert NvmlReading.from_json(json.loads(json.dumps(reading.as_json()))) == reading


@pytest.mark.parametrize("lost", [gpu(refused=NOT_PERMITTED), gpu(PciInfo={"error": LOST})])
def test_a_gpu_that_is_refused_or_lost_is_left_out(lost, nvml):
    nvml(lost, gpu())
    reading = read_nvml()
    assert reading is not None
    assert ([gpu.uuid for gpu in reading.gpus], reading.links) == (["GPU-1"], ())


def test_without_a_driver_there_is_no_reading(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml() is None
    assert read_node_gpus(tmp_path) == NodeGpus(0)


def test_a_driver_that_gives_no_answer_is_a_problem(tmp_path, monkeypatch):
    """The process that asks NVML ends with an error, for want of the binding."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    (tmp_path / "pynvml.py").write_text("raise ImportError('no library')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = read_node_gpus(tmp_path)
    assert (found.count, [problem["severity"] for problem in found.problems]) == (None, ["warning"])


def test_addresses_in_the_spelling_of_sysfs():
    assert normal_address(b"00000008:01:00.0") == "0008:01:00.0"
    assert normal_address("00010000:01:00.0") == "10000:01:00.0"


def health(api: Any, visible: str | None = None) -> dict[str, Any]:
    reading = read_nvml()
    assert reading is not None
    return gpu_health.collect(api, visible, reading)


@pytest.mark.parametrize(
    ("answers", "severity", "text"),
    [
        ({}, None, ""),
        ({"RemappedRows": (3, 0, 0, 0), "CurrentClocksThrottleReasons": 0x4}, None, ""),
        ({"TotalEccErrors 1 0": 1}, "warning", "1 uncorrected memory error (ECC)"),
        ({"TotalEccErrors 1 0": 2}, "error", "2 uncorrected memory errors"),
        ({"RemappedRows": (0, 1, 1, 0)}, "warning", "replaced at the next reset"),
        ({"RemappedRows": (0, 9, 1, 1)}, "error", "could not be replaced"),
        ({"RetiredPagesPendingStatus": 1}, "warning", "retired at the next reset"),
        ({"CurrentClocksThrottleReasons": 0x44}, "warning", "thermal slowdown of the hardware"),
        ({"refused": LOST}, "warning", "GPU is lost"),
        ({"refused": NOT_PERMITTED}, None, ""),  # a GPU of another job
    ],
)
def test_each_problem_and_none_where_a_value_is_absent(answers, severity, text, nvml):
    found = health(nvml(gpu(), gpu(**answers)))
    assert found["gpus"] == (1 if "refused" in answers else 2)
    assert [each["severity"] for each in found["problems"]] == ([severity] if severity else [])
    assert all(
        each["message"].startswith("GPU 1: ") and text in each["message"] for each in found["problems"]
    )


def test_only_gpus_of_the_job_count_in_its_order(nvml):
    """An inactive NVLink shows beside the GPUs of other jobs, too."""
    links = [SWITCH] * 18
    api = nvml(gpu([*links[1:], (2, "")]), gpu(links), gpu(links, **{"TotalEccErrors 1 0": 1}))

    def selected(visible: str | None) -> tuple[list[str], list[str]]:
        found = health(api, visible)
        messages = [each["message"].partition(" (")[0] for each in found["problems"]]
        assert found["gpus"] == len(found["reading"]["gpus"])
        return [gpu["uuid"] for gpu in found["reading"]["gpus"]], messages

    inactive, memory = "GPU 0: 17 of 18 NVLinks are active", "GPU 2: 1 uncorrected memory error"
    assert selected(None) == (["GPU-0", "GPU-1", "GPU-2"], [memory, inactive])
    assert selected("0") == (["GPU-0"], [inactive])
    assert selected("2, GPU-1,,9") == (["GPU-2", "GPU-1"], [memory])
    assert [each["path"] for each in health(api, "2,1")["reading"]["links"]] == ["NV18"]
