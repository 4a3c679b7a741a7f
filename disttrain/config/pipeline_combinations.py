"""Combinations of `parallel.strategy=pipeline` with other keys that cannot be run."""

from __future__ import annotations

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.errors import either

Refusal = tuple[str, str]
"""Dotted key, message."""


def check_pipeline(config: Config) -> Refusal | None:
    """The first refusal, as a check of `combinations`."""
    if config.parallel.strategy != "pipeline":
        return None
    if refusal := _stages(config) or _model(config):
        return refusal
    if config.resources.device == "shared":
        return (
            "resources.device",
            "resources.device=shared communicates through gloo, which sends no GPU tensors from stage to "
            "stage; parallel.strategy=pipeline needs a GPU for each rank: use cuda or cpu",
        )
    if config.parallel.backend == "gloo" and config.resources.device != "cpu":
        return (
            "parallel.backend",
            "parallel.backend=gloo sends no GPU tensors from stage to stage, as parallel.strategy=pipeline "
            "does; use auto, or resources.device=cpu",
        )
    if passes := config.telemetry.layer_passes:
        return (
            "telemetry.layer_passes",
            f"telemetry.layer_passes={passes} measures the layers of a whole model, of which a stage of "
            "parallel.strategy=pipeline has a part; use single or ddp",
        )
    return None


def _stages(config: Config) -> Refusal | None:
    key, stages, ranks = "parallel.pipeline.stages", config.parallel.pipeline.stages, config.world_size
    if ranks % stages:
        plural = "s" if ranks > 1 else ""
        divisors = [size for size in range(2, ranks + 1) if ranks % size == 0]
        shape = f"nodes={config.resources.nodes} x resources.gpus_per_node={config.resources.gpus_per_node}"
        works = (
            f"use {either(divisors)}" if divisors else "give at least 2 ranks, or use parallel.strategy=auto"
        )
        return key, f"{key}={stages} does not divide the {ranks} rank{plural} of resources.{shape}; {works}"
    layers = (config.model.model_extra or {}).get("layers")
    if config.model.kind == "gpt" and layers is not None and layers < stages:
        return (
            key,
            f"{key}={stages} is more than model.layers={layers}; use a model.layers of at least {stages}",
        )
    return None


def _model(config: Config) -> Refusal | None:
    kind, options = config.model.kind, config.model.model_extra or {}
    if kind == "gpt" and options.get("tie_weights", True):
        return (
            "parallel.strategy",
            "parallel.strategy=pipeline needs model.tie_weights=false: the first stage has the embedding "
            "and the last one the output layer",
        )
    if kind != "gpt" and ":" not in kind:
        return (
            "parallel.strategy",
            f"parallel.strategy=pipeline cannot split model.kind={kind}; use model.kind=gpt, or another "
            "strategy",
        )
    return None


def few_micro_batches(config: Config, batch: BatchPlan) -> Refusal | None:
    """The refusal of a 1F1B pipeline with fewer micro-batches in a step than stages."""
    stages, key = config.stages, "train.local_batch_size"
    if stages == 1 or config.parallel.pipeline.schedule != "1f1b" or batch.accumulation >= stages:
        return None
    samples = batch.local * batch.accumulation
    fitting = [size for size in range(1, samples // stages + 1) if samples % size == 0]
    local, global_ = (fitting[-1], batch.global_) if fitting else (1, stages * batch.world)
    return (
        key,
        f"{key}={batch.local} and train.global_batch_size={batch.global_} give each replica "
        f"{batch.accumulation} micro-batch{'es' if batch.accumulation > 1 else ''} in a step, but "
        f"parallel.pipeline.schedule=1f1b needs {stages}, one for each stage; use {key}={local} with "
        f"train.global_batch_size={global_}, or parallel.pipeline.schedule=gpipe",
    )
