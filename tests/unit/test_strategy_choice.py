"""`auto` on the ranks: the first strategy whose estimated memory fits."""

from __future__ import annotations

import math

import pytest

from disttrain.config.auto_strategy import allowed
from disttrain.config.config_tree import Config
from disttrain.engine.memory_estimate import MemoryEstimate, choose_that_fits

GIB = 2**30


def need(strategy: str) -> MemoryEstimate:
    """1 GiB of weights: 4 + 2 GiB whole, of which 8 ranks share the 4; hsdp shares them among 2."""
    ranks = {"ddp": 1, "hsdp": 2, "fsdp": 8}[strategy]
    weights = GIB // ranks
    return MemoryEstimate(strategy, 8, weights, weights, 2 * weights, 0, 2 * GIB, 4 * weights + 2 * GIB)


@pytest.mark.parametrize(
    ("device_gib", "chosen"), [(7, "ddp"), (6.4, "hsdp"), (4.3, "fsdp"), (2, "fsdp"), (math.inf, "ddp")]
)
def test_the_first_that_fits_with_its_arithmetic(device_gib: float, chosen: str) -> None:
    strategy, reason = choose_that_fits(map(need, ["ddp", "hsdp", "fsdp"]), device_gib * GIB)
    assert strategy == chosen
    terms = "weights 1.0 GiB + gradients 1.0 GiB + optimizer 2.0 GiB + communication 0.0 MiB"
    assert f"ddp needs 6.0 GiB = {terms} + activations of 8 samples 2.0 GiB" in reason
    assert f"{chosen} needs" in reason
    assert ("nothing fits" in reason) == (device_gib == 2)
    assert ("unknown" in reason) == (device_gib == math.inf)


def test_a_model_whose_memory_cannot_be_estimated_takes_the_first() -> None:
    def fails(strategy: str) -> MemoryEstimate:
        raise RuntimeError("no fake kernel")

    assert choose_that_fits(map(fails, ["ddp", "fsdp"]), 1.0) == (
        "ddp",
        "memory not estimated: RuntimeError: no fake kernel",
    )


@pytest.mark.parametrize(
    ("sections", "candidates"),
    [
        ({}, ["ddp", "hsdp", "fsdp"]),
        ({"parallel": {"hsdp": {"shard_size": 3}}}, ["ddp", "fsdp"]),
        ({"telemetry": {"layer_passes": 2}}, ["ddp"]),
        ({"optim": {"name": "sgd", "fused": True}}, ["ddp"]),
        ({"compile": {"scope": "model"}}, ["ddp"]),
        ({"memory": {"offload_activations": True}}, ["ddp"]),
        ({"parallel": {"gradient_communication": {"scheme": "bf16"}}}, ["ddp"]),
        ({"parallel": {"ddp": {"sync_batch_norm": True}}}, ["ddp"]),
    ],
    ids=str,
)
def test_a_strategy_that_the_config_would_be_refused_with_is_no_candidate(sections, candidates) -> None:
    base = {"train": {"steps": 1, "local_batch_size": 1}, "resources": {"nodes": 2, "gpus_per_node": 2}}
    found, reason = allowed(Config.model_validate(base | sections), several_nodes=True)
    assert found == candidates
    assert (reason is not None) == (candidates == ["ddp"])
