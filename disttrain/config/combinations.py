"""Combinations of config values that exclude each other, refused before any process starts.

Each check returns its first refusal: the key that the message is about, and one line that names the values
and what would work.
"""

from __future__ import annotations

from collections.abc import Callable

from disttrain.config.attention_combinations import check_attention
from disttrain.config.compile_combinations import check_compilation
from disttrain.config.config_tree import Config
from disttrain.config.gpu_options import check_gpu_options
from disttrain.config.model_combinations import check_data, check_sizes
from disttrain.config.optim_combinations import check_learning_rate
from disttrain.config.paired_options import refuse_unpaired
from disttrain.config.pipeline_combinations import check_pipeline
from disttrain.config.sections.gradient_communication import refuse_scheme
from disttrain.errors import ConfigError, either

Refusal = tuple[str, str]
"""Dotted key, message."""


def refuse_combinations(config: Config, origin: Callable[[str], str | None]) -> None:
    """Raise `ConfigError` for the first combination that cannot be run; `origin` is the place of a key."""
    for check in CHECKS:
        if refusal := check(config):
            key, message = refusal
            raise ConfigError(message, at=origin(key))


def _profile(config: Config) -> Refusal | None:
    profile, steps = config.profile, config.train.steps
    if profile.steps is None:
        return None
    first, last = profile.steps
    if first > last or (steps is not None and last > steps):
        until = f" and not after train.steps={steps}" if steps is not None else ""
        return "profile.steps", f"profile.steps=[{first}, {last}]: give first and last step, in order{until}"
    if missing := [rank for rank in profile.ranks if rank >= config.world_size]:
        message = (
            f"profile.ranks={list(profile.ranks)}: the run has no rank {missing[0]}; use at most "
            f"{config.world_size - 1}"
        )
        return "profile.ranks", message
    return None


def _length(config: Config) -> Refusal | None:
    train = config.train
    if (train.steps is None) != (train.epochs is None):
        return None
    if train.epochs is None:
        return "train", "train.steps or train.epochs is needed; neither is given"
    given = f"train.steps={train.steps} and train.epochs={train.epochs:g}"
    return "train.epochs", f"{given}: give exactly one of them"


def _batch(config: Config) -> Refusal | None:
    if config.train.local_batch_size is None and config.train.global_batch_size is None:
        return "train", "train.local_batch_size or train.global_batch_size is needed; neither is given"
    if config.train.local_batch_size == "auto" and config.stages > 1:
        return (
            "train.local_batch_size",
            f"train.local_batch_size=auto does not go with parallel.pipeline.stages={config.stages}; give a "
            "number",
        )
    if config.train.local_batch_size == "auto" and config.model.kind == "emulated":
        return (
            "train.local_batch_size",
            "train.local_batch_size=auto: model.kind=emulated has no activations that could fit or not; give "
            "a number",
        )
    return None


def _strategy(config: Config) -> Refusal | None:
    resources, ddp = config.resources, config.parallel.ddp
    if config.parallel.strategy == "single" and config.world_size > 1:
        return (
            "parallel.strategy",
            f"parallel.strategy=single needs 1 rank, but resources.nodes={resources.nodes} x "
            f"resources.gpus_per_node={resources.gpus_per_node} is {config.world_size}; use ddp or auto",
        )
    if config.parallel.strategy == "dp" and resources.nodes > 1:
        return (
            "parallel.strategy",
            f"parallel.strategy=dp is one process on the GPUs of one node, but resources.nodes="
            f"{resources.nodes}; use ddp or auto",
        )
    if config.parallel.strategy == "dp" and resources.device == "shared" and resources.gpus_per_node > 1:
        return (
            "resources.device",
            "resources.device=shared is one GPU, which parallel.strategy=dp cannot divide the batch among "
            f"resources.gpus_per_node={resources.gpus_per_node}; use cuda or auto",
        )
    if ddp.sync_batch_norm and config.parallel.strategy not in ("auto", "ddp", "single"):
        return (
            "parallel.ddp.sync_batch_norm",
            f"parallel.ddp.sync_batch_norm=true needs parallel.strategy=ddp, not {config.parallel.strategy}; "
            "use ddp, or model.transforms=[group_norm]",
        )
    if ddp.static_graph and ddp.find_unused_parameters:
        return (
            "parallel.ddp.static_graph",
            "parallel.ddp.static_graph=true and parallel.ddp.find_unused_parameters=true exclude each other: "
            "the first step of a static graph shows the unused parameters; leave one of them out",
        )
    if ddp.first_bucket_mb is not None and ddp.find_unused_parameters:
        return (
            "parallel.ddp.first_bucket_mb",
            f"parallel.ddp.first_bucket_mb={ddp.first_bucket_mb:g} with parallel.ddp.find_unused_parameters="
            "true: PyTorch would apply the size to the last bucket; leave one of them out",
        )
    return None


def _gradient_communication(config: Config) -> Refusal | None:
    section, policy = config.parallel.gradient_communication, config.precision.on_non_finite
    if refusal := refuse_scheme(section, config.parallel.strategy):
        return refusal
    scheme = f"parallel.gradient_communication.scheme={section.scheme}"
    keeps_errors = section.scheme in ("topk", "randomk", "powersgd") and section.error_feedback
    if config.precision.dtype == "fp16" and keeps_errors:
        return (
            "precision.dtype",
            f"precision.dtype=fp16 changes the scale of the gradients, of which {scheme} keeps a part for "
            "the next step; use precision.dtype=bf16",
        )
    if section.scheme != "local_sgd":
        return None
    if config.precision.dtype == "fp16":
        return (
            "precision.dtype",
            f"precision.dtype=fp16 skips steps on all ranks together, which {scheme} cannot; use "
            "precision.dtype=bf16",
        )
    if policy != "ignore":
        return (
            "precision.on_non_finite",
            f"precision.on_non_finite={policy} needs the same gradients on all ranks, which {scheme} does "
            "not have; use precision.on_non_finite=ignore",
        )
    every = {
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "train.eval_every": config.train.eval_every,
    }
    for key, steps in every.items():
        if steps and steps % section.average_every:
            return (
                key,
                f"{key}={steps} is no multiple of parallel.gradient_communication.average_every="
                f"{section.average_every}: between averages each rank has parameters of its own; use "
                f"{key}={-(-steps // section.average_every) * section.average_every}",
            )
    return None


def _sharding(config: Config) -> Refusal | None:
    resources, parallel = config.resources, config.parallel
    size = parallel.hsdp.shard_size
    if parallel.strategy == "hsdp" and size is not None and config.world_size % size:
        return (
            "parallel.hsdp.shard_size",
            f"parallel.hsdp.shard_size={size} does not divide the {config.world_size} ranks of "
            f"resources.nodes={resources.nodes} x resources.gpus_per_node={resources.gpus_per_node}; "
            f"use {either(_divisors(config.world_size))}",
        )
    if parallel.strategy in ("fsdp", "hsdp") and config.optim.name == "sgd" and config.optim.fused:
        return (
            "optim.fused",
            f"optim.fused=true with optim.name=sgd and parallel.strategy={parallel.strategy}: PyTorch has no "
            "fused SGD for sharded parameters; leave optim.fused out, or use optim.name=adamw",
        )
    if parallel.strategy in ("fsdp", "hsdp") and config.telemetry.layer_passes:
        return (
            "telemetry.layer_passes",
            f"telemetry.layer_passes={config.telemetry.layer_passes} needs whole layers on every rank, but "
            f"parallel.strategy={parallel.strategy} shards them; use single or ddp",
        )
    if parallel.strategy in ("fsdp", "hsdp") and "channels_last" in config.model.transforms:
        return (
            "model.transforms",
            "model.transforms: channels_last makes parameters non-contiguous, and "
            f"parallel.strategy={parallel.strategy} shards only contiguous ones; use ddp",
        )
    return None


def _cpu_offload(config: Config) -> Refusal | None:
    strategy = config.parallel.strategy
    if not config.parallel.fsdp.cpu_offload:
        return None
    if strategy not in ("fsdp", "hsdp"):
        return (
            "parallel.fsdp.cpu_offload",
            "parallel.fsdp.cpu_offload=true needs parallel.strategy=fsdp or hsdp, which have shards to move, "
            f"not {strategy}; use fsdp, or memory.offload_activations for a model that is whole on "
            "each rank",
        )
    return None


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _memory_of_replicas(config: Config) -> Refusal | None:
    memory = config.memory
    if config.parallel.strategy != "dp":
        return None
    others = {
        f"activation_checkpointing={memory.activation_checkpointing}": memory.activation_checkpointing
        != "none",
        "offload_activations=true": memory.offload_activations,
        f"loss_chunk_tokens={memory.loss_chunk_tokens}": memory.loss_chunk_tokens is not None,
    }
    if found := next((option for option, given in others.items() if given), None):
        key = f"memory.{found.partition('=')[0]}"
        return key, f"memory.{found} does not go with parallel.strategy=dp; use ddp"
    return None


def _memory(config: Config) -> Refusal | None:
    memory = config.memory
    if refusal := refuse_unpaired(
        config, "memory.every_blocks", "memory.activation_checkpointing", ("every-n",)
    ):
        return refusal
    if memory.activation_checkpointing != "none" and config.model.kind == "emulated":
        return (
            "memory.activation_checkpointing",
            f"memory.activation_checkpointing={memory.activation_checkpointing}: model.kind=emulated has no "
            "activations; give its layers the longer backward_s instead",
        )
    if memory.offload_activations:
        others = {
            f"parallel.strategy={config.parallel.strategy}": config.parallel.strategy
            in ("fsdp", "hsdp", "pipeline"),
            f"compile.scope={config.compile.scope}": config.compile.scope != "none",
        }
        if found := next((name for name, given in others.items() if given), None):
            return (
                "memory.offload_activations",
                f"memory.offload_activations=true does not go with {found}: the option needs a model that is "
                "whole "
                "on each rank, and compile.scope=none; use memory.activation_checkpointing",
            )
    if memory.loss_chunk_tokens is not None:
        others = {
            f"model.kind={config.model.kind}": config.model.kind != "gpt",
            "parallel.strategy=pipeline": config.stages > 1,
            "compile.scope=model": config.compile.scope == "model",
        }
        if found := next((name for name, given in others.items() if given), None):
            return (
                "memory.loss_chunk_tokens",
                f"memory.loss_chunk_tokens={memory.loss_chunk_tokens} does not go with {found}: the option "
                "needs model.kind=gpt, one stage, and compile.scope=none or blocks",
            )
    return None


def _precision(config: Config) -> Refusal | None:
    dtype, policy = config.precision.dtype, config.precision.on_non_finite
    if dtype == "tf32" and config.resources.device == "cpu":
        return (
            "precision.dtype",
            "precision.dtype=tf32 needs a GPU, but resources.device=cpu; use fp32 or bf16",
        )
    if dtype == "fp16" and policy != "skip":
        return (
            "precision.on_non_finite",
            f"precision.on_non_finite={policy} does not go with precision.dtype=fp16, which skips steps "
            "while it adapts its loss scale; use skip, or precision.dtype=bf16",
        )
    limit = config.precision.max_skipped
    if policy != "skip" and limit != type(config.precision).model_fields["max_skipped"].default:
        return (
            "precision.max_skipped",
            f"precision.max_skipped={limit} has no effect with precision.on_non_finite={policy}: leave it "
            "out, or use precision.on_non_finite=skip",
        )
    return None


CHECKS: tuple[Callable[[Config], Refusal | None], ...] = (
    _profile,
    _length,
    _strategy,
    check_pipeline,
    _gradient_communication,
    _sharding,
    check_sizes,
    _cpu_offload,
    check_gpu_options,
    check_learning_rate,
    _precision,
    _batch,
    _memory,
    _memory_of_replicas,
    check_compilation,
    check_attention,
    check_data,
)
"""In this order; the first refusal is shown."""
