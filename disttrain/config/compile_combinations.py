"""Combinations of `compile` with other sections that cannot be run."""

from __future__ import annotations

from disttrain.config.config_tree import Config
from disttrain.errors import as_text


def check_compilation(config: Config) -> tuple[str, str] | None:
    """Dotted key and message of the first refusal, as a check of `combinations`."""
    options, strategy = config.compile, config.parallel.strategy
    if options.scope == "none":
        changed = next((name for name in options.model_fields_set if name != "scope"), None)
        if changed and getattr(options, changed) != type(options).model_fields[changed].default:
            key = f"compile.{changed}"
            value = as_text(getattr(options, changed))
            return key, f"{key}={value} has no effect with compile.scope=none; use compile.scope=blocks"
        return None
    at = f"compile.scope={options.scope}"
    if options.mode != "default" and options.backend != "inductor":
        return "compile.mode", (
            f"compile.mode={options.mode} is a mode of compile.backend=inductor, not of {options.backend}; "
            "use compile.backend=inductor, or leave compile.mode out"
        )
    if config.model.kind == "emulated":
        return "compile.scope", f"{at}: model.kind=emulated has no operators to compile; use none"
    if config.telemetry.layer_passes:
        message = (
            f"{at} with telemetry.layer_passes={config.telemetry.layer_passes}: a compiled layer cannot be "
        )
        return "compile.scope", message + "timed; use compile.scope=none"
    if strategy == "dp":
        return "compile.scope", f"{at}: parallel.strategy=dp copies the model in every step; use ddp"
    sharded = strategy in ("fsdp", "hsdp")
    if sharded and options.mode in ("reduce-overhead", "max-autotune"):
        return "compile.mode", (
            f"compile.mode={options.mode} uses CUDA graphs, which need parameters at fixed addresses, but "
            f"parallel.strategy={strategy} gathers them anew; use default or max-autotune-no-cudagraphs"
        )
    if options.scope == "model" and (sharded or strategy == "pipeline"):
        return (
            "compile.scope",
            f"{at} does not go with parallel.strategy={strategy}; use compile.scope=blocks",
        )
    recomputes = config.memory.activation_checkpointing
    if options.scope == "model" and config.world_size > 1 and recomputes != "none":
        return "compile.scope", (
            f"{at} splits the graph at DDP's buckets, which memory.activation_checkpointing={recomputes} "
            "does not allow; use compile.scope=blocks"
        )
    bucket_mb = config.parallel.ddp.bucket_mb
    if options.scope == "model" and config.world_size > 1 and bucket_mb is not None and bucket_mb < 1:
        return "compile.scope", (
            f"{at} splits the graph at DDP's buckets, the first of 1 MiB, but "
            f"parallel.ddp.bucket_mb={bucket_mb:g}; use at least 1, or compile.scope=blocks"
        )
    return None
