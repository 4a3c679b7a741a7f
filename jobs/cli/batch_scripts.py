"""Batch scripts of a dry run: one and the differences of the others, or all; the scheduler's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.cli.formatting import count, some_of
from jobs.schedulers.base import Scheduler, ScriptPreview


def script_json(preview: ScriptPreview, scheduler: Scheduler) -> dict[str, Any]:
    """One script in the output of `--json`."""
    check = preview.check
    return {
        "name": preview.name,
        "runs": list(preview.runs),
        "profile": preview.profile,
        "script": preview.script,
        "test": check and {"accepted": check.accepted, f"{scheduler.name}_says": check.message},
    }


def scripts_text(previews: Sequence[ScriptPreview], scheduler: Scheduler, *, every: bool) -> str:
    """The first script, and the options of the others that differ; with `every`, each script.

    The scheduler's answer to each script follows.
    """
    if every or len(previews) < 2:
        return "\n".join(_section(preview, scheduler) for preview in previews)
    parts = [_section(previews[0], scheduler), differences_text(previews)]
    answers = [
        f"{scheduler.title} {_verb(preview)} {_title(preview)}: {preview.check.message}"
        for preview in previews[1:]
        if preview.check is not None
    ]
    return "\n".join([*parts, *answers])


def differences_text(previews: Sequence[ScriptPreview]) -> str:
    """Options in which scripts differ from the first one, with the scripts that have them."""
    first, *others = previews
    groups: dict[tuple[str, ...], list[str]] = {}
    for preview in others:
        groups.setdefault(_difference(first.options, preview.options), []).append(_title(preview))
    lines = [
        f"{count(len(others), 'more script')}, for other runs (names, tags, folders and job ids differ; "
        "--all-scripts prints them), with these options:"
    ]
    for options, names in groups.items():
        lines.append(f"  {' '.join(options) or 'the same'}: {some_of(names, '; ')}")
    return "\n".join(lines)


def _difference(first: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    names = {option.partition("=")[0] for option in other}
    absent = [option.partition("=")[0] for option in first if option.partition("=")[0] not in names]
    return (*(option for option in other if option not in first), *(f"without {name}" for name in absent))


def _section(preview: ScriptPreview, scheduler: Scheduler) -> str:
    text = f"batch script of {_title(preview)}, profile {preview.profile}:\n\n{preview.script}"
    if preview.check is not None:
        text += f"\n{scheduler.title} {_verb(preview)} it: {preview.check.message}\n"
    return text


def _verb(preview: ScriptPreview) -> str:
    return "accepts" if preview.check and preview.check.accepted else "refuses"


def _title(preview: ScriptPreview) -> str:
    return preview.runs[0] if len(preview.runs) == 1 else f"array of {some_of(preview.runs)}"
