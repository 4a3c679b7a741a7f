"""Numerical precision of a training step: dtype of the compute, loss scaling, and steps that are skipped.

Parameters, their gradients and the optimizer's state keep the dtype that the model was built with (float32
for the built-in models). Autocast computes matrix products and convolutions in a lower precision and keeps
sensitive operators, such as norms and losses, in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from disttrain.config.sections.compute import PRECISIONS, PrecisionConfig
from disttrain.models.hooks import ModelHooks
from disttrain.runtime.device import choose_precision, use_tf32

_CPU = torch.device("cpu")
_LARGEST_SCALE = 2.0**126
"""A larger loss scale has a reciprocal that float32 holds with fewer bits, and then becomes infinite."""


class LossScale:
    """A dynamic loss scale, which keeps small float16 gradients from becoming zero.

    The scale halves after a skipped step and doubles after `growth_interval` steps in a row without one
    (Micikevicius et al. 2018, arXiv 1710.03740; the defaults of `torch.amp.GradScaler`), up to 2**126. It
    stays on the device, so that no step waits for it.
    """

    def __init__(self, device: torch.device, initial: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.value = torch.tensor(initial, device=device)
        self.clean_steps = torch.zeros((), dtype=torch.int64, device=device)
        """Steps since the last skipped step or the last change of the scale."""
        self.growth_interval = growth_interval

    def update(self, skipped: Tensor) -> None:
        """Adapt the scale after a step; `skipped` is a boolean scalar."""
        clean = (self.clean_steps + 1) * ~skipped
        grows = clean >= self.growth_interval
        self.value *= torch.where(skipped, 0.5, 1.0 + grows)
        self.value.clamp_(max=_LARGEST_SCALE)
        self.clean_steps = clean * ~grows


@dataclass(eq=False)
class Precision:
    """The precision of one run. The default computes in the parameters' own dtype and checks nothing."""

    device: torch.device = _CPU
    autocast_dtype: torch.dtype | None = None
    """Dtype of autocast; None: no autocast."""
    checks_gradients: bool = False
    """Whether a step is skipped if the norm of its gradients is not finite."""
    loss_scale: LossScale | None = None
    """The scale of float16; it requires `checks_gradients`."""

    def autocast(self) -> AbstractContextManager[None]:
        """Context of every forward pass, in training and validation."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast_dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """`loss`, a scalar, times the loss scale."""
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    def unscaled(self, loss: Tensor) -> Tensor:
        """`loss`, a scalar, divided by the loss scale."""
        return loss if self.loss_scale is None else loss / self.loss_scale.value

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of `loss`, a scalar, times the loss scale."""
        self.scaled(loss).backward()

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the loss scale. Clipping follows."""
        if self.loss_scale is not None:
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                factor = (1 / self.loss_scale.value).to(gradients[0].device)  # they may be in host memory
                torch._foreach_mul_(gradients, factor)

    def step(self, optimizer: torch.optim.Optimizer, grad_norm: Tensor | None) -> Tensor | None:
        """Update the parameters, unless the global `grad_norm` is not finite.

        Returns whether the update was skipped, a boolean scalar on the device; None without a check. All
        ranks have the same norm, so all of them skip the same steps without communication.
        """
        if not self.checks_gradients or grad_norm is None:
            optimizer.step()
            return None
        skipped = ~grad_norm.isfinite()
        step_unless(skipped, optimizer)
        if self.loss_scale is not None:
            self.loss_scale.update(skipped)
        return skipped

    def state_dict(self) -> dict[str, Tensor]:
        """The loss scale, equal on all ranks, named from `precision.` on."""
        scale = self.loss_scale
        if scale is None:
            return {}
        return {"precision.loss_scale": scale.value, "precision.clean_steps": scale.clean_steps}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up the loss scale of a checkpoint; one of another precision has none."""
        if self.loss_scale is not None and "precision.loss_scale" in state:
            self.loss_scale.value.copy_(state["precision.loss_scale"])
            self.loss_scale.clean_steps.copy_(state["precision.clean_steps"])


def build_precision(
    config: PrecisionConfig, device: torch.device, hooks: ModelHooks
) -> tuple[Precision, dict[str, str]]:
    """The precision of `config` on `device`, and its name and reason as fields of `Metrics`.

    Sets torch's use of TF32, which is global. Raises `ConfigError` for a precision that the device does not
    have.
    """
    name, reason = choose_precision(config.dtype, device)
    if device.type == "cuda":
        use_tf32(name != "fp32")  # under autocast, for the operators that stay in float32
    scheme = PRECISIONS[name]
    precision = Precision(
        device,
        autocast_dtype=getattr(torch, scheme.autocast) if scheme.autocast else None,
        checks_gradients=config.on_non_finite != "ignore" and hooks.has_real_gradients,
        loss_scale=LossScale(device) if scheme.loss_scale else None,
    )
    return precision, {"precision": name, "precision_reason": reason}


def step_unless(skipped: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Run `optimizer.step()` unless `skipped`, a boolean scalar on the device.

    Fused optimizers read the condition on the device, as for `torch.amp.GradScaler`. For others the host
    waits for the device.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        if not skipped:
            optimizer.step()
        return
    # torch copies it to parameters in host memory without waiting for the copy
    updated = optimizer.param_groups[0]["params"][0].device
    optimizer.found_inf = skipped.float().to(updated)  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.found_inf  # type: ignore[attr-defined]


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
