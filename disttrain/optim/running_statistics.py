"""Running statistics of batch norm, which the forward passes of a skipped step must not change."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by the bytes of a number."""


class RunningStatistics:
    """The running means and variances of a model before each step.

    A batch with NaN would leave NaN in them for good: validation would be NaN, and no checkpoint could be
    committed.
    """

    def __init__(self, model: nn.Module) -> None:
        found = [
            value.view(_BITS[value.element_size()])
            for module in model.modules()
            if isinstance(module, _NormBase)
            for value in (module.running_mean, module.running_var)
            if value is not None
        ]
        self._now: list[Tensor] = found
        self._before = [torch.empty_like(value) for value in found]

    def keep(self) -> None:
        """Copy the statistics, before the first forward pass of a step."""
        if self._now:
            torch._foreach_copy_(self._before, self._now)

    def restore_if(self, skipped: Tensor) -> None:
        """Put the copies back if `skipped`, a boolean scalar on the device; the host does not wait.

        The numbers are selected as integers, because NaN x 0 is NaN.
        """
        if self._now:
            restored = torch._foreach_mul(self._before, skipped.to(self._now[0].dtype))
            torch._foreach_mul_(self._now, (~skipped).to(self._now[0].dtype))
            torch._foreach_add_(self._now, restored)
