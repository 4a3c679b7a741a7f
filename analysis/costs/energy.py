"""Energy and carbon of training, where the power of GPUs was measured.

The energy is that of the GPUs alone: hosts, network and cooling are not measured. With P the mean power
of one GPU over the measured steps, D the GPUs and X the throughput in samples/s,

    energy per sample e = P D / X                            (J)
    carbon per sample   = e / 3.6e6 x grid intensity         (g; intensity in g CO2 per kWh)
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.stats.estimates import Estimate, geometric_mean
from disttrain.records.hardware import GpuSummary
from disttrain.records.metrics import Metrics

J_PER_KWH = 3.6e6


def joules_per_sample(metrics: Metrics) -> float | None:
    """Energy of all GPUs per sample of the measured steps of one run; None where it was not measured."""
    gpu, rate = metrics.gpu, metrics.samples_per_s
    if gpu is None or not rate:
        return None
    watts = _watts(gpu)
    return None if watts is None else watts * gpu.gpus / rate


def mean_watts(runs: Sequence[Metrics | None]) -> float | None:
    """Mean power of one GPU over repeats; None if a repeat has none."""
    powers = [device_watts(metrics) for metrics in runs]
    known = [power for power in powers if power is not None]
    return sum(known) / len(known) if known and len(known) == len(powers) else None


def device_watts(metrics: Metrics | None) -> float | None:
    """Power of one GPU in watts over the measured steps of one run; None where it was not measured."""
    return None if metrics is None or metrics.gpu is None else _watts(metrics.gpu)


def _watts(gpu: GpuSummary) -> float | None:
    """Power of one GPU: by the energy counters where they exist, else the mean of the power samples."""
    if gpu.energy_j is not None and gpu.sampled_s > 0:
        return gpu.energy_j / gpu.sampled_s / gpu.gpus
    return gpu.power_mean_w


def energy_per_sample(runs: Sequence[Metrics]) -> Estimate | None:
    """Geometric mean of `joules_per_sample` over repeats; None if a repeat has none."""
    found = [joules_per_sample(metrics) for metrics in runs]
    measured = [value for value in found if value]
    return geometric_mean(measured) if measured and len(measured) == len(found) else None


def grams_per_sample(energy: Estimate, grid_g_per_kwh: float) -> Estimate:
    """Carbon dioxide per sample in grams; `energy` in joules per sample."""
    return energy.scaled(grid_g_per_kwh / J_PER_KWH)
