"""Compilation of blocks or of the whole model: same names, same numbers, no compilation after the first pass.

In all tests but one, `aot_eager` and `eager` stand for inductor, which compiles for half a minute.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import metrics

from disttrain.config.sections.compute import CompileConfig
from disttrain.errors import ConfigError
from disttrain.models.gpt import GPT
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.runtime.kernels import attention_kernel
from disttrain.transforms.activations import checkpoint_activations
from disttrain.transforms.compilation import compile_model, compiling
from tests.support.tolerance import approx_losses, assert_close

TOKENS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8):
        yield
    torch.set_num_threads(threads)


def a_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(64, 3, 32, 2, 64, 0.0, True)


def trained(model: nn.Module, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients by name of one pass."""
    loss = model(inputs).logsumexp(-1).mean()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.detach(), found


def validated(model: nn.Module, inputs: Tensor) -> None:
    model.eval()
    with torch.inference_mode():
        model(inputs)
    model.train()


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize("scope", ["blocks", "model"])
def test_names_and_gradients_stay_and_only_the_first_pass_compiles(scope: str) -> None:
    plain, model = a_gpt(), a_gpt()
    names = list(model.state_dict())
    options = CompileConfig(scope=scope, backend="aot_eager", fullgraph=True)
    assert compile_model(model, options) is model
    loss, gradients = trained(model, TOKENS)
    expected_loss, expected = trained(plain, TOKENS)
    assert list(model.state_dict()) == names == list(plain.state_dict())
    assert_close((loss, gradients), (expected_loss, expected), sums=6)  # three layers forward and backward
    assert graphs() == 1, "blocks of equal shapes share a graph"
    validated(model, TOKENS)
    compiled = graphs()
    for _ in range(2):
        trained(model, TOKENS)
        validated(model, TOKENS)
    assert graphs() == compiled


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_blocks_share_a_graph_too(mode: str) -> None:
    plain, model = a_gpt(), checkpoint_activations(a_gpt(), mode)
    compile_model(model, CompileConfig(scope="blocks", backend="aot_eager", fullgraph=True))
    found, expected = trained(model, TOKENS), trained(plain, TOKENS)
    assert_close(found, expected, sums=6)
    assert graphs() == 1


def test_running_statistics_of_a_recomputed_compiled_block_are_updated_once() -> None:
    torch.manual_seed(0)
    plain = ResNet(BasicBlock, (1, 1, 1, 1), 3, True, 10, 4)
    model = checkpoint_activations(copy.deepcopy(plain), "full")
    compile_model(model, CompileConfig(scope="blocks", backend="aot_eager"))
    for each in (plain, model):
        trained(each, torch.ones(2, 3, 8, 8))
    assert_close(dict(model.named_buffers()), dict(plain.named_buffers()), sums=9)  # convolutions


class Widths(nn.Module):
    """Ten blocks of one class, each of another shape: more than the graphs that PyTorch keeps by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(n, n + 1)) for n in range(4, 14))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_each_shape_of_a_block_gets_a_graph_for_training_and_one_for_validation() -> None:
    model = compile_model(Widths(), CompileConfig(scope="blocks", backend="eager"))
    trained(model, torch.ones(2, 4))
    assert graphs() == 10
    validated(model, torch.ones(2, 4))
    assert graphs() == 20


@pytest.mark.parametrize(("dynamic", "expected"), [(False, [1, 2, 3]), (True, [1, 1, 1]), (None, [1, 2, 2])])
def test_dynamic_decides_how_many_shapes_a_graph_serves(dynamic: bool | None, expected: list[int]) -> None:
    """Null: PyTorch makes a graph for all sizes once it has met a second one."""
    options = CompileConfig(scope="model", backend="eager", dynamic=dynamic)
    model = compile_model(nn.Linear(4, 4), options)
    found = []
    for samples in (2, 3, 5):
        trained(model, torch.ones(samples, 4))
        found.append(graphs())
    assert found == expected


def losses(model: nn.Module, steps: int) -> list[float]:
    """The loss before each of some optimizer steps on the same tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        loss = F.cross_entropy(model(TOKENS).flatten(0, -2), TOKENS.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.slow  # compiles C++
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_generates_kernels_that_train_as_the_plain_model() -> None:
    model = compile_model(a_gpt(), CompileConfig(scope="blocks", backend="inductor"))
    before = metrics.generated_kernel_count
    found = losses(model, 6)
    assert metrics.generated_kernel_count > before
    assert found == approx_losses(losses(a_gpt(), 6))
    assert found[-1] < found[0]


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.layer(x)


def test_a_model_that_is_not_one_graph_is_refused_in_one_line() -> None:
    options = CompileConfig(scope="model", backend="eager", fullgraph=True)
    model = compile_model(Breaking(), options)
    with pytest.raises(ConfigError, match=r"graph_break.*use compile.fullgraph=false$"), compiling(options):
        model(torch.ones(1, 2))


class Attending(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def test_a_call_that_the_attention_kernel_refuses_names_its_key() -> None:
    """The flash kernel of the CPU has no dropout."""
    options = CompileConfig(scope="model", backend="eager")
    model = compile_model(Attending(), options)
    message = r"cannot be compiled \(.*; use compile.scope=none or train.attention=auto$"
    with (
        pytest.raises(ConfigError, match=message),
        attention_kernel("flash"),
        compiling(options, "flash"),
    ):
        model(torch.ones(1, 1, 4, 4))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Linear has no blocks; use compile.scope=model"):
        compile_model(nn.Linear(2, 2), CompileConfig(scope="blocks", backend="eager"))
