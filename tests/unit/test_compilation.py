"""Compilation of blocks or of the whole model: same names, same numbers, no compilation after the first pass.

In all tests but one, `aot_eager` and `eager` stand for inductor, which compiles for half a minute.
"""

import copy
import shutil

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import metrics

from disttrain.config.sections.compute import CompileConfig
from disttrain.errors import ConfigError
from disttrain.models.gpt import GPT
from disttrain.models.resnet import BasicBlock, ResNet
from disttrain.records.dataset import DataShape
from disttrain.runtime.kernels import attention_kernel
from disttrain.transforms.activations import checkpoint_activations
from disttrain.transforms.compilation import compile_model, compiling
from tests.support.tolerance import assert_close

TOKENS = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()
    with torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8):
        yield


def a_gpt():
    torch.manual_seed(0)
    words = DataShape(task="language", shape=(16,), classes=64)
    return GPT(words, layers=3, width=32, heads=2, mlp_ratio=2)


def compiled(model, scope="model", backend="eager", **options):
    return compile_model(model, CompileConfig(scope=scope, backend=backend, **options))


def trained(model, inputs):
    """Loss and gradients by name of one pass."""
    loss = model(inputs).logsumexp(-1).mean()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), gradients


def validated(model, inputs):
    model.eval()
    with torch.inference_mode():
        model(inputs)
    model.train()


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    ("scope", "recomputes"), [("blocks", None), ("model", None), ("blocks", "full"), ("blocks", "selective")]
)
def test_names_and_gradients_stay_and_only_the_first_pass_compiles(scope, recomputes):
    plain, model = a_gpt(), a_gpt()
    if recomputes:
        checkpoint_activations(model, recomputes)
    assert compiled(model, scope, "aot_eager", fullgraph=True) is model
    assert torch._dynamo.config.optimize_ddp == (scope == "model")
    assert_close(trained(model, TOKENS), trained(plain, TOKENS), sums=6)  # three layers forward and backward
    assert list(model.state_dict()) == list(plain.state_dict())
    assert graphs() == 1, "blocks of equal shapes share a graph"
    validated(model, TOKENS)
    both_modes = graphs()
    for _ in range(2):
        trained(model, TOKENS)
        validated(model, TOKENS)
    assert graphs() == both_modes


def test_running_statistics_of_a_recomputed_compiled_block_are_updated_once():
    torch.manual_seed(0)
    plain = ResNet(BasicBlock, (1, 1, 1, 1), 3, True, 10, 4)
    model = compiled(checkpoint_activations(copy.deepcopy(plain), "full"), "blocks", "aot_eager")
    for each in (plain, model):
        trained(each, torch.ones(2, 3, 8, 8))
    assert_close(dict(model.named_buffers()), dict(plain.named_buffers()), sums=9)  # convolutions


def test_each_shape_of_a_block_gets_a_graph_for_training_and_one_for_validation():
    """Of one class more shapes than the graphs that PyTorch keeps by itself."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(n, n + 1)) for n in range(4, 14)))
    compiled(model, "blocks")
    trained(model, torch.ones(2, 4))
    assert graphs() == 10
    validated(model, torch.ones(2, 4))
    assert graphs() == 20


@pytest.mark.parametrize(("dynamic", "expected"), [(False, 3), (True, 1), (None, 2)])
def test_dynamic_decides_how_many_shapes_a_graph_serves(dynamic, expected):
    model = compiled(nn.Linear(4, 4), dynamic=dynamic)
    for samples in (2, 3, 5):
        trained(model, torch.ones(samples, 4))
    assert graphs() == expected


@pytest.mark.slow  # compiles C++
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_generates_kernels_that_compute_as_the_plain_model():
    before = metrics.generated_kernel_count
    assert_close(trained(compiled(a_gpt(), "blocks", "inductor"), TOKENS), trained(a_gpt(), TOKENS), sums=6)
    assert metrics.generated_kernel_count > before


class Breaking(nn.Linear):
    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


class Attending(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)  # which flash has not on a CPU


@pytest.mark.parametrize(
    ("model", "fullgraph", "attention", "remedy"),
    [
        (Breaking(4, 4), True, "auto", "use compile.fullgraph=false"),
        (Attending(), False, "flash", "use compile.scope=none or train.attention=auto"),
    ],
)
def test_a_model_that_cannot_be_compiled_is_refused_in_one_line(model, fullgraph, attention, remedy):
    options = CompileConfig(scope="model", backend="eager", fullgraph=fullgraph)
    compile_model(model, options)
    with pytest.raises(ConfigError) as refused, attention_kernel(attention), compiling(options, attention):
        model(torch.ones(1, 1, 4, 4))
    assert str(refused.value).endswith(remedy)
    assert "\n" not in str(refused.value)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ConfigError, match="Linear has no blocks"):
        compiled(nn.Linear(2, 2), "blocks")
