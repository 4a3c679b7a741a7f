"""Calls of Slurm's commands with a time limit, generic resources in their output, values that they read.

`--json` is not used. None means that Slurm did not answer, never that a job does not exist. Standard library
only.
"""

from __future__ import annotations

import os
import re
import subprocess
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from disttrain.errors import ConfigError, closest
from jobs.schedulers.inherited_variables import outside_job

TIMEOUT_S = 30.0
JOB_TIMEOUT_S = 5.0
"""Time limit of a query by the job itself, which Slurm may kill within seconds."""
_WRONG_OPTION = re.compile(r"\boption '--|Invalid --\S+ specification")
_NO_SCRIPT = re.compile("script is empty|No command given")
CONSEQUENCE = re.compile(
    r"^srun: (error: )?\S+: tasks? [\d,-]+: (Exited with|Terminated|Killed|exited abnormally)"
    r"|^srun: (Terminating|Force Terminated|Job step aborted|First task exited|forcing|got SIG|StepId=)"
    r"|^srun: (launch/slurm: )?_step_signal"
    r"|^srun: error: Timed out waiting for job step"
    r"|^(slurmstepd(-\S+)?|srun): error: \*\*\* (JOB|STEP) .* CANCELLED"
    r"|^slurmstepd(-\S+)?: error: (spank: |Failed to invoke spank)"
    r"|^slurmstepd(-\S+)?: error: pyxis: (couldn't start container|child \d+ failed)"
)
"""Lines by which srun, slurmstepd and pyxis report that a task ended. Its own last line has the reason."""
EPOCH = {"SLURM_TIME_FORMAT": "%s"}
"""Makes Slurm's commands print seconds since the epoch. The default is local time without a time zone."""


class SlurmCommandError(Exception):
    """A command failed or did not answer; the message is one line."""


def query(command: list[str], timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] = {}) -> str:
    """Standard output of a command. Raises `SlurmCommandError`."""
    try:
        done = subprocess.run(
            command,
            env={**outside_job(os.environ), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # a job's name or comment may have any bytes
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise SlurmCommandError(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmCommandError(f"{command[0]}: no answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Try ")]
        raise SlurmCommandError(
            said[-1].rpartition("error: ")[2] if said else f"{command[0]} failed without a message"
        )
    return done.stdout


def query_or_none(
    command: list[str], timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] = {}
) -> str | None:
    """Standard output of a command; None if `query` raises."""
    try:
        return query(command, timeout_s, environ)
    except SlurmCommandError:
        return None


def time(text: str) -> float | None:
    """A time as Slurm prints it under `EPOCH`; None for words such as `Unknown`."""
    return float(text) if text.isdigit() else None


def run_job_id(job_id: str, index: int | None, place: int | None) -> str:
    """Job id of a run: `7`, `7_3` in an array, `7/0` and `7_3/0` beside other runs of its job."""
    return job_id + ("" if index is None else f"_{index}") + ("" if place is None else f"/{place}")


def job_of(job_id: str) -> str:
    """Slurm's id of the job of a run."""
    return job_id.partition("/")[0]


def hostnames(nodelist: str) -> list[str] | None:
    """Names of the nodes in a node list, in Slurm's order."""
    listing = query_or_none(["scontrol", "show", "hostnames", nodelist])
    return None if listing is None else listing.split()


def describe(job_id: str) -> str | None:
    """Output of `scontrol show job -d`."""
    return query_or_none(["scontrol", "show", "job", "-d", job_id], timeout_s=10)


def controller_time() -> float | None:
    """The controller's clock, in seconds since the epoch; None if the controller does not answer."""
    found = re.search(
        r"^sdiag output at .*\((\d+)\)", query_or_none(["sdiag"], JOB_TIMEOUT_S) or "", re.MULTILINE
    )
    return float(found[1]) if found else None


def settings(timeout_s: float = JOB_TIMEOUT_S) -> dict[str, str]:
    """The controller's configuration; empty if the controller does not answer."""
    text = query_or_none(["scontrol", "show", "config"], timeout_s) or ""
    return dict(re.findall(r"^(\S+)[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))


def leading_number(text: str | None) -> int | None:
    """30 of `30 sec`; None without a number."""
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else None


def refusal(command: list[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Slurm's message in one line if it refuses a command or does not answer, else None."""
    try:
        query(command, timeout_s)
    except SlurmCommandError as why:
        return str(why)
    return None


def option_refusal(
    command: str, name: str, value: str | bool, reserved: Mapping[str, str] = {}
) -> str | None:
    """Why the installed sbatch or srun refuses an option, with the nearest name; None if it does not.

    `--version`, behind the option, starts no job. Without Slurm or its configuration, nothing is refused.
    """
    option = f"--{name}" if value is True else f"--{name}={value}"
    why = refusal([command, option, "--version"], JOB_TIMEOUT_S) or ""
    if _NO_SCRIPT.search(why):  # the option took `--version` as its value
        return "needs a value"
    if not _WRONG_OPTION.search(why):
        return None
    why = f"{command}: {why.removeprefix(f'{command}: ')}"
    if "unrecognized" not in why:
        return why
    listings = [query_or_none([command, flag], JOB_TIMEOUT_S) or "" for flag in ("--help", "--usage")]
    listed = re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])", "\n".join(listings))
    close = closest(name, sorted({*listed, *reserved}))
    if close is None:
        return why
    use = f" It is reserved: {reserved[close]}" if close in reserved else ""
    return f"{why}; did you mean '{close}'?{use}"


_COUNT = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)
_SCALES = "KMGTP"
_EMPTY = ("", "(null)", "N/A")
_FLAGS = ("no_consume",)


@dataclass(frozen=True)
class Gres:
    """One entry of a list of generic resources (GRES), in the spellings of commands and sites:

    | spelling | where |
    | --- | --- |
    | `gpu:h100:4`, `gpu:4`, `gpu` | `--gres`, gres.conf |
    | `gpu:nvidia_h100_80gb_hbm3:4(S:0-1)`, `gpu:h100:4(IDX:0-3)` | sinfo, scontrol |
    | `gres/gpu=8`, `gres/gpu:h100=8`, `gres:gpu:4` | AllocTRES, TresPerNode |
    | `h100:4`, `4`, `a100:1,v100:3`, `h100=4` | `--gpus-per-node`, `--gpus` |
    """

    name: str
    """`gpu`, `shard`, `nvme`; in lower case."""
    type: str | None
    count: int


def parse_gres(text: str) -> list[Gres]:
    """The entries of a list such as `gpu:h100:4(S:0-1),nvme:1`. An entry without a count has one."""
    return [_entry(part) for part in _parts(text)]


def parse_gpus(text: str) -> list[Gres]:
    """The entries of a list of GPUs alone, such as `h100:4` or `4`."""
    return [_entry(f"gpu:{part}") for part in _parts(text)]


def count_gpus(entries: Iterable[Gres]) -> int | None:
    """Number of GPUs; None without an entry of GPUs.

    An entry without a type counts the GPUs of all types where both are given, as in AllocTRES.
    """
    gpus = [each for each in entries if each.name == "gpu"]
    if not gpus:
        return None
    of_all_types = [each.count for each in gpus if each.type is None]
    return of_all_types[0] if of_all_types else sum(each.count for each in gpus)


def gpus_of_tres(text: str) -> int | None:
    """Number of GPUs in AllocTRES: 8 for `billing=8,gres/gpu=8,gres/gpu:h100=8`; None without `gres/gpu`."""
    return count_gpus(_entry(part) for part in _parts(text) if part.startswith("gres/"))


def _parts(text: str) -> list[str]:
    listed = re.sub(r"\([^)]*\)", "", "" if text.strip() in _EMPTY else text)  # (S:0-1), (IDX:0,2)
    return [part.strip() for part in listed.split(",") if part.strip()]


def _entry(text: str) -> Gres:
    name, *rest = re.split(r"[:=]", re.sub(r"^gres[/:]", "", text))
    words = [name, *(word for word in rest if word not in _FLAGS)]
    last = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
    count = 1
    if last is not None:
        count = int(last[1]) * 1024 ** (_SCALES.index(last[2].upper()) + 1 if last[2] else 0)
        words.pop()
    return Gres(words[0].lower(), ":".join(words[1:]) or None, count)


def clean(text: str) -> str:
    """Return `text`. Raises `ValueError` for a character that ends or garbles a line."""
    bad = next((char for char in text if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")), None)
    if bad is not None:
        raise ValueError(f"holds a control character ({bad!r}), which would end or garble its line")
    return text


def no_option(text: str) -> str:
    """Return `text`. Raises `ValueError` for a leading dash, which would make a command or file an option."""
    if clean(text).startswith("-"):
        raise ValueError("begins with a dash, like an option")
    return text


def check_path(what: str, path: Path, signs: str = "") -> None:
    """Raise `ConfigError` for a path that a script cannot contain, or with a character of `signs`."""
    try:
        clean(str(path))
        if "\\" in str(path):
            raise ValueError("holds a backslash, which switches Slurm's file patterns off")
        sign = next((sign for sign in signs if sign in str(path)), None)
        if sign:
            raise ValueError(f"holds {sign!r}, which ends a path among others")
    except ValueError as error:
        raise ConfigError(f"{what}: {str(path)!r} {error}") from None


def file_pattern(path: Path) -> str:
    """A path as a file pattern of Slurm, with each `%` escaped as `%%`."""
    return str(path).replace("%", "%%")


def sbatch_word(option: str, value: str) -> str:
    """A value as one argument of a `#SBATCH` line.

    sbatch splits such a line like a shell, with three exceptions: a backslash escapes within both kinds of
    quotes, an unquoted `#` ends the line, and sbatch expands nothing.
    """
    try:
        clean(value)
    except ValueError as error:
        raise ConfigError(f"--{option}={value!r} {error}") from None
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./&|*()\[\]!-]+", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
