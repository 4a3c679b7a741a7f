"""Bytes of the state that a scheme of gradient communication keeps from step to step on a rank."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from disttrain.config.sections.gradient_communication import GradientCommunicationConfig
from disttrain.parallel.gradient_communication.powersgd import is_compressed

_FLOAT32_BYTES = 4
"""`powersgd` computes in float32, whatever the dtype of the gradients."""


def state_bytes(options: GradientCommunicationConfig, parameters: Iterable[Tensor]) -> int:
    """Bytes of the errors, and with `powersgd` of the right factors, once all gradients have been averaged.

    Without `warm_start`, the factors of one bucket alone exist at a time; they do not count.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if options.scheme in ("topk", "randomk"):
        return sum(parameter.nbytes for parameter in trained) if options.error_feedback else 0
    if options.scheme != "powersgd":
        return 0
    rank = options.rank if options.warm_start else 0
    factors = sum(rank * math.prod(p.shape[1:]) for p in trained if is_compressed(p.shape, options.rank))
    return _FLOAT32_BYTES * (sum(parameter.numel() for parameter in trained) + factors)
