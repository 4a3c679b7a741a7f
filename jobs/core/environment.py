"""The environment of the ranks: variables to add, with a reason each, and variables to remove.

`env.json` records each added variable with its reason. Pure functions, standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.masking import MASK, is_secret
from disttrain.records.heartbeat import SCRIPT_TIMEOUT_VARIABLE
from disttrain.records.run_directory import (
    ATTEMPT,
    CHECKPOINT_DIR,
    RUN_DIR,
    SAVED,
    SAVED_NAME,
    STOP_SIGNAL,
    Attempt,
    RunDir,
)
from disttrain.records.tracking import tracking_variables

SETUP_EXIT_VARIABLE = "DISTTRAIN_NODE_SETUP_EXIT"
"""Variable of an agent with the exit code of its node's set-up, where that ended early. No rank can start."""
TRACE_PIPES = "nccl-"
"""Start of the names of the pipes, in the node's folder, at which NCCL's flight recorder writes its file."""
_CODE_ROOT = Path(__file__).resolve().parents[2]
_LAUNCHER = re.compile(
    r"(GROUP_|LOCAL_|ROLE_|NODE_)?RANK|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|(TORCHELASTIC|PET|OMPI|PALS|SUBMITIT)_.*|PMI.*"
)


@dataclass(frozen=True)
class AddedVariable:
    """One variable added to the environment of the ranks (`records.EnvVariable`)."""

    value: str
    reason: str
    source: str
    """`derived`, `config` or `site`."""
    evidence: str | None = None
    """Path or figure that a derived value rests on."""
    reference: str | None = None
    """Document that recommends a derived value."""
    since: str | None = None
    """First version of its library for which a derived value holds; None: all."""
    until: str | None = None
    """Last such version."""


@dataclass(frozen=True)
class InheritedVariable:
    """A communication variable that the ranks inherit, or that NCCL reads from a file."""

    value: str
    origin: str
    """`environment`, or the path of a file that NCCL reads."""


def added_variables(
    config: Mapping[str, Any],
    inherited: Mapping[str, str],
    *,
    one_machine: bool = False,
    code: Path = _CODE_ROOT,
    source: str | None = None,
    fabric: Mapping[str, AddedVariable] | None = None,
    profile: Mapping[str, Any] | None = None,
    search_path: Sequence[str] | None = None,
) -> dict[str, AddedVariable]:
    """Variables to add for a run. The site profile overrides the derived ones, `job.env` overrides both.

    Of the derived variables of the fabric, `jobs.node.node_environment` leaves out those that the inherited
    environment or a file of NCCL sets.

    Parameters
    ----------
    config, profile : from `run.json`
    inherited : the environment of the agent
    one_machine : all nodes are this machine, which connect over loopback
    code : root of the running code; it comes first in `PYTHONPATH`
    source : folder that the code was copied from; searched for the user's own modules, as are the inherited
        `PYTHONPATH` and the working directory
    fabric : variables that the network of this node needs
    search_path : module search path of a `command`; None for the trainer

    Each secret of `job.secrets` has a mask in place of its value (`secrets_file.values_of_run`).
    """
    if search_path is None:
        added = _python_variables(inherited, code, source)
    else:
        added = _command_python_variables(search_path, code, source)
    added |= _loopback_variables() if one_machine else dict(fabric or {})
    threads = str(config["resources"]["threads_per_rank"])
    added["OMP_NUM_THREADS"] = _derived(threads, "the same number of threads per rank at every node count")
    added["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = _derived(
        "600", "ranks finish their step and save before torchrun kills them"
    )
    for name, variable in (profile or {}).get("environment", {}).items():
        added[name] = AddedVariable(variable["value"], variable["reason"], "site")
    for name, value in config["job"]["env"].items():
        added[name] = AddedVariable(value, "job.env", "config")
    for name in config["job"].get("secrets") or ():  # not in the records of older code
        added[name] = AddedVariable(MASK, "job.secrets", "config")
    return added


def _derived(value: str, reason: str) -> AddedVariable:
    return AddedVariable(value, reason, "derived")


def _python_variables(
    inherited: Mapping[str, str], code: Path, source: str | None
) -> dict[str, AddedVariable]:
    """Variables by which the ranks' Python imports the running code first."""
    others = [path for path in inherited.get("PYTHONPATH", "").split(":") if path and path != source]
    paths = [str(code), *others, ".", *([source] if source else [])]
    return {
        "PYTHONPATH": _derived(
            ":".join(dict.fromkeys(paths)),
            "ranks run this copy of the code; other modules are found as before",
        ),
        "PYTHONSAFEPATH": _derived("1", "no file in the working directory hides a module of this code"),
        "PYTHONUNBUFFERED": _derived("1", "the last lines of a killed rank reach its log"),
    }


def _command_python_variables(
    search_path: Sequence[str], code: Path, source: str | None
) -> dict[str, AddedVariable]:
    """Variables by which a command imports its own modules, and after them those of the running code."""
    paths = [*(path for path in search_path if path not in (str(code), source)), str(code)]
    return {
        "PYTHONPATH": _derived(
            ":".join(dict.fromkeys(paths)), "modules are found as at the submission; `disttrain` comes last"
        ),
        "PYTHONUNBUFFERED": _derived("1", "the last lines of a killed rank reach its log"),
    }


def command_variables(run: RunDir, attempt: Attempt, config: Mapping[str, Any]) -> dict[str, AddedVariable]:
    """Variables by which a command finds its run, and the limit of its hang watch."""
    limit_s = config["job"].get("script_step_timeout_s")  # not in old plans
    limit = _derived(f"{limit_s:g}", "job.script_step_timeout_s") if limit_s else None
    return {
        **({SCRIPT_TIMEOUT_VARIABLE: limit} if limit else {}),
        RUN_DIR: _derived(str(run.path), "the run directory, for metrics.json"),
        ATTEMPT: _derived(str(attempt.number), "number of this start of the run, from 0"),
        CHECKPOINT_DIR: _derived(str(run.checkpoints), "a new file in it counts as progress of the run"),
        STOP_SIGNAL: _derived(config["job"]["stop_signal"], "job.stop_signal"),
        SAVED: _derived(str(run.checkpoints / SAVED_NAME), "to touch after a save elsewhere"),
    }


def tracking_of_run(run: RunDir, run_key: str) -> dict[str, AddedVariable]:
    """Variables of W&B and MLflow, which hold where the user has not set them."""
    reason = "all starts of the run are one run of W&B, and of MLflow"
    return {name: _derived(value, reason) for name, value in tracking_variables(run, run_key).items()}


def idle_limit_s(record: Mapping[str, Any]) -> float | None:
    """Seconds of silence after which an idle rank of a command hangs, by its `run.json`; None: never."""
    minutes = record["config"]["job"].get("idle_timeout_min")  # not in old plans
    if minutes is None:
        minutes = (record.get("profile") or {}).get("idle_timeout_min")
    return 60 * float(minutes) if minutes else None


def evidence_variables(attempt: Attempt) -> dict[str, AddedVariable]:
    """Variables by which a hang of a command leaves NCCL's last collectives and the stacks of Python.

    The flight recorder has two names of each, as PyTorch has renamed them and reads the old ones with a
    warning; older releases record nothing unless these are set.
    """
    trace, entries = str(attempt.nccl_trace), "2000"
    values = {
        "PYTHONFAULTHANDLER": "1",
        "TORCH_FR_BUFFER_SIZE": entries,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": entries,
        "TORCH_FR_DUMP_TEMP_FILE": trace,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": trace,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    return {
        name: _derived(value, "job.idle_timeout_min: evidence of a hang") for name, value in values.items()
    }


def _loopback_variables() -> dict[str, AddedVariable]:
    """gloo and NCCL on the loopback interface."""
    loopback = _derived("lo", "all nodes are this machine, so ranks connect over loopback")
    return {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}


def deadline_variable(end: float) -> AddedVariable:
    """`DISTTRAIN_DEADLINE`: the end of the attempt's time limit, in seconds since the epoch."""
    return _derived(f"{end:.0f}", "end of the time limit: ranks save and stop before it")


def rank_environment(inherited: Mapping[str, str], added: Mapping[str, AddedVariable]) -> dict[str, str]:
    """The complete environment of the ranks: inherited variables without a launcher's, and the added ones.

    `PYTHONSAFEPATH` of the agent is not inherited: a script imports the modules beside it.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not is_launcher_variable(name) and name != "PYTHONSAFEPATH"
    }
    return kept | {name: variable.value for name, variable in added.items()}


def is_launcher_variable(name: str) -> bool:
    """Whether a launcher such as torchrun or mpirun sets this variable."""
    return _LAUNCHER.fullmatch(name) is not None


def env_record(
    added: Mapping[str, AddedVariable],
    inherited: Mapping[str, InheritedVariable] | None = None,
    findings: Sequence[Mapping[str, str | None]] = (),
    versions: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Content of `env.json` (`records.EnvRecord`). Inherited secrets are masked, as are those in `added`.

    `inherited` are communication variables from elsewhere, `findings` those of the lint on the first node,
    `versions` those of its communication libraries.
    """
    variables = {name: dict(vars(variable)) for name, variable in sorted(added.items())}
    others = {
        name: dict(vars(variable))
        for name, variable in sorted((inherited or {}).items())
        if name not in added
    }
    for name in filter(is_secret, others):
        others[name]["value"] = MASK
    return {
        "schema_version": 1,
        "variables": variables,
        "inherited": others,
        "findings": [dict(finding) for finding in findings],
        "versions": None if versions is None else dict(versions),
    }
