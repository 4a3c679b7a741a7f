"""A model that takes stated times instead of computing: an emulated accelerator (docs/emulation.md)."""

from __future__ import annotations

from typing import Any, Literal

from disttrain.data.source import Source
from disttrain.emulation import shapes
from disttrain.emulation.model import Emulated, Speed
from disttrain.emulation.table import Table, parse, uniform
from disttrain.errors import ConfigError
from disttrain.runtime.rank_info import rank_info

FILE_OPTIONS = ("table",)
"""Options that may name a YAML or JSON file; its content is what the run is planned with."""


def build(
    source: Source,
    *,
    table: str | list[Any] | dict[str, Any] | None = None,
    layers: int = 8,
    layer_mb: float = 4.0,
    forward_s: float = 0.16,
    backward_s: float = 0.32,
    rate_tflops: float | None = None,
    dtype_bytes: Literal[2, 4] = 4,
    optimizer_s: float | None = None,
    jitter_s: float = 0.0,
    slow_ranks: tuple[int, ...] = (),
    slow_s: float = 0.0,
    slow_factor: float = 1.0,
    slow_optimizer_s: float = 0.0,
    seed: int = 0,
    work: Literal["wait", "matmul"] = "wait",
) -> Emulated:
    """Layers that take stated seconds, with real parameters and gradients; everything around them is real.

    Parameters
    ----------
    table : a file (.yaml, .json) or the value itself: layers with name, bytes, forward_s and backward_s, and
        what is common to them (docs/emulation.md); or resnet50, gpt-124m, gpt-350m or gpt-1.3b, at
        `rate_tflops`. Null: equal layers, by the next options.
    layers : number of equal layers; this and the next three only without `table`.
    layer_mb : parameters of each, in MiB.
    forward_s, backward_s : seconds of a whole pass, for any batch size.
    rate_tflops : rate of the emulated device on a table known by name, in 1e12 FLOP/s.
    dtype_bytes : bytes of a parameter and its gradient: 4 for float32, 2 for bfloat16; not with a file.
    optimizer_s : seconds of an emulated optimizer, which leaves the parameters unchanged; null: the value of
        the file, or else the real one of `optim`.
    jitter_s : standard deviation, in seconds, of a forward and backward pass together: normal, drawn for each
        step and rank from `seed`; all layers stretch alike.
    slow_ranks : ranks that the next three apply to; ranks beyond the world are ignored.
    slow_s : additional seconds of a forward and backward pass together on these ranks.
    slow_factor : factor of the seconds of their layers.
    slow_optimizer_s : additional seconds of their emulated optimizer.
    work : wait leaves the processor to others (a GPU sleeps); matmul computes as long, calibrated at start.
    """
    found = _table(table, (layers, layer_mb, forward_s, backward_s), rate_tflops, dtype_bytes)
    seconds = {"jitter_s": jitter_s, "slow_s": slow_s, "slow_optimizer_s": slow_optimizer_s}
    _check_options(seconds | {"optimizer_s": optimizer_s or 0.0}, slow_ranks, slow_factor)
    rank = rank_info().rank
    slow = rank in slow_ranks
    if optimizer_s is None:
        optimizer_s = found.optimizer_s
    optimizer_s = _slowed_optimizer_s(optimizer_s, slow_optimizer_s, slow)
    found = found.model_copy(update={"optimizer_s": optimizer_s})
    slow_s, slow_factor = (slow_s, slow_factor) if slow else (0.0, 1.0)
    speed = Speed(rank=rank, jitter_s=jitter_s, slow_s=slow_s, slow_factor=slow_factor, seed=seed)
    return Emulated(found, source, speed, work)


def _check_options(seconds: dict[str, float], slow_ranks: tuple[int, ...], slow_factor: float) -> None:
    for name, value in seconds.items():
        if value < 0:
            raise ConfigError(f"model.{name}={value}: must not be negative")
    if slow_factor <= 0:
        raise ConfigError(f"model.slow_factor={slow_factor}: must be more than 0")
    if not slow_ranks and (seconds["slow_s"] or slow_factor != 1.0 or seconds["slow_optimizer_s"]):
        raise ConfigError(
            "model.slow_s, model.slow_factor and model.slow_optimizer_s need model.slow_ranks: which ranks?"
        )


def _slowed_optimizer_s(optimizer_s: float | None, slow_optimizer_s: float, slow: bool) -> float | None:
    """Seconds of the emulated optimizer on this rank; None for a real one."""
    if not slow_optimizer_s:
        return optimizer_s
    if optimizer_s is None:
        raise ConfigError(
            f"model.slow_optimizer_s={slow_optimizer_s}: the optimizer is a real one; "
            "give model.optimizer_s as well"
        )
    return optimizer_s + (slow_optimizer_s if slow else 0.0)


def _table(
    table: str | list[Any] | dict[str, Any] | None,
    equal: tuple[int, float, float, float],
    rate_tflops: float | None,
    dtype_bytes: int,
) -> Table:
    """The table of the options. Raises `ConfigError` where it has no parameters."""
    found = _read_table(table, equal, rate_tflops, dtype_bytes)
    if not found.bytes:
        raise ConfigError("model.table has no parameters: give at least one layer some bytes")
    return found


def _read_table(
    table: str | list[Any] | dict[str, Any] | None,
    equal: tuple[int, float, float, float],
    rate_tflops: float | None,
    dtype_bytes: int,
) -> Table:
    if table is None:
        return uniform(*equal).model_copy(update={"dtype_bytes": dtype_bytes})
    if isinstance(table, str):
        return shapes.known(table, rate_tflops, dtype_bytes)
    return parse(table)
