#!/usr/bin/env python
"""Submit, watch and report multi-node PyTorch training runs: `python submit.py --help`.

Each verb is a module of `jobs.cli`, imported when it is called. `jobs.cli.arguments` holds the arguments of
all verbs. It imports argparse and the version alone, so that help appears within 0.1 s.
"""

# ruff: noqa: E402 (the exception hook comes before the imports, which take most of the first 0.1 s)
from __future__ import annotations

import sys


def _print_unless_interrupt(kind: type[BaseException], *details: Any) -> None:
    """An exception hook: Ctrl-C outside of a verb ends this process without a traceback."""
    if kind is not KeyboardInterrupt:
        sys.__excepthook__(kind, *details)


if __name__ == "__main__":
    sys.excepthook = _print_unless_interrupt

import importlib
import os
from typing import Any

from jobs.cli.arguments import UsageError, build_parser

EXIT_BAD_INPUT = 2  # as `disttrain.errors.EXIT_BAD_INPUT`
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _run_verb(arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `submit.py status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from disttrain.errors import ConfigError

        if not isinstance(error, ConfigError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _run_verb(arguments: list[str]) -> int:
    given, unknown = build_parser().parse_known_args(arguments)
    if unknown:  # the verb's own parser suggests the nearest option
        given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if given.verb is None:  # not 0: a script whose verb is an empty variable must fail
        given.parser.print_help()
        return EXIT_BAD_INPUT
    given.argv = arguments
    return int(importlib.import_module(f"jobs.cli.{given.verb}").run(given))


if __name__ == "__main__":
    sys.exit(main())
