"""`fabric lint`: judge the communication variables that a script, a file or a run sets.

Exit code 0: no finding of severity `error`; 1: at least one; 2: bad input.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from disttrain.config.masking import MASK, is_secret
from disttrain.errors import ConfigError, message_of
from jobs.cli.command_output import add_json
from jobs.cli.fabric_explain import checked_root
from jobs.cli.formatting import count
from jobs.fabric.derive import derive
from jobs.fabric.description import Fabric
from jobs.fabric.detect import detect, detect_here
from jobs.fabric.lint import Finding, FindingSeverity, lint, values_of
from jobs.fabric.registry import parse_version, registry
from jobs.fabric.settings import read_settings

EXIT_FINDINGS = 1


def run(args: argparse.Namespace) -> int:
    """Print the findings about a file; the exit code."""
    text, name = _read(args.file)
    if args.nccl:
        _check_version(args.nccl)
    fabric: Fabric | None = None  # a login node has another network than its nodes
    if args.root is not None:
        fabric = detect_here() if args.root == Path("/") else detect(checked_root(args.root))
    nccl = args.nccl or (fabric.software.nccl_version if fabric else None)
    read = read_settings(text, name)
    settings = {each: read.settings[each] for each in read.settings if registry().is_judged(each)}
    given = {name: each.value for name, each in settings.items() if each.is_literal}
    # two nodes stand for any number above one
    derived = derive(fabric, args.nodes or 2, len(fabric.gpus), given=given) if fabric else ()
    found = lint(
        settings,
        fabric=fabric,
        nodes=args.nodes,
        nccl_version=nccl,
        srun_network=read.srun_network,
        derived=values_of(derived),
    )
    if args.json:
        add_json(findings=[_masked(each) for each in found], checked=len(settings), nccl=nccl)
    else:
        for each in found:
            print(_line(each))
        print(_summary(len(settings), found, nccl))
    return EXIT_FINDINGS if any(each.severity is FindingSeverity.ERROR for each in found) else 0


def _read(file: str) -> tuple[str, str]:
    """Text and name of a file, or of standard input. Raises `ConfigError`."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig"), "standard input" if file == "-" else file
    except UnicodeDecodeError:
        raise ConfigError("not a text in UTF-8", at=file) from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or message_of(error)}", at="FILE") from None


def _check_version(text: str) -> None:
    try:
        is_version = len(parse_version(text)) > 1
    except ValueError:
        is_version = False
    if not is_version:
        raise ConfigError(f"{text!r} is not a version such as 2.27.5", at="--nccl")


def _masked(finding: Finding) -> dict[str, str | None]:
    return {**asdict(finding), "value": MASK if is_secret(finding.name) else finding.value}


def _line(finding: Finding) -> str:
    value = f"={_masked(finding)['value']}" if finding.value else ""
    source = f" ({finding.source})" if finding.source else ""
    head = f"{finding.origin}: {finding.severity} [{finding.kind}] {finding.name}{value}"
    return f"{head}: {finding.message}{source}"


def _summary(variables: int, found: list[Finding], nccl: str | None) -> str:
    version = f"NCCL {nccl}" if nccl else f"NCCL {registry().read_from['nccl']} (give another with --nccl)"
    numbers = {severity: sum(each.severity is severity for each in found) for severity in FindingSeverity}
    nouns = {FindingSeverity.ERROR: "error", FindingSeverity.WARNING: "warning", FindingSeverity.INFO: "note"}
    counts = ", ".join(count(numbers[each], noun) for each, noun in nouns.items() if numbers[each])
    return f"{count(variables, 'communication variable')} for {version}: {counts or 'no findings'}"
