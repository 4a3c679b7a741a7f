"""The batch log of a run, and the line of it that explains why a job ended before its agents started.

The batch log holds the output of a job outside its attempts: of the set-up in the batch script, of the
scheduler's launcher, and of agents that could not claim their attempt. Standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path

from jobs.core import journal
from jobs.core.log_text import shortened
from jobs.schedulers import names
from jobs.schedulers.interface import Scheduler
from jobs.schedulers.select import scheduler_named
from jobs.status.run_state import RunState

_MAX_LINES = 50
"""Number of last lines among which an error is searched. An older error was survived."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SCRIPT = re.compile(r"^/\S*: (?=line \d+: )")
"""bash's prefix of its own errors: the path of the node's copy of the script."""
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):|^  File \"")
_LMOD = re.compile(r"^Lmod has detected the following error:.*(?:\n(?!\s).+)*", re.MULTILINE)
"""An error of Lmod, which breaks its lines at 80 columns."""
_ERROR = re.compile(
    r"error|exception|fatal|not found|no such|cannot|can't|could not|couldn't|unable to|failed|failure"
    r"|denied|refused|invalid|illegal|unknown|unrecognized|unsupported|unbound|not permitted|no space|quota"
    r"|killed|segmentation|abort|bad interpreter",
    re.IGNORECASE,
)
_STEP_REFUSED = re.compile(r"^srun: error: Unable to create step")
"""The step after a failure may be refused, too. So another error has precedence."""
_NO_ERROR = re.compile(r"\b(warning|info|notice)\b|\b(0|no) (errors|failures)\b", re.IGNORECASE)


def batch_log_of(state: RunState, scheduler: Scheduler | None = None) -> Path | None:
    """The batch log of a run's newest submission; None if its job has written none."""
    if state.job_id is None or state.cluster not in names():
        return None
    scheduler = scheduler or scheduler_named(state.cluster)
    number = state.submission if state.submission is not None else journal.next_submission(state.run) - 1
    path = scheduler.batch_log(state.run, number, state.job_id)
    return path if path.exists() else None


def error_line(log: str, consequence: re.Pattern[str]) -> str | None:
    """The line of a batch log that gives the reason of a failure; None for an empty log.

    The last line that reads as an error, else the last line. A line that ends in a colon includes the next
    one. Lines that match `consequence` count only where the log has no other line.
    """
    lines = _cleaned(log)
    reasons = [line for line in lines if not consequence.search(line)] or lines
    if not reasons:
        return None
    recent = range(max(0, len(reasons) - _MAX_LINES), len(reasons))
    errors = [index for index in recent if _is_error(reasons[index])]
    errors = [index for index in errors if not _STEP_REFUSED.search(reasons[index])] or errors
    index = errors[-1] if errors else len(reasons) - 1
    following = reasons[index + 1 : index + 2] if reasons[index].endswith(":") else []
    return shortened(" ".join([reasons[index], *following]))


def last_line(log: str, consequence: re.Pattern[str]) -> str | None:
    """The last line of a batch log that does not match `consequence`; None without one."""
    lines = [line for line in _cleaned(log) if not consequence.search(line)]
    return shortened(lines[-1]) if lines else None


def step_refusal(log: str, consequence: re.Pattern[str]) -> str | None:
    """The line by which the scheduler refused the last step of a job; None if the log ends otherwise."""
    line = last_line(log, consequence)
    return line if line and _STEP_REFUSED.search(line) else None


def _is_error(line: str) -> bool:
    return _ERROR.search(line) is not None and _NO_ERROR.search(line) is None


def _cleaned(log: str) -> list[str]:
    """The lines of a log without escape sequences, empty lines and the frames of tracebacks."""
    text = _LMOD.sub(lambda error: " ".join(error[0].split()), _ESCAPES.sub("", log))
    lines = (_SCRIPT.sub("", line).rstrip() for line in text.splitlines())
    return [line for line in lines if line and not _TRACEBACK.search(line)]
