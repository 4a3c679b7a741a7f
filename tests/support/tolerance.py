"""How far results of floating-point kernels may lie apart.

The same kernels on the same shapes, ranks and threads give the same bits: compare them with `==` or
`torch.equal` (a resumed run, a saved and loaded model). Another kernel, shape, vector width, number of
threads or of ranks adds the same terms in another order, and a fused multiply-add leaves out a rounding.
Such results may differ by UNITS units in the last place for each sum that they went through, one after
another.

The reason: n additions, each rounded by at most half a unit of random sign, err by about sqrt(n) / 2 units of
the sum of absolute values (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis").
Sums in the tests have up to about 1,000 terms: 16 units.

A matrix product, a norm or a softmax is a sum. A layer of a model counts as one forward and one backward. A
loss counts as one however deep the model is, since it averages the errors of many values; that of step k
counts as k, since the steps before it changed the weights. In half precision, a reduction over ranks counts
as one for each rank, and a whole model under autocast as one: its weights and sums are in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

UNITS = {torch.float64: 16, torch.float32: 16, torch.bfloat16: 1, torch.float16: 1}
"""Kernels add products of half precision in float32 and round the sum once, by half a unit to either side."""
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""By `precision.dtype`."""


def tolerance(sums: int = 1, dtype: torch.dtype = torch.float32, magnitude: float = 1.0) -> float:
    """Largest difference between two results of one computation.

    Args:
        sums: the sums that each result went through, one after another.
        dtype: the type of the operands of these sums; under autocast, that of autocast.
        magnitude: the sum of the absolute values of the terms, or the largest result among many. With 1, the
            difference is relative to the result.
    """
    return UNITS[dtype] * sums * torch.finfo(dtype).eps * magnitude


def approx_losses(expected: Sequence[float], first_step: int = 1, sums: int = 1) -> list[Any]:
    """Right side of `==` for losses of consecutive steps in float32; that of step k counts as `sums * k`."""
    return [pytest.approx(loss, rel=tolerance(sums * step)) for step, loss in enumerate(expected, first_step)]


def assert_close(
    found: Any, expected: Any, sums: int = 1, dtype: torch.dtype | None = None, magnitude: float | None = None
) -> None:
    """Compare tensors, or sequences or mappings of them. Arguments are those of `tolerance`; unless given,
    `dtype` is the type and `magnitude` the largest absolute value of each expected tensor."""
    if isinstance(expected, Tensor):
        atol = 0.0
        if expected.is_floating_point():
            largest = expected.abs().max().item() if magnitude is None else magnitude
            atol = tolerance(sums, dtype or expected.dtype, largest)
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
        return
    assert len(found) == len(expected)
    for key in expected if isinstance(expected, Mapping) else range(len(expected)):
        assert_close(found[key], expected[key], sums, dtype, magnitude)
