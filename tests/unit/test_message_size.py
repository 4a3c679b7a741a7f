"""Size of the messages of a run, before its model is built."""

from __future__ import annotations

from typing import Any

import pytest

from disttrain.comm_bench.message_size import message_size
from disttrain.config.config_tree import Config

MIB = 2**20
GPT = {"kind": "gpt", "layers": 2, "width": 64, "heads": 4}
BLOCK = 4 * 64 * 64 + 2 * 64 * 256 + 2 * 64
"""Parameters of a block of `GPT`: attention, MLP, and two norms without bias."""


def config(strategy: str, model: dict[str, Any] = GPT, **sections: Any) -> Config:
    data = {"kind": "tokens", "path": "/nowhere"} if model["kind"] == "gpt" else {"kind": "digits"}
    plain = {
        "model": model,
        "data": data,
        "resources": {"nodes": 2},
        "train": {"steps": 1, "local_batch_size": 1},
        **sections,
    }
    return Config.model_validate(
        {**plain, "parallel": {"strategy": strategy, **sections.get("parallel", {})}}
    )


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_a_sharded_run_sends_the_parameters_of_a_block(strategy: str) -> None:
    found = message_size(config(strategy))
    assert found.bytes == 4 * BLOCK
    assert found.reason == f"{BLOCK:,} parameters of the largest block at 32 bits"


def test_parameters_travel_in_the_dtype_of_autocast() -> None:
    found = message_size(config("fsdp", precision={"dtype": "bf16"}))
    assert (found.bytes, found.reason.endswith("at 16 bits")) == (2 * BLOCK, True)


@pytest.mark.parametrize(("strategy", "expected"), [("ddp", 100), ("pipeline", 25)])
def test_the_bucket_size_of_ddp_is_that_of_no_other_strategy(strategy: str, expected: int) -> None:
    found = message_size(config(strategy, parallel={"ddp": {"bucket_mb": 100.0}}))
    assert found.bytes == expected * MIB
    assert ("bucket_mb" in found.reason) == (expected == 100)


LARGE = {"kind": "gpt", "layers": 2, "width": 2048, "heads": 16}
LARGE_BLOCK = 4 * 2048 * 2048 + 2 * 2048 * 8192 + 2 * 2048


@pytest.mark.parametrize(
    ("model", "bucket_mb", "expected"),
    [
        (LARGE, None, 4 * LARGE_BLOCK),
        (LARGE, 500.0, 500 * MIB),
        (GPT, None, 25 * MIB),
    ],
)
def test_auto_has_the_larger_message_of_its_candidates(
    model: dict[str, Any], bucket_mb: float | None, expected: int
) -> None:
    found = message_size(config("auto", model, parallel={"ddp": {"bucket_mb": bucket_mb}}))
    assert found.bytes == expected
    bucket = "parallel.ddp.bucket_mb" if bucket_mb else "bucket size of PyTorch"
    assert f"of ddp ({bucket_mb or 25:.1f} MiB: {bucket}) and fsdp (" in found.reason


@pytest.mark.parametrize("bucket_mb", [1.0, 100.0])
def test_auto_has_the_bucket_of_ddp_where_the_size_of_a_block_is_unknown(bucket_mb: float) -> None:
    found = message_size(config("auto", {"kind": "mlp"}, parallel={"ddp": {"bucket_mb": bucket_mb}}))
    assert found.bytes == bucket_mb * MIB
    assert found.reason == (
        "parallel.ddp.bucket_mb, as for ddp; auto may choose fsdp, and the size of a block of model.kind=mlp "
        "is known only with its data"
    )


def test_auto_with_ddp_as_the_only_candidate_has_its_bucket() -> None:
    scheme = {"ddp": {"bucket_mb": 10.0}, "gradient_communication": {"scheme": "bf16"}}
    assert message_size(config("auto", LARGE, parallel=scheme)) == (10 * MIB, "parallel.ddp.bucket_mb")


def test_the_default_bucket_size() -> None:
    assert message_size(config("ddp")) == (25 * MIB, "bucket size of PyTorch")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"kind": "mlp"}, "model.kind=mlp is known only with its data"),
        ({"kind": "gpt", "width": 65}, "ConfigError"),
    ],
)
def test_an_unknown_size_is_replaced_with_its_reason(model: dict[str, Any], words: str) -> None:
    found = message_size(config("fsdp", model))
    assert found.bytes == 25 * MIB
    assert words in found.reason


def test_a_model_for_generated_data_is_built() -> None:
    sections = {"data": {"kind": "synthetic", "shape": [64]}}
    found = message_size(config("fsdp", {"kind": "mlp", "hidden": [32]}, **sections))
    assert found.bytes == 4 * (64 * 32 + 32)


def test_the_messages_of_a_command_are_not_known() -> None:
    assert "command" in message_size(config("fsdp").model_copy(update={"command": ("x.py",)})).reason
