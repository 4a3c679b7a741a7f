"""Figures that others report, of unknown conditions: shown beside measured ones, not compared with them."""

from __future__ import annotations

from typing import NamedTuple


class QuotedCommunication(NamedTuple):
    """One row of a table of gradient communication."""

    form: str
    """Its name in that table."""
    gb_per_s: float
    latency_ms: float
    speed_up: float
    """By latency."""


COMMUNICATION = {
    "baseline": QuotedCommunication("baseline", 12.3, 45.2, 1.0),
    "topk": QuotedCommunication("compression", 118.5, 4.7, 9.6),
    "hierarchical": QuotedCommunication("hierarchical", 89.2, 12.1, 3.7),
    "large buckets": QuotedCommunication("bucketing", 34.1, 23.4, 1.9),
}
"""By the name of the form in `disttrain.comm_bench.ddp_steps.FORMS` that resembles it most."""


class QuotedScaling(NamedTuple):
    """One table of throughput against devices. A missing value is None."""

    source: str
    devices: tuple[int, ...]
    unit: str
    throughput: tuple[float | None, ...]
    efficiency_percent: tuple[float | None, ...]
    communication_percent: tuple[float | None, ...]
    """Share of the step."""
    note: str = ""
    """Further figures of the source."""


SCALING = (
    QuotedScaling(
        "training on 4x A10G, DDP",
        (1, 2, 4),
        "images/s",
        (408, None, None),
        (100, 95, 90),
        (None, None, 8),
        "imbalance 2 %, utilisation above 92 %, fp16 1.8x; bucketing: a third of the communication calls",
    ),
    QuotedScaling(
        "simulated MLP",
        (1, 2, 4, 8),
        "speed-up",
        (1.0, 1.8, 3.2, 5.5),
        (100, 90, 80, 69),
        (None, None, None, None),
        "communication 15 to 25 %, utilisation 85 to 90 %",
    ),
    QuotedScaling(
        "ResNet-50 class, DDP",
        (1, 2, 4, 8, 16, 32, 64),
        "images/s",
        (1150, 2250, 4370, 8510, 16240, 30720, 56320),
        (100, 98, 95, 93, 89, 84, 78),
        (0, 3.2, 6.8, 9.5, 12.3, 14.8, 18.2),
        "rates at 64 GPUs give 76.5 %; targets: over 85 % at 16, communication under 15 %, memory over 80 %",
    ),
    QuotedScaling("ResNet-50 class, FSDP", (128, 256), "images/s", (104960, 184320), (72, 63), (22.1, 28.5)),
    QuotedScaling(
        "language model above 1 B, FSDP",
        (8, 16, 32, 64),
        "tokens/s",
        (45000, 88000, 172000, 332000),
        (95, 92, 89, 86),
        (None, None, None, None),
        "24, 18, 14 and 11 GB of memory a GPU",
    ),
)


class QuotedStrategy(NamedTuple):
    name: str
    devices: int
    samples_per_s: float
    memory_gb: float


STRATEGIES = (
    QuotedStrategy("single", 1, 1200, 4.2),
    QuotedStrategy("DataParallel", 4, 4100, 16.8),
    QuotedStrategy("DDP", 4, 4300, 4.2),
    QuotedStrategy("DDP", 8, 8200, 4.2),
)


class QuotedPrecision(NamedTuple):
    name: str
    memory_gb: float
    speed_up: float


PRECISION = (
    QuotedPrecision("fp32", 8.4, 1.0),
    QuotedPrecision("fp16", 4.2, 1.8),
    QuotedPrecision("fp16 and accumulation", 2.1, 1.6),
)
BUCKETS = "ResNet-50 on 4x A100: about 18 % more throughput from bucket size and accumulation"
