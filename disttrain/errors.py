"""The exceptions that callers tell apart: input that is wrong, and an attempt that is over."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_BAD_INPUT = 2


class ConfigError(ValueError):
    """Bad input. The message is one line naming the field, its value and what is allowed.

    Entry points print it after `error: ` and exit with `EXIT_BAD_INPUT`.
    """

    def __init__(self, message: str, *, at: str | None = None) -> None:
        text = " ".join(message.split())
        super().__init__(f"{at}: {text}" if at else text)


class Superseded(RuntimeError):
    """A later attempt of this run has begun, so this one must not write any more."""


def in_one_line(error: BaseException) -> str:
    """What went wrong: the kind and the message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest allowed word, or an empty string."""
    candidates = list(allowed)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not close:  # a key may be right in its last part alone: `batch_size` for `train.local_batch_size`
        leaves = {candidate.rsplit(".", 1)[-1]: candidate for candidate in candidates}
        found = difflib.get_close_matches(word.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.6)
        close = [leaves[found[0]]] if found else []
    return f"; did you mean '{close[0]}'?" if close else ""
