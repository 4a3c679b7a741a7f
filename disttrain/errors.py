"""Exceptions that callers handle separately: invalid input, a superseded attempt, a faulty node."""

from __future__ import annotations

import difflib
import errno
import json
from collections.abc import Iterable
from typing import Any, TypeGuard

EXIT_BAD_INPUT = 2


class ConfigError(ValueError):
    """Invalid input. The message is one line that names the field, its value and the allowed values; of a
    config, a line for each mistake.

    Entry points print it after `error: ` and exit with `EXIT_BAD_INPUT`.
    """

    def __init__(self, message: str, *, at: str | None = None) -> None:
        text = " ".join(message.split())
        super().__init__(f"{at}: {text}" if at else text)

    @classmethod
    def of_all(cls, errors: Iterable[ConfigError | str]) -> ConfigError:
        """Several errors as one, with a line for each."""
        error = cls("")
        error.args = ("\n".join(map(str, errors)),)
        return error


class CorruptFile(ValueError):
    """A record that is not valid JSON; the message is one line that names the file."""


class Superseded(RuntimeError):
    """A later attempt of this run has begun; this attempt must stop writing."""


class NonFinite(RuntimeError):
    """Gradients contain NaN or infinity, and the config ends the run for it."""


class NodeFault(RuntimeError):
    """A node that cannot take part in a run: a start on other nodes may succeed. `rank` is its first rank."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def is_disk_full(error: BaseException) -> bool:
    """Whether the error means that the disk, or the user's quota, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_access_denied(error: BaseException) -> TypeGuard[OSError]:
    """Whether the error means that this user may not read or write a file, or that its disk is read-only."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def message_of(error: BaseException) -> str:
    """Message of an exception, in one line.

    A full disk is called that, with the path if it is known, also where it caused another exception: PyTorch
    reports a position in its file.
    """
    full = _disk_full_cause(error)
    if full is None:
        return " ".join(str(error).split())
    problem = "the disk is full" if full.errno == errno.ENOSPC else "the disk quota is used up"
    return f"{problem}: {full.filename}" if full.filename else problem


def in_one_line(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    return f"{type(error).__name__}: {message_of(error)}"


def _disk_full_cause(error: BaseException) -> OSError | None:
    """The error of a full disk among an exception and those that it followed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and is_disk_full(cause):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def as_text(value: Any) -> str:
    """A value as in YAML."""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return value if isinstance(value, str) else json.dumps(value)


def either(words: Iterable[object], before_last: str = "or") -> str:
    """`1, 2 or 4`"""
    *most, last = map(str, words)
    return f"{', '.join(most)} {before_last} {last}" if most else last


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` with the closest allowed word; empty without a close one."""
    close = closest(word, allowed)
    return f"; did you mean '{close}'?" if close is not None else ""


def closest(word: str, allowed: Iterable[str]) -> str | None:
    """The closest allowed word; None without a close one."""
    candidates = list(allowed)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not close:  # compare last parts only: `batch_size` for `train.local_batch_size`
        leaves = {candidate.rsplit(".", 1)[-1]: candidate for candidate in candidates}
        found = difflib.get_close_matches(word.rsplit(".", 1)[-1], leaves, n=1, cutoff=0.6)
        close = [leaves[found[0]]] if found else []
    return close[0] if close else None
