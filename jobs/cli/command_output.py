"""Warnings and errors of a command, and its JSON document with `--json`, which docs/reference/json.md lists.

A verb calls `add_json`; `disttrain` prints the document when the verb has ended. With `--json`, text that the
verb prints on stdout is discarded, so that stdout holds nothing but JSON.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from disttrain.records.json_files import forbid_world_writes, to_json
from jobs.cli.terminal import plain_stream

if TYPE_CHECKING:
    from jobs.status.run_state import RunState

SCHEMA = 1
"""Version of the document: raised when a key is renamed or removed."""


@dataclass
class CommandOutput:
    """The document of one command. `stdout` is None without `--json`."""

    verb: str | None
    stdout: TextIO | None
    runs: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    keys: dict[str, Any] = field(default_factory=dict)
    is_stream: bool = False

    def end(self, exit_code: int, error: str | None = None) -> int:
        """Print `error` as a line on stderr, and the document with `--json`. Returns the exit code."""
        if error:
            print_error(f"error: {error}")
        if self.stdout is not None:
            text = to_json(self._document(exit_code), indent=None if self.is_stream else 2)
            self.stdout.write(text + "\n")
            self.stdout.flush()
        return exit_code

    def _document(self, exit_code: int) -> dict[str, Any]:
        message = "; ".join(self.errors) or f"exit code {exit_code}"
        return {
            "schema": SCHEMA,
            "verb": self.verb,
            "runs": self.runs,
            "warnings": self.warnings,
            **self.keys,
            "error": {"message": message, "exit_code": exit_code} if exit_code else None,
        }


_current = CommandOutput(None, None)


@contextlib.contextmanager
def command_output(verb: str | None, *, as_json: bool) -> Iterator[CommandOutput]:
    """The output of one command. With `as_json`, text that is printed to stdout is discarded.

    Printed text is `printable`, and no file of the command is for all users to write.
    """
    global _current
    _current = CommandOutput(verb, sys.stdout if as_json else None)
    forbid_world_writes()
    with (
        contextlib.redirect_stderr(plain_stream(sys.stderr)),
        contextlib.redirect_stdout(io.StringIO() if as_json else plain_stream(sys.stdout)),
    ):
        yield _current


def progress_stream() -> TextIO:
    """The stream for the progress of runs: stdout, or stderr with `--json`."""
    return sys.stdout if _current.stdout is None else sys.stderr


def print_warning(line: str) -> None:
    """Print a warning on stderr and add it to the document."""
    print(f"warning: {line}", file=sys.stderr, flush=True)
    _current.warnings.append(line)


def print_error(line: str) -> None:
    """Print a line on stderr and add it to the error message of the document."""
    print(line, file=sys.stderr, flush=True)
    _current.errors.append(line.removeprefix("error: "))


def add_json(states: Sequence[RunState] = (), **keys: Any) -> None:
    """Add runs to the document, and keys that only this verb has, which its `add_arguments` names."""
    _current.runs += [state.as_json() for state in states]
    _current.keys |= keys


def print_json_line(value: dict[str, Any]) -> None:
    """Print one line of a stream. The document follows as the last line."""
    _current.is_stream = True
    if _current.stdout is not None:
        _current.stdout.write(to_json(value) + "\n")
        _current.stdout.flush()
