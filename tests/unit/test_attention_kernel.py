"""`train.attention`: the kernel that runs, and kernels that a device or a config does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.utils import counters

from benchmarks.gpu.attention import TINY_SHAPES, attention_operators, kernel_times
from benchmarks.gpu.training import config_of
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.engine.memory_estimate import estimate
from disttrain.engine.train import train
from disttrain.errors import ConfigError
from disttrain.runtime.kernels import attention_kernel, require_kernel
from disttrain.runtime.process_group import open_world
from disttrain.runtime.run_output import RunOutput
from tests.support import stopping

ENABLED = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}


def enabled() -> set[str]:
    return {name for name, is_enabled in ENABLED.items() if is_enabled()}


def with_kernel(config: Config, kernel: str) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"attention": kernel})})


@pytest.mark.parametrize("kernel", ENABLED)
def test_a_kernel_is_allowed_alone_and_the_setting_ends_with_the_run(kernel: str) -> None:
    with attention_kernel(kernel):
        assert enabled() == {kernel}
    assert enabled() == set(ENABLED)
    with attention_kernel("auto"):
        assert enabled() == set(ENABLED)


CAPABILITY, NO_CUDNN = "needs compute capability 8.0", "this torch has no cuDNN"


@pytest.mark.parametrize(
    ("device", "capability", "cudnn", "hip", "refused"),
    [
        ("cpu", None, True, None, dict.fromkeys(("cudnn", "efficient"), "needs a GPU")),
        ("cuda", (9, 0), True, None, {}),
        ("cuda", (9, 0), False, None, {"cudnn": NO_CUDNN}),
        ("cuda", (7, 5), True, None, dict.fromkeys(("cudnn", "flash"), CAPABILITY)),
        ("cuda", (9, 0), True, "6.4", {"cudnn": NO_CUDNN}),  # torch names MIOpen of an AMD GPU cuDNN
    ],
)
def test_kernels_that_the_device_does_not_have_are_refused(
    device: str,
    capability: tuple[int, int] | None,
    cudnn: bool,
    hip: str | None,
    refused: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: cudnn)
    monkeypatch.setattr(torch.version, "hip", hip)
    reasons = {}
    for kernel in (*ENABLED, "auto"):
        try:
            require_kernel(kernel, torch.device(device))
        except ConfigError as error:
            reasons[kernel] = str(error)
    assert reasons.keys() == refused.keys()
    for kernel, why in refused.items():
        assert why in reasons[kernel]
        assert f"train.attention={kernel}" in reasons[kernel]


def test_a_call_that_the_kernel_does_not_take_is_bad_input_and_another_error_stays() -> None:
    x = torch.randn(1, 2, 16, 8)
    with pytest.raises(ConfigError, match=r"^train\.attention=flash: "), attention_kernel("flash"):
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)
    with pytest.raises(RuntimeError, match="boom"), attention_kernel("flash"):
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("kernel", "operator"), [("flash", "flash_attention_for_cpu"), ("math", "attention_math")]
)
def test_a_run_uses_the_kernel_alone_and_has_a_key_of_its_own(
    tmp_path: Path, kernel: str, operator: str
) -> None:
    default = config_of("profile", "cpu", tiny=True)
    config = with_kernel(default, kernel)
    assert config_key(config) != config_key(default)
    output = RunOutput.of_job(tmp_path, 0)
    output.attempt.path.mkdir(parents=True)
    with open_world(config) as world:
        train(config, output, world)
    forward = {name for name in attention_operators(output.attempt.trace(0)) if "backward" not in name}
    assert forward == {f"_scaled_dot_product_{operator}"}
    assert enabled() == set(ENABLED)


@pytest.mark.slow
def test_the_cache_of_compiled_graphs_has_one_for_each_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    config = stopping.config(model=model, data=data, train={"steps": 1, "local_batch_size": 4})
    with attention_kernel("flash"):  # the estimate of `auto` on the ranks
        auto, math = (estimate(with_kernel(config, kernel)).activations_bytes for kernel in ("auto", "math"))
    assert math > auto + 4 * 2 * 256 * 256 * 4


def test_times_of_the_kernels_or_the_reason() -> None:
    found = kernel_times(torch.device("cpu"), TINY_SHAPES)["tiny"]
    assert all(isinstance(found[kernel], float) for kernel in ("auto", "flash", "math"))
    assert found["cudnn"].startswith("train.attention=cudnn needs a GPU")
