"""Peak arithmetic rates of devices, for model FLOPs utilization. Imports without torch.

All rates are dense, in TFLOP/s, with float32 accumulation, per device as torch counts devices (one die of an
MI250X). A rate on which sources disagree is left out: without a peak there is no MFU, with a wrong peak a
wrong one. Names match only as a whole, so that a PCIe card, a MIG slice or a later variant does not get the
peak of a device with a similar name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a device in TFLOP/s by dtype, with their source."""

    names: tuple[str, ...]
    """Device names as drivers report them, without the prefix "NVIDIA" or "Tesla"."""
    tflops: Mapping[str, float]
    source: str


_HOPPER_SXM = {"float32": 66.9, "tf32": 494.7, "bfloat16": 989.4, "float16": 989.4, "float8": 1978.9}
_HOPPER_NVL = {"float32": 60.0, "tf32": 417.5, "bfloat16": 835.5, "float16": 835.5, "float8": 1670.5}

TABLE = (
    Peaks(
        ("V100-SXM2-16GB", "V100-SXM2-32GB"),
        {"float32": 15.7, "float16": 125.0},
        "NVIDIA V100 datasheet (January 2020), SXM2",
    ),
    Peaks(
        ("V100-PCIE-16GB", "V100-PCIE-32GB"),
        {"float32": 14.0, "float16": 112.0},
        "NVIDIA V100 datasheet (January 2020), PCIe",
    ),
    Peaks(
        ("V100S-PCIE-32GB",),
        {"float32": 16.4, "float16": 130.0},
        "NVIDIA V100 datasheet (January 2020), V100S",
    ),
    Peaks(("T4",), {"float32": 8.1, "float16": 65.0}, "NVIDIA T4 datasheet (March 2019)"),
    Peaks(
        (
            "A100-SXM4-40GB",
            "A100-SXM4-80GB",
            "A100-PCIE-40GB",
            "A100 80GB PCIe",
            "A100-PCIE-80GB",
        ),
        {"float32": 19.5, "tf32": 156.0, "bfloat16": 312.0, "float16": 312.0},
        "NVIDIA A100 datasheet (June 2021), SXM and PCIe alike",
    ),
    Peaks(
        ("A30",),
        {"float32": 10.3, "tf32": 82.0, "bfloat16": 165.0, "float16": 165.0},
        "NVIDIA A30 datasheet (March 2022)",
    ),
    Peaks(
        ("A40",),
        {"float32": 37.4, "tf32": 74.8, "bfloat16": 149.7, "float16": 149.7},
        "NVIDIA A40 datasheet (2021)",
    ),
    Peaks(
        ("A10",),
        {"float32": 31.2, "tf32": 62.5, "bfloat16": 125.0, "float16": 125.0},
        "NVIDIA A10 datasheet (March 2022)",
    ),
    Peaks(
        ("A10G",),
        {"float32": 35.0, "tf32": 35.0, "bfloat16": 70.0, "float16": 70.0},
        "NVIDIA A10G datasheet (February 2022, for AWS)",
    ),
    Peaks(
        ("L4",),
        {"float32": 30.3, "tf32": 60.0, "bfloat16": 121.0, "float16": 121.0, "float8": 242.5},
        "NVIDIA L4 datasheet (March 2023), half of its sparse figures",
    ),
    Peaks(
        ("L40",),
        {"float32": 90.5, "tf32": 90.5, "bfloat16": 181.0, "float16": 181.0, "float8": 362.0},
        "NVIDIA L40 datasheet (2023)",
    ),
    Peaks(
        ("L40S",),
        {"float32": 91.6, "tf32": 183.0, "bfloat16": 362.05, "float16": 362.05, "float8": 733.0},
        "NVIDIA L40S datasheet (2023)",
    ),
    Peaks(
        ("H100 80GB HBM3",),
        _HOPPER_SXM,
        "NVIDIA H100 Tensor Core GPU Architecture whitepaper, H100 SXM5",
    ),
    Peaks(
        ("H100 PCIe",),
        {"float32": 51.2, "tf32": 378.0, "bfloat16": 756.0, "float16": 756.0, "float8": 1513.0},
        "NVIDIA H100 datasheet (2022), H100 PCIe, half of its sparse figures",
    ),
    Peaks(
        ("H100 NVL",),
        _HOPPER_NVL,
        "NVIDIA H100 datasheet (2024), H100 NVL, half of its sparse figures",
    ),
    Peaks(
        ("H200",),
        _HOPPER_SXM,
        "NVIDIA H200 datasheet (2024), H200 SXM, half of its sparse figures: the GPU of the H100 SXM5",
    ),
    Peaks(
        ("H200 NVL",),
        _HOPPER_NVL,
        "NVIDIA H200 datasheet (2024), H200 NVL, half of its sparse figures",
    ),
    Peaks(
        ("GH200 480GB", "GH200 120GB"),
        _HOPPER_SXM,
        "NVIDIA GH200 datasheet (2023), half of its sparse figures: the GPU of the H100 SXM5",
    ),
    Peaks(  # float32: the datasheet and the architecture brief differ
        ("B200",),
        {"tf32": 1100.0, "bfloat16": 2250.0, "float16": 2250.0, "float8": 4500.0},
        "NVIDIA Blackwell Architecture Technical Brief, HGX B200 at 1,000 W",
    ),
    Peaks(  # float32: as above
        ("GB200",),
        {"tf32": 1250.0, "bfloat16": 2500.0, "float16": 2500.0, "float8": 5000.0},
        "NVIDIA Blackwell Architecture Technical Brief, GB200 at 1,200 W, one of its two GPUs",
    ),
    Peaks(
        ("GeForce RTX 3090",),
        {"float32": 35.6, "tf32": 35.6, "bfloat16": 71.0, "float16": 71.0},
        "NVIDIA Ampere GA102 whitepaper, appendix A; float16 with float32 accumulation",
    ),
    Peaks(
        ("GeForce RTX 4090",),
        {"float32": 82.6, "tf32": 82.6, "bfloat16": 165.2, "float16": 165.2, "float8": 330.3},
        "NVIDIA Ada whitepaper, appendix A; float16 and float8 with float32 accumulation",
    ),
    Peaks(
        ("AMD Instinct MI250X",),
        {"float32": 47.85, "bfloat16": 191.5, "float16": 191.5},
        "AMD Instinct MI250X datasheet, matrix rates, one of its two dies",
    ),
    Peaks(
        ("AMD Instinct MI300X",),
        {"float32": 163.4, "tf32": 653.7, "bfloat16": 1307.4, "float16": 1307.4, "float8": 2614.9},
        "AMD Instinct MI300X datasheet, matrix rates",
    ),
)


def find(device: str) -> Peaks | None:
    """The peaks of the device with this name; None if it is not in the table."""
    return _BY_NAME.get(_plain(device))


def combined(peaks: Peaks, flops: Mapping[str, int], dtypes: Mapping[str, str]) -> tuple[float | None, str]:
    """(peak FLOP/s, "") on this mix of work, or (None, reason).

    `flops` is the work by kind, `dtypes` the dtype of each kind. Where dtypes differ, the peak is the
    harmonic mean of their peaks, weighted by the work.
    """
    seconds = 0.0
    for kind, work in flops.items():
        rate = peaks.tflops.get(dtypes[kind])
        if rate is None:
            return None, f"no {dtypes[kind]} peak is known for {peaks.names[0]} ({kind})"
        seconds += work / (rate * 1e12)
    return sum(flops.values()) / seconds, ""


def _plain(name: str) -> str:
    words = name.casefold().split()
    while words and words[0] in ("nvidia", "tesla"):
        words = words[1:]
    return " ".join(words)


_BY_NAME = {_plain(name): peaks for peaks in TABLE for name in peaks.names}
