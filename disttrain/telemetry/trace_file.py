"""Export a profiler's trace, and write it as a file of the run directory."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.profiler import profile

from disttrain.records.json_files import write_bytes
from disttrain.runtime.json_lines import drop_if_disk_full

_HOST_EVENT = re.compile('"cat": "(?:cpu_op|cuda_runtime|cuda_driver|python_function|ac2g|fwdbwd)"')
_BEGIN = "\n  {\n"
"""Begin of an event in Kineto's file."""


def export_trace(profiler: profile, *, for_collectives: bool = False) -> dict[str, Any]:
    """The trace of a profiler that has stopped (see `decode_trace`).

    Raises `OSError`, `ValueError` or `RuntimeError`.
    """
    with tempfile.TemporaryDirectory(prefix="disttrain-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return decode_trace(path.read_text(), for_collectives=for_collectives)


def decode_trace(text: str, *, for_collectives: bool = False) -> dict[str, Any]:
    """The trace in a file that Kineto wrote. Raises `ValueError` if it is not JSON.

    `for_collectives` leaves out operators, calls of the CUDA runtime, and links between events: a step of a
    large model has a hundred thousand of them, which take seconds to decode.
    """
    if for_collectives:
        try:
            return dict(json.loads(_without_host_events(text)))
        except ValueError:
            pass  # another layout of the file
    return dict(json.loads(text))


def _without_host_events(text: str) -> str:
    head, *events = text.split(_BEGIN)
    if not events:
        return text
    last = events.pop()  # with the end of the file
    kept = [event for event in events if not _HOST_EVENT.search(event)]
    return _BEGIN.join([head, *kept, last])


def write_trace(path: Path, trace: Mapping[str, Any]) -> None:
    """Write `trace`, compressed with gzip. A full disk drops the file and logs an error."""
    with drop_if_disk_full():
        write_bytes(path, gzip.compress(json.dumps(trace).encode(), compresslevel=5), durable=False)
