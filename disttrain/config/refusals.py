"""The values that exclude each other, refused before any process starts: one table of rules.

`docs/reference/refusals.md` lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.config.options import Builder, built_in
from disttrain.config.rules import NO_EFFECT, Rule, is_built_in
from disttrain.config.sections.model import DataConfig
from disttrain.errors import either

_RANKS = "resources.nodes=any resources.gpus_per_node=any"
_SYNTHETIC = {
    "numbers": "synthetic",
    "tokens": "synthetic with data.task=language",
    "images": "synthetic with a data.shape of three",
}
"""Synthetic data of these samples."""


def samples_of(data: DataConfig) -> str | None:
    """Samples of a built-in data source; None for a plug-in."""
    builder, options = built_in("data").get(data.kind), data.model_extra or {}
    if builder is None or "task" not in builder.types:
        return builder.samples if builder else None
    if options.get("task") == "language":
        return "tokens"
    return "images" if len(options.get("shape", ())) == 3 else "numbers"


def data_of(samples: Collection[str]) -> str:
    """The built-in data sources of these samples."""
    kinds = [kind for kind, builder in built_in("data").items() if builder.samples in samples]
    return f"data.kind={either([*kinds, next(_SYNTHETIC[each] for each in _SYNTHETIC if each in samples)])}"


def _other_data(config: Config) -> str | None:
    """What the model takes instead of the samples of its data; None where they fit."""
    kind, samples, models = config.model.kind, samples_of(config.data), built_in("models")
    takes = models[kind].takes if kind in models else ()
    if not takes or samples in (None, *takes):
        return None
    others = either(name for name, builder in models.items() if samples in builder.takes)
    return f"{kind} takes {either(takes)}, not {samples}; use {data_of(takes)}, or model.kind={others}"


def _fitting_sizes(config: Config) -> str | None:
    """Sizes near those of a GPT whose heads have an odd width: rotary positions turn pairs."""
    options = config.model.model_extra or {}
    width, heads = options.get("width"), options.get("heads")
    if not width or not heads or width % (2 * heads) == 0:
        return None
    below = width // (2 * heads) * 2 * heads
    text = f"model.width={either(size for size in (below, below + 2 * heads) if size)}"
    divisors = _divisors(width // 2) if width % 2 == 0 else []
    near = [*[n for n in divisors if n < heads][-1:], *[n for n in divisors if n > heads][:1]]
    return f"{text}, or model.heads={either(near)}" if near else text


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _numbers_of_stages(config: Config) -> str | None:
    ranks = config.world_size
    if ranks % config.stages == 0:
        return None
    divisors = _divisors(ranks)[1:]
    return f"use {either(divisors)}" if divisors else "give at least 2 ranks, or use parallel.strategy=auto"


def _profile_is_outside(config: Config) -> bool:
    first, last = config.profile.steps or (1, 1)
    return not first <= last <= (config.train.steps or last)


def _sizes_of_micro_batches(config: Config) -> str | None:
    """Batch sizes near those of a config that give each stage of a 1F1B pipeline a micro-batch."""
    local, global_, stages = config.train.local_batch_size, config.train.global_batch_size, config.stages
    if not isinstance(local, int) or global_ is None:
        return None
    replicas = config.world_size // stages
    samples = global_ // replicas
    if samples // local >= stages:
        return None
    fitting = [size for size in _divisors(samples) if size <= samples // stages]
    local, global_ = (fitting[-1], global_) if fitting else (1, stages * replicas)
    return f"train.local_batch_size={local} with train.global_batch_size={global_}"


def _between_averages(key: str) -> Rule:
    section, name = key.split(".")

    def next_average(config: Config) -> str | None:
        steps = getattr(getattr(config, section), name)
        every = config.parallel.gradient_communication.average_every
        return f"{key}={-(-steps // every) * every}" if steps % every else None

    return Rule(
        f"{key} parallel.gradient_communication.average_every=any "
        "parallel.gradient_communication.scheme=local_sgd",
        "no multiple; between averages each rank has parameters of its own; use {}",
        next_average,
    )


def _only(option: str, chooser: str, values: str, *, required: bool = False) -> list[Rule]:
    """Refusals of an option that only some values of the key `chooser` read, or also need; a plug-in may read
    any."""
    use = f"leave it out, or use {chooser}={either(values.split('|'))}"
    missing = [Rule(f"{chooser}={values} {option}=null", "give both")] if required else []
    return [*missing, Rule(f"{option} {chooser}!={values}", use, is_built_in(chooser), NO_EFFECT)]


def _reads(kind: str, scheme: Builder, option: str) -> bool:
    return option in scheme.types or (option == "warmup_steps" and kind != "none")


REFUSALS: Sequence[Rule] = (
    Rule(
        "train.steps=any train.epochs=any",
        "give exactly one of them",
        lambda c: (c.train.steps is None) == (c.train.epochs is None),
    ),
    Rule("train.local_batch_size=null train.global_batch_size=null", "give one of them, or both"),
    Rule(
        "train.accumulation train.local_batch_size=auto",
        "the size that fits determines it; leave it out, or give train.global_batch_size in its place",
    ),
    Rule(
        "profile.steps train.steps=any",
        "give first and last step, in order and within the run",
        _profile_is_outside,
    ),
    Rule(
        f"profile.ranks=any profile.steps {_RANKS}",
        "the run has no such rank; use at most {}",
        lambda c: max(c.profile.ranks, default=0) >= c.world_size and str(c.world_size - 1),
    ),
    Rule("resources.runs_per_node!=1 resources.nodes!=1", "only runs of one node share a job; use 1"),
    # --- strategies
    Rule(
        f"parallel.strategy=single {_RANKS}",
        "single has 1 rank; use ddp or auto",
        lambda c: c.world_size > 1,
    ),
    Rule(
        "parallel.strategy=dp resources.nodes!=1",
        "dp is one process on the GPUs of one node; use ddp or auto",
    ),
    Rule(
        "resources.device=shared parallel.strategy=dp resources.gpus_per_node!=1",
        "shared is one GPU, and dp divides the batch among several; use cuda or auto",
    ),
    Rule(
        "parallel.ddp.sync_batch_norm=true parallel.strategy!=auto|ddp|single",
        "use ddp, or model.transforms=[group_norm]",
    ),
    Rule(
        "parallel.ddp.static_graph=true parallel.ddp.find_unused_parameters=true",
        "the first step of a static graph shows the unused parameters; leave one of them out",
    ),
    Rule(
        "parallel.ddp.first_bucket_mb parallel.ddp.find_unused_parameters=true",
        "PyTorch would apply the size to the last bucket; leave one of them out",
    ),
    Rule(
        f"parallel.pipeline.stages=any parallel.strategy=pipeline {_RANKS}",
        "the stages do not divide the ranks; {}",
        _numbers_of_stages,
    ),
    Rule(
        "parallel.pipeline.stages=any parallel.strategy=pipeline model.kind=gpt model.layers=any",
        "each stage needs a layer; use a model.layers of at least {}",
        lambda c: (c.model.model_extra or {}).get("layers", c.stages) < c.stages and c.stages,
    ),
    Rule(
        "parallel.strategy=pipeline model.kind=gpt model.tie_weights=true",
        "the first stage has the embedding, the last one the output layer; use model.tie_weights=false",
    ),
    Rule(
        "parallel.strategy=pipeline model.kind=mlp|resnet|emulated|huggingface",
        "the model cannot be split; use model.kind=gpt, or another strategy",
    ),
    Rule(
        "resources.device=shared parallel.strategy=pipeline",
        "ranks on one GPU use gloo, which sends no GPU tensors from stage to stage; use cuda or cpu",
    ),
    Rule(
        "parallel.backend=gloo parallel.strategy=pipeline resources.device!=cpu",
        "gloo sends no GPU tensors from stage to stage; use auto, or resources.device=cpu",
    ),
    Rule("parallel.backend=nccl resources.device=cpu", "NCCL needs GPUs; use gloo or auto"),
    Rule(
        "telemetry.layer_passes parallel.strategy=fsdp|hsdp|pipeline",
        "layers are timed where each rank has whole ones; use single or ddp",
    ),
    Rule(
        f"parallel.hsdp.shard_size parallel.strategy=hsdp {_RANKS}",
        "does not divide the ranks; use {}",
        lambda c: c.world_size % (c.parallel.hsdp.shard_size or 1) and either(_divisors(c.world_size)),
    ),
    Rule(
        "optim.fused=true optim.name=sgd parallel.strategy=fsdp|hsdp",
        "PyTorch has no fused SGD for sharded parameters; leave optim.fused out, or use optim.name=adamw",
    ),
    Rule(
        "model.transforms=any parallel.strategy=fsdp|hsdp",
        "channels_last makes parameters non-contiguous, which cannot be sharded; use ddp",
        lambda c: "channels_last" in c.model.transforms,
    ),
    Rule(
        "parallel.fsdp.cpu_offload=true parallel.strategy!=fsdp|hsdp",
        "only shards are moved; use fsdp, or memory.offload_activations for a model that is whole",
    ),
    Rule(
        "parallel.fsdp.cpu_offload=true parallel.strategy=fsdp|hsdp resources.device=cpu",
        "needs a GPU; on a CPU shards are in host memory already; leave it out",
    ),
    # --- communication of gradients
    Rule(
        "parallel.gradient_communication.scheme!=none parallel.strategy!=auto|ddp",
        "only gradients of ddp have a communication hook; use parallel.strategy=ddp, or "
        "parallel.gradient_communication.scheme=none",
    ),
    *(
        rule
        for name in ("warmup_steps", "rank", "warm_start", "ratio", "error_feedback", "average_every")
        for rule in _only(
            f"parallel.gradient_communication.{name}",
            "parallel.gradient_communication.scheme",
            "|".join(
                kind for kind, scheme in built_in("parallel/schemes").items() if _reads(kind, scheme, name)
            ),
        )
    ),
    Rule(
        "precision.dtype=fp16 parallel.gradient_communication.scheme=topk|randomk|powersgd "
        "parallel.gradient_communication.error_feedback=true",
        "fp16 changes the scale of the gradients, of which a part is kept for the next step; use "
        "precision.dtype=bf16",
    ),
    Rule(
        "precision.dtype=fp16 parallel.gradient_communication.scheme=local_sgd",
        "fp16 skips steps on all ranks together, which local SGD cannot; use precision.dtype=bf16",
    ),
    Rule(
        "precision.on_non_finite!=ignore parallel.gradient_communication.scheme=local_sgd",
        "needs the same gradients on all ranks; use precision.on_non_finite=ignore",
    ),
    _between_averages("checkpoint.every_steps"),
    _between_averages("train.eval_every"),
    # --- models and data
    Rule(
        "model.width=any model.kind=gpt model.heads=any",
        "the width must be a multiple of 2 x heads; use {}",
        _fitting_sizes,
    ),
    Rule(
        "model.path=any model.kind=huggingface model.model_type=any",
        "give exactly one of path and model_type",
        lambda c: sum(bool((c.model.model_extra or {}).get(name)) for name in ("path", "model_type")) != 1,
    ),
    Rule("data.kind=any model.kind=any", "{}", _other_data),
    Rule("data.shape=[] data.kind=synthetic", "give one size or more"),
    # --- optimizer, precision, batch
    *_only("optim.step_every", "optim.schedule", "step", required=True),
    *_only("optim.restart_every", "optim.schedule", "cosine_restarts", required=True),
    *_only("optim.lr_base_batch", "optim.lr_scaling", "linear|sqrt", required=True),
    *_only("optim.restart_factor", "optim.schedule", "cosine_restarts"),
    Rule(
        "optim.warmup_steps=any train.steps=any optim.schedule!=constant",
        "the warm-up leaves no step for the schedule; use at most {}, or optim.schedule=constant",
        lambda c: c.optim.warmup_steps >= (c.train.steps or 1 << 62) > 1 and (c.train.steps or 0) - 1,
    ),
    Rule("precision.dtype=tf32 resources.device=cpu", "needs a GPU; use fp32 or bf16"),
    Rule(
        "precision.on_non_finite!=skip precision.dtype=fp16",
        "fp16 skips steps while it adapts its loss scale; use skip, or precision.dtype=bf16",
    ),
    *_only("precision.max_skipped", "precision.on_non_finite", "skip"),
    Rule("train.local_batch_size=auto parallel.strategy=pipeline", "give a number"),
    Rule(
        "train.local_batch_size=auto model.kind=emulated",
        "an emulated model has no activations that could fit or not; give a number",
    ),
    # --- memory
    *_only("memory.every_blocks", "memory.activation_checkpointing", "every-n", required=True),
    Rule(
        "memory.activation_checkpointing!=none model.kind=emulated",
        "an emulated model has no activations; give its layers the longer backward_s instead",
    ),
    Rule("memory.activation_checkpointing parallel.strategy=dp", "use ddp"),
    Rule("memory.offload_activations parallel.strategy=dp", "use ddp"),
    Rule("memory.loss_chunk_tokens parallel.strategy=dp", "use ddp"),
    Rule(
        "memory.offload_activations=true parallel.strategy=fsdp|hsdp|pipeline",
        "needs a model that is whole on each rank; use memory.activation_checkpointing",
    ),
    Rule(
        "memory.offload_activations=true compile.scope!=none",
        "use memory.activation_checkpointing, or compile.scope=none",
    ),
    Rule(
        "memory.offload_activations=true resources.device=cpu",
        "needs a GPU; use memory.activation_checkpointing",
    ),
    Rule("memory.loss_chunk_tokens model.kind!=gpt", "use model.kind=gpt, or leave it out"),
    Rule("memory.loss_chunk_tokens parallel.strategy=pipeline", "use another strategy, or leave it out"),
    Rule("memory.loss_chunk_tokens compile.scope=model", "use compile.scope=none or blocks"),
    # --- compilation and attention
    *_only("compile.backend", "compile.scope", "blocks|model"),
    *_only("compile.mode", "compile.scope", "blocks|model"),
    *_only("compile.fullgraph", "compile.scope", "blocks|model"),
    *_only("compile.dynamic", "compile.scope", "blocks|model"),
    Rule(
        "compile.mode compile.backend!=inductor compile.scope!=none",
        "modes are those of inductor; use compile.backend=inductor, or leave compile.mode out",
    ),
    Rule("compile.scope!=none model.kind=emulated", "there is nothing to compile; use none"),
    Rule(
        "compile.scope!=none telemetry.layer_passes",
        "a compiled layer cannot be timed; use compile.scope=none",
    ),
    Rule("compile.scope!=none parallel.strategy=dp", "dp copies the model in every step; use ddp"),
    Rule(
        "compile.mode=reduce-overhead|max-autotune parallel.strategy=fsdp|hsdp",
        "CUDA graphs need parameters at fixed addresses, and shards are gathered anew; use default or "
        "max-autotune-no-cudagraphs",
    ),
    Rule("compile.scope=model parallel.strategy=fsdp|hsdp|pipeline", "use compile.scope=blocks"),
    Rule(
        f"compile.scope=model memory.activation_checkpointing!=none {_RANKS}",
        "recomputation does not allow the splits of the graph at DDP's buckets; use compile.scope=blocks",
        lambda c: c.world_size > 1,
    ),
    Rule(
        f"compile.scope=model parallel.ddp.bucket_mb {_RANKS}",
        "the graph is split at DDP's buckets, the first of 1 MiB; use at least 1, or compile.scope=blocks",
        lambda c: c.world_size > 1 and (c.parallel.ddp.bucket_mb or 1) < 1,
    ),
    Rule(
        "train.attention!=auto model.kind=mlp|resnet|emulated",
        "the model has no attention; leave it out",
    ),
    Rule("train.attention=cudnn|efficient resources.device=cpu", "use flash or math"),
    Rule(
        "train.attention=cudnn|flash precision.dtype=fp32|tf32 model.kind=gpt|huggingface "
        "resources.device!=cpu",
        "on a GPU the kernel computes in bf16 or fp16; use efficient or math, or precision.dtype=bf16",
    ),
    Rule(
        "train.attention=flash resources.device=cpu model.kind=gpt model.dropout!=0|null",
        "dropout needs a GPU; use math or auto, or model.dropout=0",
    ),
    # --- keys of a command
    *(
        Rule(f"job.{key}", f"it is for a command; this project's trainer {why}", verb="has no effect")
        for key, why in {
            "stop_signal": "gets signals of its own",
            "workdir": "writes into its run directory alone",
            "launcher": "is started by torchrun",
            "resume_args": "resumes by itself",
            "script_step_timeout_s": "has job.step_timeout_s",
            "idle_timeout_min": "has job.step_timeout_s",
        }.items()
    ),
)
OF_THE_BATCH: Sequence[Rule] = (
    Rule(
        "train.local_batch_size=any train.global_batch_size=any parallel.strategy=pipeline "
        "parallel.pipeline.stages=any parallel.pipeline.schedule=1f1b",
        "a replica needs a micro-batch for each stage; use {}, or parallel.pipeline.schedule=gpipe",
        _sizes_of_micro_batches,
    ),
)
"""Rules for a config with both batch sizes."""


def refused(config: Config, rules: Sequence[Rule] = REFUSALS) -> list[str]:
    """The message of the first rule that applies, for each key that one is about."""
    plain: Mapping[str, Any] = config.as_dict()
    messages: dict[str, str] = {}
    for rule in rules:
        key = rule.keys[0]
        if key not in messages and (result := rule.applies(config, plain)):
            messages[key] = rule.message([plain], result)
    return [*messages.values()]


def refusal_with(config: Config, section: str, **values: Any) -> str | None:
    """The first message by which these values of a section are refused with the others; None without one."""
    changed = {f"{section}.{name}" for name in values}
    rules = [rule for rule in REFUSALS if not changed.isdisjoint(rule.keys)]
    return next(iter(refused(config.with_values(section, **values), rules)), None)
