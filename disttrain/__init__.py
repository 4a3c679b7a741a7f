"""The trainer that runs on every rank, and the records of a run.

`disttrain.config`, `disttrain.records` and `disttrain.errors` import without torch. The launcher (`jobs`),
the sweep expander (`sweeps`) and the analysis (`analysis`) import only these parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disttrain.engine.own_loop import LoopTelemetry
    from disttrain.engine.trainer import Trainer

__version__ = "0.1.0"
__all__ = ["LoopTelemetry", "Trainer", "__version__"]


def __getattr__(name: str) -> Any:
    """Import `Trainer` and `LoopTelemetry` on first use, because they import torch.

    Raises `ConfigError` for a torch that is too old.
    """
    if name in ("LoopTelemetry", "Trainer"):
        from disttrain.runtime.torch_version import require_torch

        require_torch()
    if name == "Trainer":
        from disttrain.engine.trainer import Trainer

        return Trainer
    if name == "LoopTelemetry":
        from disttrain.engine.own_loop import LoopTelemetry

        return LoopTelemetry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
