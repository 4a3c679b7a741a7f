"""Cross-entropy of a linear output layer without the logits of all tokens.

The logits of N tokens over V classes take N x V values, and their softmax and gradient as many again. Here
they exist for one chunk of tokens at a time. The gradients of the chunk follow at once, so that nothing is
computed twice. Beside these gradients, the peak is one chunk x V values in float32. Under bf16, they exist in
bfloat16 too for a moment: 6 bytes each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
"""Target of a token without a loss, as in `F.cross_entropy`."""


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, classes: int | None = None
) -> Tensor:
    """Mean cross-entropy of the logits `hidden @ weight.T`, a float32 scalar.

    hidden: (tokens, width); weight: (padded classes, width), of which the first `classes` count, by default
    all; targets: (tokens,) of class indices. The result and its
    gradients equal those of `F.cross_entropy`, up to the order of summation. Under autocast, products are
    computed in its dtype, and the softmax in float32.
    """
    classes = len(weight) if classes is None else classes
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, targets, chunk, classes)
    return loss


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, classes: int
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grads = None
        if any(ctx.needs_input_grad):
            # float32: half precision would lose the small terms of a long sum
            grads = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        for begin in range(0, len(hidden), chunk):
            rows = slice(begin, begin + chunk)
            part = grads and (grads[0][rows], grads[1])
            total += _loss_of_chunk(hidden[rows], weight, targets[rows], classes, part)
        count = (targets != IGNORED).sum()
        ctx.dtype = weight.dtype
        ctx.save_for_backward(*(grads or ()), count)
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_grad, weight_grad, count = ctx.saved_tensors
        scale = gradient / count
        of_hidden, of_weight = (hidden_grad * scale).to(ctx.dtype), (weight_grad * scale).to(ctx.dtype)
        return of_hidden, of_weight, None, None, None


def _loss_of_chunk(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    classes: int,
    grads: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The summed loss of a chunk of tokens. Of `grads`, its gradient by `hidden` is written to the first, and
    that by `weight` added to the second.

    The logits are freed at the return, before those of the next chunk exist.
    """
    kept = (targets != IGNORED).unsqueeze(1)
    target = targets.unsqueeze(1).clamp(min=0)
    logits = (hidden @ weight.T).float()
    logits[:, classes:] = -torch.inf
    chosen, greatest = logits.gather(1, target), logits.amax(1, keepdim=True)
    # in place: `logsumexp` would hold a second matrix of the size of the logits
    sums = logits.sub_(greatest).exp_().sum(1, keepdim=True)
    # The difference of large logits that are close is exact. That of an ignored row may be NaN.
    loss = torch.where(kept, sums.log() + (greatest - chosen), 0).sum()
    if grads is None:
        return loss
    # the gradient of the summed loss by the logits, softmax - one-hot
    logits.div_(sums)
    logits.scatter_add_(1, target, torch.full_like(target, -1, dtype=logits.dtype)).masked_fill_(~kept, 0)
    gradient = logits.to(weight.dtype)
    del logits
    hidden_grad, weight_grad = grads
    torch.mm(gradient, weight, out=hidden_grad)
    weight_grad += gradient.T @ hidden
    return loss
