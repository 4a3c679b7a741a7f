"""Batch scripts of a dry run, and the scheduler's answer to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.schedulers.base import Scheduler, ScriptPreview
from jobs.submission.choose_actions import Action
from jobs.submission.job_chains import JobChains
from jobs.submission.submit import PreparedRun, batch_of, prepare, submission_groups


def preview_scripts(
    actions: Sequence[Action],
    scheduler: Scheduler,
    root: Path,
    code: Mapping[str, Any],
    chains: JobChains | None,
    *,
    test: bool,
) -> list[ScriptPreview]:
    """Scripts that `carry_out` would submit now, one for each job or array.

    In place of the id of a job that does not exist yet, a script has `JOB_OF_<run>`. `code` is the record of
    the code (`records.Code`). With `test` the scheduler checks each script.
    Raises `ConfigError` when it cannot check them.
    """
    prepared = prepare(actions, scheduler, root, {"code": code})
    runs = [each for each in prepared if isinstance(each, PreparedRun)]
    batches = []
    for group in submission_groups(runs, scheduler.quota().array, chains) if runs else []:
        batches.append(batch_of(group, chains))
        if chains is not None:
            chains.add([f"JOB_OF_{each.run.name}" for each in group])
    return scheduler.previews(batches, test=test)


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


def scripts_text(previews: Sequence[ScriptPreview], scheduler: Scheduler) -> str:
    """Each script, followed by the scheduler's answer."""
    return "\n".join(_section(preview, scheduler) for preview in previews)


def _section(preview: ScriptPreview, scheduler: Scheduler) -> str:
    runs = preview.runs
    name = f"array of {', '.join(runs)}" if len(runs) > 1 else runs[0]
    text = f"batch script of {name}, profile {preview.profile}:\n\n{preview.script}"
    if preview.check is not None:
        verb = "accepts" if preview.check.accepted else "refuses"
        text += f"\n{scheduler.title} {verb} it: {preview.check.message}\n"
    return text
