"""Exceptions that callers handle separately: invalid input, a superseded attempt, a faulty node."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_BAD_INPUT = 2


class ConfigError(ValueError):
    """Invalid input. The message is one line that names the field, its value and the allowed values.

    Entry points print it after `error: ` and exit with `EXIT_BAD_INPUT`.
    """

    def __init__(self, message: str, *, at: str | None = None) -> None:
        text = " ".join(message.split())
        super().__init__(f"{at}: {text}" if at else text)


class Superseded(RuntimeError):
    """A later attempt of this run has begun; this attempt must stop writing."""


class NodeFault(RuntimeError):
    """A node that cannot take part in a run: a start on other nodes may succeed. `rank` is its first rank."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def in_one_line(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` with the closest allowed word; empty without a close one."""
    candidates = list(allowed)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not close:  # compare last parts only: `batch_size` for `train.local_batch_size`
        leaves = {candidate.rsplit(".", 1)[-1]: candidate for candidate in candidates}
        found = difflib.get_close_matches(word.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.6)
        close = [leaves[found[0]]] if found else []
    return f"; did you mean '{close[0]}'?" if close else ""
