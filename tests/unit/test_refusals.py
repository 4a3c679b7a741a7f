"""Every refusal of a combination is triggered: one line with key and value, and with what would work."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from disttrain.config import (
    attention_combinations,
    combinations,
    compile_combinations,
    gpu_options,
    model_combinations,
    optim_combinations,
    paired_options,
    pipeline_combinations,
)
from disttrain.config.parsing import Draft, check, with_batch
from disttrain.config.sections import gradient_communication
from disttrain.errors import ConfigError

MODULES = (
    combinations, attention_combinations, compile_combinations, gpu_options, gradient_communication,
    model_combinations, optim_combinations, paired_options, pipeline_combinations,
)  # fmt: skip
CHANNELS_LAST = "channels_last"
PIPELINE = {
    "model.tie_weights": False, "parallel.strategy": "pipeline", "resources.gpus_per_node": 2,
    "train.global_batch_size": 8,
}  # fmt: skip
RANDOM_K = {"parallel.strategy": "ddp", "parallel.gradient_communication.scheme": "randomk"}
LOCAL_SGD = {
    "parallel.strategy": "ddp", "parallel.gradient_communication.scheme": "local_sgd",
    "precision.on_non_finite": "ignore",
}  # fmt: skip
COMPILED = {"compile.scope": "blocks"}
WHOLE = {"compile.scope": "model"}
TWO = {"resources.gpus_per_node": 2}
CPU = {"resources.device": "cpu"}

CASES: list[dict[str, Any]] = [
    {"profile.steps": [5, 3]},
    {"profile.steps": [1, 2], "profile.ranks": [3]},
    {"train.epochs": 2},
    {"train.steps": None},
    {"train.local_batch_size": None},
    {**PIPELINE, "train.local_batch_size": "auto"},
    {"train.local_batch_size": "auto", "model.kind": "emulated"},
    {"parallel.strategy": "single", **TWO},
    {"parallel.strategy": "dp", "resources.nodes": 2},
    {"parallel.strategy": "dp", "resources.device": "shared", **TWO},
    {"parallel.strategy": "fsdp", "parallel.ddp.sync_batch_norm": True},
    {"parallel.ddp.static_graph": True, "parallel.ddp.find_unused_parameters": True},
    {"parallel.ddp.first_bucket_mb": 2, "parallel.ddp.find_unused_parameters": True},
    {**PIPELINE, "resources.gpus_per_node": 3},
    {**PIPELINE, "resources.gpus_per_node": 1},
    {**PIPELINE, "model.layers": 1},
    {**PIPELINE, "model.tie_weights": True},
    {"parallel.strategy": "pipeline", "model.kind": "mlp", "data.kind": "digits", **TWO},
    {**PIPELINE, "resources.device": "shared"},
    {**PIPELINE, "parallel.backend": "gloo"},
    {**PIPELINE, "telemetry.layer_passes": 2},
    {**PIPELINE, "train.global_batch_size": None},
    {**PIPELINE, "train.local_batch_size": 8},
    {**PIPELINE, "train.local_batch_size": 1, "train.global_batch_size": 1},
    {**PIPELINE, "train.local_batch_size": 2, "parallel.gradient_communication.scheme": "bf16"},
    {"parallel.gradient_communication.error_feedback": False},
    {"parallel.strategy": "fsdp", "parallel.gradient_communication.scheme": "bf16"},
    {"parallel.gradient_communication.ratio": 0.5},
    {**RANDOM_K, "precision.dtype": "fp16"},
    {**LOCAL_SGD, "precision.on_non_finite": "skip"},
    {**LOCAL_SGD, "precision.dtype": "fp16"},
    {**LOCAL_SGD, "train.eval_every": 3},
    {"parallel.strategy": "hsdp", "parallel.hsdp.shard_size": 3, "resources.gpus_per_node": 4},
    {"parallel.strategy": "fsdp", "optim.name": "sgd", "optim.fused": True},
    {"parallel.strategy": "fsdp", "telemetry.layer_passes": 1},
    {"parallel.strategy": "fsdp", "model.transforms": [CHANNELS_LAST]},
    {"parallel.strategy": "ddp", "parallel.fsdp.cpu_offload": True},
    {"parallel.strategy": "fsdp", "parallel.fsdp.cpu_offload": True, **CPU},
    {"memory.offload_activations": True, **CPU},
    {"model.dropout": 0.1, "train.attention": "flash", **CPU},
    {"optim.schedule": "step"},
    {"optim.step_every": 2},
    {"optim.lr_scaling": "linear"},
    {"optim.restart_factor": 2},
    {"optim.schedule": "cosine", "optim.warmup_steps": 4},
    {"precision.dtype": "tf32", **CPU},
    {"precision.dtype": "fp16", "precision.on_non_finite": "stop"},
    {"precision.on_non_finite": "stop", "precision.max_skipped": 3},
    {"memory.activation_checkpointing": "every-n"},
    {"memory.every_blocks": 2},
    {"memory.activation_checkpointing": "full", "model.kind": "emulated"},
    {"memory.offload_activations": True, "parallel.strategy": "fsdp"},
    {"memory.loss_chunk_tokens": 64, "model.kind": "mlp", "data.kind": "digits"},
    {"memory.activation_checkpointing": "full", "parallel.strategy": "dp"},
    {"compile.fullgraph": True},
    {**COMPILED, "compile.mode": "max-autotune", "compile.backend": "eager"},
    {**COMPILED, "model.kind": "emulated"},
    {**COMPILED, "telemetry.layer_passes": 1},
    {**COMPILED, "parallel.strategy": "dp"},
    {**COMPILED, "parallel.strategy": "fsdp", "compile.mode": "max-autotune"},
    {**WHOLE, "parallel.strategy": "fsdp"},
    {**WHOLE, "parallel.strategy": "ddp", **TWO, "memory.activation_checkpointing": "full"},
    {**WHOLE, "parallel.strategy": "ddp", **TWO, "parallel.ddp.bucket_mb": 0.5},
    {"train.attention": "math", "model.kind": "mlp", "data.kind": "digits"},
    {"train.attention": "cudnn", **CPU},
    {"train.attention": "flash"},
    {"model.layers": 0},
    {"model.heads": 3},
    {"data.kind": "digits"},
]  # fmt: skip


def refusal(values: dict[str, Any]) -> str:
    draft = Draft({"train": {"steps": 4, "local_batch_size": 4}, "model": {"width": 32}})
    for key, value in values.items():
        draft.set(key, value, key)
    if values.get("model.kind", "gpt") != "gpt":
        del draft.data["model"]["width"]
    with pytest.raises(ConfigError) as refused:
        with_batch(check(draft), draft)
    return str(refused.value)


@contextmanager
def refusing_lines() -> Iterator[set[tuple[str, int]]]:
    """File and line of each `return` of a refusal in `MODULES`."""
    found: set[tuple[str, int]] = set()
    files = {str(module.__file__) for module in MODULES}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            return trace if frame.f_code.co_filename in files else None
        if event == "return" and isinstance(arg, tuple):
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)


def returned_refusals() -> dict[tuple[str, int], range]:
    """Lines of each `return KEY, MESSAGE` in `MODULES`."""
    found = {}
    for module in MODULES:
        path = str(module.__file__)
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                assert node.end_lineno is not None
                found[path, node.lineno] = range(node.lineno, node.end_lineno + 1)
    return found


@pytest.mark.parametrize("values", CASES, ids=lambda each: " ".join(f"{k}={v}" for k, v in each.items())[:80])
def test_a_refusal_names_a_key_its_value_and_what_works(values: dict[str, Any]) -> None:
    message = refusal(values)
    assert "\n" not in message
    keys = [key for key in values if f"{key}=" in message]
    words = ("use ", "give ", "leave ", "needs ", "needed", "must be at least", "no multiple of")
    assert keys or "neither is given" in message or "not given" in message, message
    assert any(word in message for word in words), message
    assert not any(word in message for word in (" it is ", "None", "True", "False")), message


def test_every_refusal_is_among_the_cases() -> None:
    with refusing_lines() as found:
        for values in CASES:
            refusal(values)
    missed = [
        f"{Path(path).name}:{line}"
        for (path, line), lines in returned_refusals().items()
        if not any((path, number) in found for number in lines)
    ]
    assert missed == []
