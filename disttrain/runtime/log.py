"""Logging in logfmt: one line of `key=value` pairs per event, with time and rank."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

_logger = logging.getLogger("disttrain")


def open_log(rank: int, path: Path | None) -> None:
    """Log to `path`, and on rank 0 to stderr as well. Handlers of an earlier call are closed."""
    handlers: list[logging.Handler] = []
    if rank == 0:
        handlers.append(logging.StreamHandler(sys.stderr))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path))
    for old in _logger.handlers[:]:
        _logger.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.setFormatter(_Logfmt(rank))
        _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


def info(message: str, **fields: Any) -> None:
    """Log an event with its fields."""
    _logger.info(message, extra={"fields": fields})


def error(message: str, **fields: Any) -> None:
    """Log an error with its fields."""
    _logger.error(message, extra={"fields": fields})


class _Logfmt(logging.Formatter):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "rank": self._rank,
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())


def _quoted(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text and not any(c in text for c in ' "=\n\t')
    return text if plain else json.dumps(text)
