"""Problems of GPUs by NVML."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.checks import gpu_health
from jobs.fabric.description import Gpu as DescribedGpu
from jobs.fabric.description import GpuLink, PciDevice
from jobs.fabric.gpus import NvmlReading

NONE = NvmlReading()


class Gpu:
    """Answers of NVML for one GPU; None: not supported."""

    def __init__(self, uuid: str, **answers: Any) -> None:
        self.uuid, self.answers = uuid, answers


def nvml(*gpus: Gpu) -> Any:
    def answer(name: str) -> Any:
        def call(gpu: Gpu, *_: Any) -> Any:
            if gpu.answers.get(name) is None:
                raise RuntimeError("not supported")
            return gpu.answers[name]

        return call

    return SimpleNamespace(
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        NVML_ERROR_NO_PERMISSION=4,
        nvmlClocksThrottleReasonHwThermalSlowdown=0x40,
        nvmlClocksThrottleReasonSwPowerCap=0x4,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: gpus[index],
        nvmlDeviceGetUUID=lambda gpu: gpu.uuid,
        nvmlDeviceGetTotalEccErrors=answer("ecc"),
        nvmlDeviceGetRemappedRows=answer("rows"),
        nvmlDeviceGetRetiredPagesPendingStatus=answer("pages"),
        nvmlDeviceGetCurrentClocksThrottleReasons=answer("throttled"),
    )


@pytest.mark.parametrize(
    ("answers", "severity", "text"),
    [
        ({}, None, ""),
        ({"ecc": 0, "rows": (3, 0, 0, 0), "throttled": 0x4}, None, ""),
        ({"ecc": 1}, "warning", "1 uncorrected memory error (ECC)"),
        ({"ecc": 2}, "error", "2 uncorrected memory errors"),
        ({"rows": (0, 1, 1, 0)}, "warning", "replaced at the next reset"),
        ({"rows": (0, 9, 1, 1)}, "error", "could not be replaced"),
        ({"pages": 1}, "warning", "retired at the next reset"),
        ({"throttled": 0x44}, "warning", "thermal slowdown of the hardware"),
    ],
)
def test_each_problem_and_none_where_a_value_is_absent(
    answers: dict[str, Any], severity: str | None, text: str
) -> None:
    found = gpu_health.collect(nvml(Gpu("GPU-a"), Gpu("GPU-b", **answers)), None, NONE)
    assert found["gpus"] == 2
    assert [each["severity"] for each in found["problems"]] == ([severity] if severity else [])
    assert all(
        each["message"].startswith("GPU 1: ") and text in each["message"] for each in found["problems"]
    )


def test_only_gpus_of_the_job_count() -> None:
    api = nvml(Gpu("GPU-a", ecc=1), Gpu("GPU-b"))
    found = gpu_health.collect(api, "1", NONE)
    assert (found["gpus"], found["problems"]) == (1, [])
    assert gpu_health.collect(api, "GPU-a", NONE)["problems"]


def test_inactive_nvlinks_are_a_warning_of_the_gpus_of_the_job() -> None:
    api = nvml(Gpu("GPU-a"), Gpu("GPU-b"), Gpu("GPU-c"))
    gpus = [
        DescribedGpu(PciDevice(name), uuid=f"GPU-{name}", nvlinks_active=active, nvlinks=18)
        for name, active in (("a", 17), ("b", 18), ("c", 0))
    ]
    links = (GpuLink("a", "b", "NV17"), GpuLink("b", "c", "SYS"))
    reading = NvmlReading("550", tuple(gpus), links)
    (found,) = gpu_health.collect(api, None, reading)["problems"]
    assert (found["severity"], found["message"]) == ("warning", "GPU 0: 17 of 18 NVLinks are active")
    assert gpu_health.collect(api, "0", reading)["problems"] == [found], "also beside GPUs of other jobs"
    part = gpu_health.collect(api, "1,2", reading)
    assert part["problems"] == []
    turned = NvmlReading.from_json(gpu_health.collect(api, "2,1", reading)["reading"])
    assert turned is not None
    assert [gpu.uuid for gpu in turned.gpus] == ["GPU-c", "GPU-b"], "the order of CUDA_VISIBLE_DEVICES"
    assert NvmlReading.from_json(part["reading"]) == NvmlReading(
        "550",
        tuple(replace(gpu, pci=PciDevice(gpu.pci.address, (gpu.pci.address,))) for gpu in gpus[1:]),
        links[1:],
    )


def test_a_lost_gpu_is_a_problem() -> None:
    api = nvml(Gpu("GPU-a"))

    def lost(index: int) -> None:
        raise RuntimeError("GPU is lost")

    api.nvmlDeviceGetHandleByIndex = lost
    found = gpu_health.collect(api, None, NONE)
    assert found["gpus"] == 0
    (problem,) = found["problems"]
    assert (problem["message"], problem["severity"]) == ("GPU 0: GPU is lost", "warning")


def test_gpus_of_other_jobs_on_the_node_are_left_out() -> None:
    class Refused(Exception):
        value = 4

    api = nvml(Gpu("GPU-a"), Gpu("GPU-b"))

    def handle(index: int) -> Gpu:
        if index == 0:
            raise Refused("insufficient permissions")
        return Gpu("GPU-b")

    api.nvmlDeviceGetHandleByIndex = handle
    found = gpu_health.collect(api, None, NONE)
    assert (found["gpus"], found["problems"]) == (1, [])
