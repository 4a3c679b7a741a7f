"""Options that need a GPU on each rank.

They are refused at submission with `resources.device=cpu`, and in the job where `resources.device=auto` finds
no GPU, before the process group starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from disttrain.config.config_tree import Config


@dataclass(frozen=True)
class GpuOption:
    """An option of a config that needs a GPU on each rank."""

    key: str
    given: str
    """The option and its value."""
    instead: str
    """Options that work on a CPU, after the cause."""

    def refusal(self, cause: str) -> str:
        """The message on a rank without a GPU, which `cause` describes."""
        return f"{self.given} needs a GPU, but {cause}{self.instead}"


def gpu_option(config: Config) -> GpuOption | None:
    """The first option that needs a GPU whatever the device; None without one.

    `precision.dtype` and the kernels of `train.attention` are checked on each device, whose generation also
    counts.
    """
    parallel, dropout = config.parallel, (config.model.model_extra or {}).get("dropout")
    if parallel.fsdp.cpu_offload and parallel.strategy in ("fsdp", "hsdp"):
        key = "parallel.fsdp.cpu_offload"
        return GpuOption(key, f"{key}=true", ", where shards are in host memory already; leave it out")
    if parallel.backend == "nccl":
        return GpuOption("parallel.backend", "parallel.backend=nccl", "; use gloo or auto")
    if config.memory.offload_activations:
        key = "memory.offload_activations"
        return GpuOption(key, f"{key}=true", "; use memory.activation_checkpointing")
    if config.train.attention == "flash" and config.model.kind == "gpt" and dropout:
        given = f"train.attention=flash with model.dropout={dropout:g}"
        return GpuOption("train.attention", given, "; use math or auto, or model.dropout=0")
    return None


def check_gpu_options(config: Config) -> tuple[str, str] | None:
    """Dotted key and message of the refusal on a CPU, as a check of `combinations`."""
    option = gpu_option(config)
    if config.resources.device != "cpu" or option is None:
        return None
    return option.key, option.refusal("resources.device=cpu")
