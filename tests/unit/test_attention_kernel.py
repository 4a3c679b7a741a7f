"""`train.attention`: the kernel that runs, and kernels that a device or a config does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.utils import counters

from benchmarks.gpu.attention import TINY_SHAPES, attention_operators, kernel_times
from benchmarks.gpu.training import config_of
from disttrain.config.parsing import Draft, check
from disttrain.config.run_key import config_key
from disttrain.engine.memory_estimate import estimate
from disttrain.engine.train import train
from disttrain.errors import ConfigError
from disttrain.runtime.kernels import attention_kernel, require_kernel
from disttrain.runtime.process_group import open_world
from disttrain.runtime.run_output import RunOutput
from tests.support import stopping

GPU = torch.device("cuda", 0)
ENABLED = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}


def enabled() -> set[str]:
    return {name for name, is_enabled in ENABLED.items() if is_enabled()}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU, of which the test may change the facts."""
    facts: dict[str, Any] = {"capability": (9, 0), "cudnn": True}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: facts["capability"])
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: facts["cudnn"])
    return facts


@pytest.mark.parametrize("kernel", ENABLED)
def test_a_kernel_is_allowed_alone_and_the_setting_ends_with_the_run(kernel: str) -> None:
    with attention_kernel(kernel):
        assert enabled() == {kernel}
    assert enabled() == set(ENABLED)
    with attention_kernel("auto"):
        assert enabled() == set(ENABLED)


def test_kernels_that_the_device_does_not_have_are_refused(gpu) -> None:
    for kernel in ("cudnn", "efficient"):
        with pytest.raises(
            ConfigError, match=f"^train.attention={kernel} needs a GPU, .*; use flash or math"
        ):
            require_kernel(kernel, torch.device("cpu"))
    gpu["cudnn"] = False
    with pytest.raises(
        ConfigError, match="attention=cudnn: this torch has no cuDNN for NVIDIA H100; use flash"
    ):
        require_kernel("cudnn", GPU)
    gpu["capability"] = (7, 5)
    for kernel in ("cudnn", "flash"):
        with pytest.raises(
            ConfigError, match=rf"attention={kernel} needs compute capability 8\.0, which NVI"
        ):
            require_kernel(kernel, GPU)
    for kernel in ("efficient", "math", "auto"):
        require_kernel(kernel, GPU)


def test_a_call_that_the_kernel_does_not_take_is_one_line() -> None:
    x = torch.randn(1, 2, 16, 8)
    message = r"^train\.attention=flash: the kernel does not take .*=auto$"
    with pytest.raises(ConfigError, match=message), attention_kernel("flash"):
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
    with pytest.raises(RuntimeError, match="boom") as other, attention_kernel("flash"):
        raise RuntimeError("boom")
    assert not isinstance(other.value, ConfigError)


def test_cudnn_is_refused_on_an_amd_gpu_whose_miopen_torch_names_cudnn(gpu, monkeypatch) -> None:
    require_kernel("cudnn", GPU)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(ConfigError, match="this torch has no cuDNN"):
        require_kernel("cudnn", GPU)
    require_kernel("flash", GPU)


def draft(kernel: str, device: str, dtype: str = "fp32", kind: str = "gpt", **options: float) -> Draft:
    return Draft({
        "model": {"kind": kind, **options}, "data": {"kind": "text"} if kind == "gpt" else {},
        "train": {"steps": 1, "local_batch_size": 1, "attention": kernel},
        "resources": {"device": device}, "precision": {"dtype": dtype},
    })  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [draft("flash", "cpu"), draft("math", "cpu"), draft("cudnn", "cuda", "bf16"), draft("efficient", "auto")],
)
def test_another_kernel_has_a_run_key_of_its_own(given: Draft) -> None:
    config = check(given)
    default = config.model_copy(update={"train": config.train.model_copy(update={"attention": "auto"})})
    assert config_key(config) != config_key(default)


@pytest.mark.parametrize(
    ("kernel", "operator"), [("flash", "flash_attention_for_cpu"), ("math", "attention_math")]
)
def test_a_run_uses_the_kernel_alone(tmp_path: Path, kernel: str, operator: str) -> None:
    config = config_of("profile", "cpu", tiny=True)
    config = config.model_copy(update={"train": config.train.model_copy(update={"attention": kernel})})
    output = RunOutput.of_job(tmp_path, 0)
    output.attempt.path.mkdir(parents=True)
    with open_world(config) as world:
        train(config, output, world)
    forward = {name for name in attention_operators(output.attempt.trace(0)) if "backward" not in name}
    assert forward == {f"_scaled_dot_product_{operator}"}
    assert enabled() == set(ENABLED)


@pytest.mark.slow
def test_the_cache_of_compiled_graphs_has_one_for_each_kernel(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, found = torch.randn(1, 2, 16, 8), []
    for kernel in ("flash", "flash", "auto"):
        torch._dynamo.reset()
        counters.clear()
        with attention_kernel(kernel):  # not `math`, whose graph is compiled as C++ for ten seconds
            torch.compile(F.scaled_dot_product_attention)(x, x, x)
        found.append((kernel, counters["aot_autograd"]["autograd_cache_hit"]))
    torch._dynamo.reset()
    assert found == [("flash", 0), ("flash", 1), ("auto", 0)]


def test_the_estimate_counts_the_scores_of_math() -> None:
    data = {"kind": "synthetic", "task": "language", "vocab": 32, "seq_len": 256, "samples": 8}
    model = {"kind": "gpt", "layers": 1, "width": 16, "heads": 2}
    found = {}
    for kernel in ("auto", "math"):
        train_section = {"steps": 1, "local_batch_size": 4, "attention": kernel}
        config = stopping.config(model=model, data=data, train=train_section)
        with attention_kernel("flash"):  # the estimate of `auto` on the ranks
            found[kernel] = estimate(config).activations_bytes
    scores = 4 * 2 * 256 * 256 * 4
    assert found["math"] > found["auto"] + scores


def test_times_of_the_kernels_or_the_reason() -> None:
    found = kernel_times(torch.device("cpu"), TINY_SHAPES)["tiny"]
    assert all(isinstance(found[kernel], float) for kernel in ("auto", "flash", "math"))
    assert found["cudnn"].startswith("train.attention=cudnn needs a GPU")
