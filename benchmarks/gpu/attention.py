"""Attention operators in the trace of a profiled step: the backend that PyTorch chose."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

_PREFIX = "aten::_scaled_dot_product_"


def attention_operators(trace: Path) -> dict[str, int]:
    """Calls of each attention operator in the trace of a rank, by its name without `aten::`, such as
    `_scaled_dot_product_cudnn_attention`."""
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = (event["name"] for event in events if event.get("cat") == "cpu_op")
    return dict(Counter(name.removeprefix("aten::") for name in names if name.startswith(_PREFIX)))
