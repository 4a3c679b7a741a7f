# PYTHON_ARGCOMPLETE_OK (the completion of the Tab key looks for this in the module of a command)
"""Submit, watch and report multi-node PyTorch training runs: the command `disttrain`.

Each verb is a module of `jobs.cli`, imported when it is called. At its top it imports argparse alone, so that
help appears within 0.1 s.
"""

# ruff: noqa: E402 (the exception hook comes before the imports, which take most of the first 0.1 s)
from __future__ import annotations

import sys


def _print_unless_interrupt(kind: type[BaseException], *details: Any) -> None:
    """An exception hook: Ctrl-C outside of a verb ends this process without a traceback."""
    if kind is not KeyboardInterrupt:
        sys.__excepthook__(kind, *details)


if sys.argv[0].endswith(("/disttrain", "submit.py")):
    sys.excepthook = _print_unless_interrupt

import argparse
import gc
import importlib
import os
from typing import Any

from jobs.cli.arguments import UsageError, build_parser, refuse_without_separator, verb_of

EXIT_BAD_INPUT = 2  # as `disttrain.errors.EXIT_BAD_INPUT`
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command line, by default that of this process, and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:
        # A sweep of 10,000 runs has millions of values that live to the end. By default, each full collection
        # of Python's garbage collector walks over all of them, for a quarter of the time.
        gc.set_threshold(100_000, 20, 100)
    try:
        try:
            given = _parse(arguments)
            if given is not None:
                return _run_verb(given)
        finally:
            sys.stdout.flush()  # raises here if the pipe is closed, not at the end of the interpreter
    except UsageError as error:
        return _refuse(error, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `disttrain status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    build_parser(()).print_help()
    return EXIT_BAD_INPUT  # not 0: a script whose verb is an empty variable must fail


def _parse(arguments: list[str]) -> argparse.Namespace | None:
    """The parsed arguments; None without a verb. Raises `UsageError`."""
    if "_ARGCOMPLETE" in os.environ:
        importlib.import_module("jobs.cli.completion").complete()
    own, command = _split_command(arguments)
    parser = build_parser(own[:1])
    if own[:1] and own[0].startswith("-") and own[0] not in parser._option_string_actions:
        parser.error(f"unrecognized arguments: {own[0]}")
    given, unknown = parser.parse_known_args(own)
    if given.verb in ("run", "sweep") and command is None:
        refuse_without_separator(own[1:], given.parser)
    if unknown:  # the verb's own parser suggests the nearest option
        given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    given.argv = arguments
    if given.verb in ("run", "sweep"):
        given.command = command or ()
    return None if given.verb is None else given


def _refuse(error: UsageError, arguments: list[str]) -> int:
    from jobs.cli.command_output import command_output

    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    with command_output(error.verb, as_json="--json" in options) as output:
        return output.end(EXIT_BAD_INPUT, str(error))


def _run_verb(given: argparse.Namespace) -> int:
    from disttrain.errors import (
        ConfigError,
        CorruptFile,
        in_one_line,
        is_access_denied,
        is_disk_full,
        message_of,
    )
    from jobs.cli.command_output import command_output

    with command_output(verb_of(given.parser), as_json=getattr(given, "json", False)) as output:
        try:
            return output.end(int(importlib.import_module(f"jobs.cli.{given.verb}").run(given)))
        except (ConfigError, CorruptFile) as error:
            return output.end(EXIT_BAD_INPUT, str(error))
        except KeyboardInterrupt:
            output.errors.append("interrupted")
            return output.end(EXIT_INTERRUPTED)
        except BrokenPipeError:
            raise
        except Exception as error:
            if is_disk_full(error):
                return output.end(1, message_of(error))
            if is_access_denied(error) and error.filename:
                return output.end(EXIT_BAD_INPUT, f"no access to {str(error.filename)!r}: {error.strerror}")
            if isinstance(error, ModuleNotFoundError):
                from jobs.cli.report import missing

                if line := missing([error.name]):
                    return output.end(EXIT_BAD_INPUT, line)
            output.errors.append(in_one_line(error))
            output.end(1)
            raise


def _split_command(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """The arguments of `run` or `sweep`, and the command after `--`; None without one."""
    if arguments[:1] not in (["run"], ["sweep"]) or "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]
