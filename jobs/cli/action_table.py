"""Table, counts and exit code of the actions of `sweep`, `run` and `resume`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.cli.command_output import print_error
from jobs.cli.formatting import count, table
from jobs.submission.decide import Action, Kind

EXIT_RUNS_MISSING = 1
"""Exit code when a submission was refused, blocked or deferred, or a dry run's script was refused."""

_DISPLAYED: dict[Kind, str] = {
    "submit": "submitted",
    "retry": "submitted again",
    "up_to_date": "done",
    "in_progress": "in progress",
    "outdated": "outdated",
    "blocked": "blocked",
    "deferred": "deferred",
}
_WOULD: dict[Kind, str] = {"submit": "would submit", "retry": "would submit again"}
DRY_RUN = "dry run: nothing was written or submitted"
_OUTDATED = "outdated: done by other code than the current one, and kept; `clean --stale` moves such runs"


def action_table(actions: Sequence[Action], schedulers: Sequence[str], *, dry_run: bool = False) -> str:
    """One row per run, and the counts of the actions. Names include the sweep if there are several."""
    displayed = _DISPLAYED | _WOULD if dry_run else _DISPLAYED
    several = len({action.sweep for action in actions}) > 1
    names = [f"{action.sweep}/{action.name}" if several else action.name for action in actions]
    rows = [
        (displayed[action.kind], name, action.job_id or "", action.reason)
        for action, name in zip(actions, names, strict=True)
    ]
    lines = [
        table(("ACTION", "RUN", "JOB", "REASON"), rows),
        "",
        _counts(actions, displayed) + (f" (cluster: {', '.join(schedulers)})" if schedulers else ""),
    ]
    if any(action.kind == "outdated" for action in actions):
        lines.append(_OUTDATED)
    if dry_run:
        lines.append(DRY_RUN)
    return "\n".join(lines)


def actions_json(actions: Sequence[Action]) -> list[dict[str, str]]:
    """The actions in the output of `--json`, in the order of its runs."""
    return [
        {"sweep": action.sweep, "run": action.name, "action": action.kind, "reason": action.reason}
        for action in actions
    ]


def _counts(actions: Sequence[Action], displayed: Mapping[Kind, str]) -> str:
    """`3 runs: 1 submitted, 2 done`."""
    counts = Counter(action.kind for action in actions)
    parts = [f"{counts[kind]} {text}" for kind, text in displayed.items() if counts[kind]]
    return f"{count(len(actions), 'run')}: {', '.join(parts) or 'nothing to do'}"


def report_missing(actions: Sequence[Action]) -> int:
    """Print the numbers of runs that were blocked, or deferred by a limit on jobs; return the exit code."""
    blocked = sum(action.kind == "blocked" for action in actions)
    if blocked:
        print_error(f"{count(blocked, 'run')} blocked, for the reasons in the table")
    deferred = [action for action in actions if action.kind == "deferred"]
    if deferred:
        runs = count(len(deferred), "run")
        print_error(f"{runs} deferred: {deferred[0].reason}; the same command submits them later")
    return EXIT_RUNS_MISSING if blocked or deferred else 0
