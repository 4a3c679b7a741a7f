"""The first moment of a Python process of a job, before anything else is imported.

A task checks its interpreter and holds its signals back: `sbatch jobs/train.sbatch` may find any Python. So
this module and `jobs.submission.sbatch_entry` use no syntax newer than Python 3.6, which is the `python3` of
RHEL 8. Standard library only; MLflow's client is asked for the run of an earlier start where it is installed.

Each process of a `command` starts with this file: `python interpreter.py LOGS FOLDER WORDS...`. The process
becomes `python WORDS...`, or WORDS where these name an executable, in the working directory FOLDER, with its
output in `LOGS/rank-RRRRR.log`, numbered by node where a node has one process.
"""

import ctypes
import json
import os
import platform
import signal
import sys
from importlib.util import find_spec

_EXIT = 93
"""`jobs.core.requeue_policy.EXIT_DO_NOT_REQUEUE`, which cannot be imported yet."""
_NEEDED = ("psutil", "pydantic", "yaml")
"""Packages that an interpreter lacks if it was not installed for this."""
_PR_SET_PDEATHSIG = 1


def require_python() -> None:
    """Exit with one line unless this is Python 3.11 or newer."""
    if sys.version_info < (3, 11):  # noqa: UP036 -- the interpreter may be any
        found = (
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, 3.11 or newer is needed"
        )
        _refuse(found)


def require_packages() -> None:
    """Exit with one line where a package is missing that training needs."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    if absent:
        _refuse(f"{sys.executable} on {platform.node()} has no {', '.join(absent)}")


def block_signals() -> None:
    """Keep the scheduler's signals pending until the agent handles them.

    The batch script ignores them up to here, so none can end the interpreter while modules are imported.
    """
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _refuse(why: str) -> None:
    print(
        f"cannot start: {why}; name another with `python` of the site profile, or DISTTRAIN_PYTHON",
        file=sys.stderr,
    )
    sys.exit(_EXIT)


def _start_process(logs: str, folder: str, *words: str) -> None:
    """Replace this process by one of a `command`, which ends with its launcher."""
    number = os.environ.get("RANK") or os.environ["NODE_RANK"]
    path = os.path.join(logs, f"rank-{int(number):05d}.log")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if sys.platform == "linux":  # else a killed launcher would leave orphans that train on
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if "DISTTRAIN_NODE_FOLDER" in os.environ:  # its parent may be the runtime of a container
        path = os.path.join(os.environ["DISTTRAIN_NODE_FOLDER"], f"process-{os.getpid()}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.chdir(folder)
    _continue_tracking(int(number))
    if words[0] == "-m" or words[0].endswith(".py"):
        # `-P` keeps the working directory out of the module search path: the copy of a module is on it
        options = ["-P"] if words[0] == "-m" and sys.version_info >= (3, 11) else []
        words = (sys.executable, "-u", *options, *words)
    else:  # executables of this environment come first
        search = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
        os.environ["PATH"] = os.pathsep.join(search)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.exit(f"cannot start {words[0]}: {error.strerror}")


def _continue_tracking(number: int) -> None:
    """Give other ranks than the first, if they report to W&B, runs of their own; and the first one the MLflow
    run of an earlier start, which has the tag that the agent chose."""
    environ, tag = os.environ, "disttrain.id"
    try:
        value = json.loads(environ["MLFLOW_RUN_CONTEXT"])[tag]
    except (KeyError, ValueError):  # the user's own
        return
    if number and environ.get("WANDB_RUN_ID") == value:
        environ["WANDB_RUN_ID"] += f"-{number}"
    is_over = number or "MLFLOW_TRACKING_URI" not in environ or "MLFLOW_RUN_ID" in environ
    if is_over or environ["DISTTRAIN_ATTEMPT"] == "0":
        return
    try:
        from mlflow import MlflowClient

        client = MlflowClient()
        experiments = [each.experiment_id for each in client.search_experiments()]
        for run in client.search_runs(experiments, f"tags.`{tag}` = '{value}'", max_results=1):
            environ["MLFLOW_RUN_ID"] = run.info.run_id
    except Exception as error:  # a server that does not answer is the program's to report
        print(f"the MLflow run of earlier starts is unknown: {error}", file=sys.stderr)


if __name__ == "__main__":
    _start_process(*sys.argv[1:])
