"""Combinations of `train.attention` with other keys that cannot be run."""

from __future__ import annotations

from disttrain.config.config_tree import Config

_WITHOUT_ATTENTION = ("mlp", "resnet", "emulated")


def check_attention(config: Config) -> tuple[str, str] | None:
    """Dotted key and message of the refusal, as a check of `combinations`."""
    kernel, device, dtype = config.train.attention, config.resources.device, config.precision.dtype
    key, at = "train.attention", f"train.attention={kernel}"
    if kernel == "auto":
        return None
    if config.model.kind in _WITHOUT_ATTENTION:
        return key, f"{at}: model.kind={config.model.kind} has no attention; leave it out"
    if device == "cpu" and kernel in ("cudnn", "efficient"):
        return key, f"{at} needs a GPU, but resources.device=cpu; use flash or math"
    in_float32 = config.model.kind in ("gpt", "huggingface") and dtype in ("fp32", "tf32")
    if in_float32 and device != "cpu" and kernel in ("cudnn", "flash"):
        on_cpu = ", or resources.device=cpu" if (kernel, device) == ("flash", "auto") else ""
        return key, (
            f"{at} needs precision.dtype=bf16 or fp16 on a GPU, not {dtype}; use efficient or math, or "
            f"precision.dtype=bf16{on_cpu}"
        )
    return None
