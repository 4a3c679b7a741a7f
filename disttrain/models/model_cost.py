"""Parameters and FLOPs of a model, and the peak of its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from disttrain.data.source import Source
from disttrain.models.counting import METHOD, flops_per_sample
from disttrain.models.mfu import Peak, peak_of
from disttrain.runtime.device import device_name


@dataclass(frozen=True)
class ModelCost:
    """Counted on the whole model, before a transform or a strategy changes it."""

    parameters: int
    flops_per_sample: int | None
    peak: Peak

    def metrics_fields(self) -> dict[str, Any]:
        """Parameters, FLOPs and peak as fields of `Metrics`."""
        return {
            "parameters": self.parameters,
            "model_flops_per_sample": self.flops_per_sample,
            "flops_method": METHOD if self.flops_per_sample else None,
            "compute_dtypes": self.peak.dtypes,
            "peak_flops": self.peak.flops_per_s,
            "peak_source": self.peak.source,
        }


def count_cost(
    model: nn.Module, source: Source, device: torch.device, autocast_dtype: torch.dtype | None = None
) -> ModelCost:
    """Count a model that will run on `device`; its state stays as it is, the random numbers do not.

    The model is on `device`, or on the meta device, where a forward pass computes shapes only.
    `autocast_dtype` is the dtype of its training steps under autocast; None: without autocast."""
    placed = next((parameter.device for parameter in model.parameters()), device)
    flops = flops_per_sample(model, source.train, placed)
    return ModelCost(
        parameters=sum(p.numel() for p in model.parameters()),
        flops_per_sample=sum(flops.values()) or None,
        peak=peak_of(device_name(device), model, flops, device, autocast_dtype),
    )
