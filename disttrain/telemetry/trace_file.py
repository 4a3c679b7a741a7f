"""Export a profiler's trace, and write it as a file of the run directory."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.profiler import profile

from disttrain.records.json_files import write_bytes
from disttrain.telemetry.json_lines import drop_if_disk_full


def export_trace(profiler: profile) -> dict[str, Any]:
    """The trace of a profiler that has stopped. Raises `OSError`, `ValueError` or `RuntimeError`."""
    with tempfile.TemporaryDirectory(prefix="disttrain-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return dict(json.loads(path.read_bytes()))


def write_trace(path: Path, trace: Mapping[str, Any]) -> None:
    """Write `trace`, compressed with gzip. A full disk drops the file and logs an error."""
    with drop_if_disk_full():
        write_bytes(path, gzip.compress(json.dumps(trace).encode(), compresslevel=5), durable=False)
