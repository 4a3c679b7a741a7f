"""Figures of `quoted.yaml` that others report: shown beside measured ones, not compared with them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import yaml

_FOUND = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

COMMUNICATION = {name: SimpleNamespace(**row) for name, row in _FOUND["communication"].items()}
"""By the name of the form in `disttrain.comm_bench.ddp_steps.FORMS` that resembles it most."""
SCALING, STRATEGIES, PRECISION = (
    [SimpleNamespace(**row) for row in _FOUND[name]] for name in ("scaling", "strategies", "precision")
)
BUCKETS: str = _FOUND["buckets"]
