"""Emulated model: its layers take stated seconds instead of computing (docs/emulation.md)."""

from __future__ import annotations

from typing import Any, Literal

from disttrain.data.source import Source
from disttrain.errors import ConfigError
from disttrain.models.emulation.model import Emulated, Speed
from disttrain.models.emulation.table import Table, parse, uniform
from disttrain.runtime.rank_info import rank_info

FILE_OPTIONS = ("table",)
"""Options that may name a YAML or JSON file; the run stores the content of the file."""
_ALL_STEPS = None
"""Default of `slow_steps`. A default that is a name is left to `build`: configs without the option keep their
run keys."""


def build(
    source: Source,
    *,
    table: str | list[Any] | dict[str, Any] | None = None,
    layers: int = 8,
    layer_mb: float = 4.0,
    forward_s: float = 0.16,
    backward_s: float = 0.32,
    dtype_bytes: Literal[2, 4] = 4,
    optimizer_s: float | None = None,
    jitter_s: float = 0.0,
    slow_ranks: tuple[int, ...] = (),
    slow_s: float = 0.0,
    slow_factor: float = 1.0,
    slow_steps: tuple[int, int] | None = _ALL_STEPS,
    seed: int = 0,
) -> Emulated:
    """Layers that take stated seconds, with real parameters, gradients and communication.

    Parameters
    ----------
    table : a file (.yaml, .json) or its content: layers with name, bytes, forward_s and backward_s, and
        shared fields (docs/emulation.md). Null: equal layers from the next four options.
    layers : number of equal layers, without `table`.
    layer_mb : parameters of each equal layer, in MiB.
    forward_s, backward_s : seconds of a whole pass through equal layers, for any batch size.
    dtype_bytes : bytes of a parameter and its gradient: 4 for float32, 2 for bfloat16; not with a file.
    optimizer_s : seconds of an emulated optimizer, which leaves the parameters unchanged. Null: the value of
        the file, or else the real optimizer of `optim`.
    jitter_s : standard deviation of the seconds of a forward and a backward pass together: normal, drawn for
        each step and rank from `seed`; one factor for all layers.
    slow_ranks : ranks to which slow_s and slow_factor apply; ranks beyond the world are ignored.
    slow_s : additional seconds of a forward and a backward pass together on slow ranks.
    slow_factor : factor of the layers' seconds on slow ranks.
    slow_steps : first and last step in which slow_s and slow_factor apply, by default all.

    Raises
    ------
    ConfigError : an option is out of range, or the table is wrong or has no parameters.
    """
    found = _table(table, (layers, layer_mb, forward_s, backward_s), dtype_bytes)
    seconds = {"jitter_s": jitter_s, "slow_s": slow_s, "optimizer_s": optimizer_s or 0.0}
    _check_options(seconds, slow_ranks, slow_factor, slow_steps)
    if optimizer_s is not None:
        found = found.model_copy(update={"optimizer_s": optimizer_s})
    rank = rank_info().rank
    slow_s, slow_factor = (slow_s, slow_factor) if rank in slow_ranks else (0.0, 1.0)
    return Emulated(found, source, Speed(rank, jitter_s, slow_s, slow_factor, slow_steps, seed))


def _check_options(
    seconds: dict[str, float],
    slow_ranks: tuple[int, ...],
    slow_factor: float,
    slow_steps: tuple[int, int] | None,
) -> None:
    for name, value in seconds.items():
        if value < 0:
            raise ConfigError(f"model.{name}={value}: must not be negative")
    if slow_factor <= 0:
        raise ConfigError(f"model.slow_factor={slow_factor}: must be more than 0")
    if slow_steps is not None:
        if not 1 <= slow_steps[0] <= slow_steps[1]:
            raise ConfigError(f"model.slow_steps={list(slow_steps)}: first step from 1 on, then last step")
        if not seconds["slow_s"] and slow_factor == 1.0:
            raise ConfigError("model.slow_steps needs model.slow_s or model.slow_factor: how slow?")
    if not slow_ranks and (seconds["slow_s"] or slow_factor != 1.0):
        raise ConfigError("model.slow_s and model.slow_factor need model.slow_ranks: which ranks?")


def _table(
    table: str | list[Any] | dict[str, Any] | None, equal: tuple[int, float, float, float], dtype_bytes: int
) -> Table:
    """The table of the options. Raises `ConfigError` for a table without parameters."""
    if isinstance(table, str):  # the config holds the content of a file
        raise ConfigError(f"model.table={table!r}: needed is a file (.yaml, .yml, .json), or layers")
    found = uniform(*equal).model_copy(update={"dtype_bytes": dtype_bytes}) if table is None else parse(table)
    if not found.bytes:
        raise ConfigError("model.table has no parameters: give at least one layer some bytes")
    return found
