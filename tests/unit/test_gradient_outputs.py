"""Where gradients begin is found in whatever a model returns."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from disttrain.engine.exposed_comm import grad_tensors

GRAD, PLAIN = torch.ones(2, requires_grad=True), torch.ones(2)
Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Output:
    loss: object
    logits: object


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (GRAD, 1),
        (PLAIN, 0),
        (None, 0),
        ((PLAIN, [GRAD, {"a": GRAD}]), 2),
        (Pair(GRAD, None), 1),
        (UserDict(loss=GRAD, name="x"), 1),
        (Output(GRAD, (PLAIN, Output(GRAD, GRAD))), 3),
        (Output, 0),
        (object(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_tensor_that_requires_a_gradient_is_found(output, count):
    found = list(grad_tensors(output))
    assert len(found) == count
    assert all(tensor is GRAD for tensor in found)
