"""`doctor`: examine the cluster, this machine and the runs folder; print findings with the fix for each."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from disttrain.errors import ConfigError, message_of
from jobs import PROGRAM
from jobs.checks.finding import SEVERITIES, Severity, worst_first
from jobs.cli import options
from jobs.cli.command_output import add_json, print_error
from jobs.cli.formatting import count
from jobs.cli.terminal import Colour, has_colour, paint

if TYPE_CHECKING:
    from jobs.schedulers.interface import Diagnosis, Doctor

PROFILE = "site profile"
PROFILE_KEYS = (
    f"keys of the {PROFILE}: in a file for --profile (`{PROGRAM} doctor --write-profile mysite.yaml` drafts "
    "one), or each as --slurm KEY=VALUE"
)
"""Where a user sets a key that a fix names."""

_COLOURS: dict[Severity, Colour | None] = {"error": "red", "warning": "yellow", "note": None}
_KEYS = {name: name for name in ("severity", "key", "problem", "evidence")} | {"fix": "remedy"}
_WIDTH = 110
"""Columns of the text where the output is no terminal."""
_INDENT = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(
        parser,
        subject="the cluster or machine that was examined",
        facts="values that were read, by `host`, `runs` and `cluster`",
        findings="problems, worst first: `severity`, `key`, `problem`, `fix`, `evidence`",
        unchecked="checks that could not be made: `check`, `reason`",
        profile="`--write-profile`: the file written",
    )
    options.scheduler(parser)
    options.value(parser, "--python", "NAME", "the Python of the ranks to examine, as job.python names it")
    does = parser.add_mutually_exclusive_group()
    options.flag(does, "--job", "also examine a node, in a job of at most 5 minutes")
    text = "write a site profile drafted from the cluster's partitions and jobs (a new .yaml file)"
    options.value(does, "--write-profile", "FILE", text, type=Path)


def run(args: argparse.Namespace) -> int:
    """0 without errors, 1 with findings of severity error. Raises `ConfigError` for bad input."""
    from jobs.cli.selection import chosen_doctor

    doctor = chosen_doctor(args)
    if args.write_profile is not None:
        write_profile(args.write_profile, doctor)
        add_json(profile=str(args.write_profile))
        return 0
    if args.runs.exists() and not args.runs.is_dir():
        raise ConfigError(f"--runs={str(args.runs)!r} is a file; give a folder, which need not exist yet")
    if args.python is not None:
        from jobs.checks.host_facts import PYTHON_VARIABLE

        os.environ[PYTHON_VARIABLE] = args.python  # of the probes on this host and on a node
    diagnosis = doctor.diagnose(args.runs, job=args.job)
    findings, host = worst_first(diagnosis.findings), diagnosis.host
    add_json(
        subject=diagnosis.subject,
        facts={
            "host": host and {"name": host.host, "python": host.python, "packages": host.packages},
            "runs": host and {"path": host.folder, "file_system": host.mount},
            "cluster": diagnosis.cluster,
        },
        findings=[
            {name: getattr(finding, of_finding) for name, of_finding in _KEYS.items()} for finding in findings
        ],
        unchecked=[dataclasses.asdict(each) for each in diagnosis.unchecked],
    )
    print(diagnosis_text(diagnosis, _columns(), coloured=has_colour(sys.stdout)))
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        print_error(f"error: {count(errors, 'finding')} of severity error")
    return int(errors > 0)


def diagnosis_text(diagnosis: Diagnosis, columns: int, *, coloured: bool = False) -> str:
    """Findings, then checks that could not be made, wrapped to `columns`."""
    findings, width = worst_first(diagnosis.findings), max(40, columns)
    lines = [diagnosis.subject, ""]
    for finding in findings:
        text = _entry(finding.severity, finding.problem, width)
        colour = _COLOURS[finding.severity] if coloured else None
        lines.append(paint(finding.severity, colour) + text.removeprefix(finding.severity))
        for name, text in (("fix", finding.remedy), ("read", finding.evidence)):
            lines.append(_entry(" " * _INDENT + name, text, width, _INDENT + 6))
    if any(PROFILE in finding.remedy for finding in findings):
        lines += ["", _entry("", PROFILE_KEYS, width, 0)]
    if diagnosis.unchecked:
        lines += ["", "not checked:"]
        lines += [_entry("", f"{each.check}: {each.reason}", width, 2) for each in diagnosis.unchecked]
    counts = Counter(finding.severity for finding in findings)
    lines += ["", ", ".join(count(counts[severity], severity) for severity in SEVERITIES)]
    return "\n".join(lines)


def _entry(head: str, text: str, width: int, indent: int = _INDENT) -> str:
    """A text with a hanging indent behind its head."""
    return textwrap.fill(
        text,
        width,
        initial_indent=head.ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH


def write_profile(path: Path, doctor: Doctor) -> None:
    """Create the file of a new site profile, never over an existing one. Raises `ConfigError`."""
    flag = f"--write-profile={str(path)!r}"
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{flag} must end in .yaml or .yml")
    if os.path.lexists(path):
        raise ConfigError(f"{flag} exists already, and is not overwritten; name a new file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{flag}: no folder {str(path.absolute().parent)!r}")
    text = doctor.draft_profile()
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {message_of(error)}") from None
    name = str(path) if "/" in str(path) else f"./{path}"
    flag = f"--profile {shlex.quote(name)}"
    print(f"wrote {path}: check each line, then")
    print(f"  {PROGRAM} doctor {flag} --job")
    print(f"  {PROGRAM} sweep {flag} --dry-run --test-only")
