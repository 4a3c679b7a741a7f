"""The Slurm job that this process belongs to: its state, its limits, and the record of a node.

`python -m jobs.schedulers.slurm.allocation ATTEMPT_DIR NODE` writes the record. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disttrain.masking import MASK, is_secret, mask_lines
from disttrain.records.run_json import asks_for_gpus
from jobs.checks.rank_python import RankContainer
from jobs.node import node_info
from jobs.node.allocation import AllocationFacts, CurrentAllocation, log_line
from jobs.schedulers.slurm import commands, container
from jobs.schedulers.slurm.commands import (
    EPOCH,
    JOB_TIMEOUT_S,
    count_gpus,
    parse_gpus,
    query_or_none,
    run_job_id,
)

_AT_WORK = {"CONFIGURING", "RESIZING", "RUNNING", "SIGNALING", "SUSPENDED"}
_SHELL_ENDED = re.compile("JobLaunchFailure|RaisedSignal|NonZeroExitCode")
"""Reasons of a job whose batch shell was killed or exited. scancel leaves none."""
_KILL_WAIT_S = 30.0
"""Slurm's default of KillWait, in seconds."""
_SLURMD_TIMEOUT_S = 300.0
"""Slurm's default of SlurmdTimeout, in seconds."""
_SLURMD_PORT = 6818
"""Slurm's default of SlurmdPort."""
_CONNECT_S = 3.0
_CLOCK_TOLERANCE_S = 5.0
_SECRETS = re.compile(r"(?<=--job\.env).*")
_FINAL = re.compile(r"disabled|not permitted|denied|invalid (user|job)|no such file", re.IGNORECASE)
"""Messages of final refusals. Any other message may be due to an unreachable controller."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class SlurmAllocation(CurrentAllocation):
    """A `jobs.node.allocation.CurrentAllocation`, from the variables that Slurm sets for a task."""

    scheduler: str = "slurm"
    node_info_module: str = "jobs.schedulers.slurm.allocation"
    node_list_command: str = "scontrol"

    def __init__(self, environ: Mapping[str, str], place: int | None = None) -> None:
        self._id = job_id(environ)
        self.job_id = run_job_id(self._id, None, place)
        self.processors = commands.leading_number(environ.get("SLURM_CPUS_ON_NODE"))
        self.restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._nodes = environ.get("SLURM_JOB_NODELIST", "")
        self._end = environ.get("SLURM_JOB_END_TIME", "")
        self.node_rank = int(environ.get("SLURM_NODEID") or 0)
        self.nodes = int(environ.get("SLURM_JOB_NUM_NODES") or 1)
        self.gpus_on_node = environ.get("SLURM_GPUS_ON_NODE")
        self.step = environ.get("SLURM_STEP_LAUNCHER_PORT", "")  # a port of srun: new in each start
        self.submit_folder = Path(environ.get("SLURM_SUBMIT_DIR") or Path.cwd())
        self._environ = dict(environ)  # a run beside others restricts its own environment to its GPUs
        self._clock_offset_s = 0.0

    def hosts(self) -> list[str] | None:
        """Names of the job's nodes in rank order; None if scontrol does not answer.

        The step's own list has this order. The job's list may have another one: since Slurm 26.05 the nodes
        of a step are in the order of the topology. A step of one node, after a failure, gets the job's list.
        """
        step = self._environ.get("SLURM_STEP_NODELIST", "")
        is_whole = self._environ.get("SLURM_STEP_NUM_NODES") == str(self.nodes)
        listed = commands.hostnames(step if step and is_whole else self._nodes)
        own = self._environ.get("SLURMD_NODENAME")
        return _with_own_rank(listed, self.node_rank, own) if listed is not None and is_whole else listed

    def time_limit_min(self) -> int | None:
        return _time_limit_min(self._id)

    def facts(self) -> AllocationFacts | None:
        facts = _job(self._id)
        if facts is None or facts.end is None:
            return facts
        return dataclasses.replace(facts, end=facts.end + self._clock_offset_s)

    def missing_gpus(self, record: Mapping[str, Any]) -> str | None:
        """Message if this node has fewer GPUs than the job requested, else None.

        Slurm may start a requeued job without its GPUs; the ranks would then train on the CPU.
        """
        asked, given = _gpus_asked(self._environ, record), _gpus_given(self._environ)
        if asked <= given:
            return None
        return f"this node has {given} of the {asked} GPUs that the job requested"

    def container(
        self, record: Mapping[str, Any], folders: Sequence[Path], memory: Path
    ) -> contextlib.AbstractContextManager[RankContainer | None]:
        described = (record.get("profile") or {}).get("container")
        if described is None:
            return contextlib.nullcontext()
        within_s = float(record["config"]["job"]["rendezvous_timeout_s"])
        return container.opened(described, folders, memory, within_s, self)

    def nodes_down(self) -> list[str]:
        return _nodes_down(self._nodes) if self._nodes else []

    def node_responds(self, host: str) -> bool:
        port = _setting("SlurmdPort") or _SLURMD_PORT
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError:
            return False
        return True

    def node_timeout_s(self) -> float:
        timeout_s = _setting("SlurmdTimeout")
        return _SLURMD_TIMEOUT_S if timeout_s is None else timeout_s

    def end_time(self) -> float | None:
        self._clock_offset_s = _clock_offset_s()
        if self._end.isdigit():
            return float(self._end) + self._clock_offset_s
        facts = self.facts()  # Slurm before 23.02 does not set the variable
        return facts.end if facts else None

    def kill_wait_s(self) -> float:
        wait_s = _setting("KillWait")
        return _KILL_WAIT_S if wait_s is None else wait_s

    def requeue(self, until: float, is_current: Callable[[], bool]) -> bool:
        """Requeue the job (`jobs.node.allocation.Allocation.requeue`).

        scontrol requeues any start of a job id. A node that was cut off may reconnect after Slurm has started
        the job elsewhere. So each try follows an answer of squeue that this start is still the current one.
        """
        pause_s = _FIRST_PAUSE_S
        while is_current():
            facts = _job(self._id, commands.TIMEOUT_S)
            if facts is not None and facts.restarts > self.restart:
                return True  # the reply was lost, or Slurm requeued the job itself
            command = ["scontrol", "requeue", self._id]
            refusal = "squeue does not answer" if facts is None else commands.refusal(command)
            if refusal is None:
                return True
            last = _FINAL.search(refusal) is not None or time.time() + pause_s > until
            then = "giving up" if last else f"trying again in {pause_s:g} s"
            print(f"scontrol requeue {self._id}: {refusal}; {then}", flush=True)
            if last:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return False

    def exclude(self, hosts: Sequence[str], formerly: Sequence[str], script: Path) -> None:
        excluded = _excluded_nodes(self._id)
        if excluded is None or not script.exists():  # the options of a job by hand are in no file
            return
        nodes = ",".join(sorted({*hosts, *(set(excluded) - set(formerly))}))
        # Slurm holds a pending job for good if no nodes are left for it.
        refusal = _test_refusal(script, nodes) if nodes else None
        refusal = refusal or _update(self._id, f"ExcNodeList={nodes}")
        outcome = f"not excluded: {refusal}" if refusal else f"excluded: {nodes or 'none'}"
        log_line(f"next start of job {self.job_id}: failed nodes: {', '.join(hosts) or 'none'}; {outcome}")

    def delay_start(self, delay_s: float) -> None:
        refusal = _update(self._id, f"StartTime=now+{delay_s:.0f}")
        outcome = refusal or f"job {self.job_id} starts in {delay_s:.0f} s at the earliest"
        log_line(f"scontrol update StartTime: {outcome}")


def _with_own_rank(hosts: Sequence[str], rank: int, own: str | None) -> list[str]:
    """`hosts` with this node at its rank, so that node 0 publishes its own address in any order of hosts."""
    found = list(hosts)
    if own in found and rank < len(found):
        at = found.index(own)
        found[rank], found[at] = found[at], found[rank]
    return found


def _clock_offset_s() -> float:
    """Seconds that this clock is ahead of the controller's; 0 below the tolerance, or if unknown."""
    before, controller = time.time(), commands.controller_time()
    after = time.time()
    if controller is None or before - _CLOCK_TOLERANCE_S <= controller <= after + _CLOCK_TOLERANCE_S:
        return 0.0
    offset_s = before - controller
    side = "ahead of" if offset_s > 0 else "behind"
    log_line(f"this node's clock is {abs(offset_s):.0f} s {side} that of Slurm's controller")
    return offset_s


def _gpus_asked(environ: Mapping[str, str], record: Mapping[str, Any]) -> int:
    """Requested GPUs per node: `SLURM_GPUS_PER_NODE`, or for other options from config and site profile."""
    resources = record["config"]["resources"]
    if not asks_for_gpus(resources["device"]):
        return 0
    if "SLURM_GPUS_PER_NODE" in environ:  # 4, or a100:4, or several types with commas
        return count_gpus(parse_gpus(environ["SLURM_GPUS_PER_NODE"])) or 0
    of_script = (record.get("profile") or {}).get("gpus") in ("gres", "gpus")
    runs = 1 if resources.get("share_gpus") else int(record.get("runs_per_job", 1))
    return runs * int(resources["gpus_per_node"]) if of_script else 0


def _gpus_given(environ: Mapping[str, str]) -> int:
    count = environ.get("SLURM_GPUS_ON_NODE", "")
    if count.isdigit():
        return int(count)
    visible = environ.get("CUDA_VISIBLE_DEVICES") or environ.get("ROCR_VISIBLE_DEVICES") or ""
    return len([word for word in visible.split(",") if word not in ("", "NoDevFiles")])


def job_id(environ: Mapping[str, str]) -> str:
    """Job id; for an array task with the index, because the id alone is that of the whole array."""
    if "SLURM_ARRAY_TASK_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ["SLURM_JOB_ID"]


def _job(job_id: str, timeout_s: float = JOB_TIMEOUT_S) -> AllocationFacts | None:
    """The state of one job; a query by the job itself."""
    squeue = ["squeue", "--noheader", "--states=all", "--jobs", job_id]
    listing = query_or_none([*squeue, "-O", "State:32,RestartCnt:12,EndTime:24,Reason:64"], timeout_s, EPOCH)
    words = listing.split() if listing else []
    if len(words) < 4 or not words[1].isdigit():
        return None
    state, restarts, end, reason = words[:4]
    return AllocationFacts(
        running=state in _AT_WORK,
        restarts=int(restarts),
        end=float(end) if end.isdigit() else None,
        end_cause="timeout" if reason == "TimeLimit" else "lost" if _SHELL_ENDED.match(reason) else None,
    )


def _time_limit_min(job_id: str) -> int | None:
    """Time limit of a job in whole minutes; None without a limit, or if Slurm does not answer."""
    listing = (
        query_or_none(["squeue", "--noheader", "--states=all", "--jobs", job_id, "-o", "%l"], JOB_TIMEOUT_S)
        or ""
    )
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):\d\d", listing.strip())
    if found is None:
        return None
    days, hours, minutes = (int(number or 0) for number in found.groups())
    return (24 * days + hours) * 60 + minutes


def _nodes_down(nodelist: str) -> list[str]:
    """Nodes of this list that are down; empty if the controller does not answer."""
    command = ["sinfo", "--noheader", "--Node", "--nodes", nodelist, "-o", "%N|%T"]
    states = (line.split("|") for line in (query_or_none(command, JOB_TIMEOUT_S) or "").split())
    return sorted({node for node, state in states if state.startswith("down") or state.endswith("*")})


def _excluded_nodes(job_id: str) -> list[str] | None:
    """Nodes that a job excludes; None if Slurm does not answer."""
    found = re.search(r"ExcNodeList=(\S+)", commands.describe(job_id) or "")
    if found is None:
        return None
    return [] if found[1] == "(null)" else commands.hostnames(found[1])


def _setting(name: str) -> int | None:
    """The number of a setting such as KillWait; None if the controller does not answer."""
    return commands.leading_number(commands.settings().get(name))


def _test_refusal(script: Path, excluded: str) -> str | None:
    """Slurm's message if the script's job could not start without the excluded nodes, else None."""
    return commands.refusal(["sbatch", "--test-only", f"--exclude={excluded}", str(script)])


def _update(job_id: str, setting: str) -> str | None:
    """Change a setting of a pending job; None on success, else Slurm's message."""
    return commands.refusal(["scontrol", "update", f"JobId={job_id}", setting])


def collect_node_record(
    node: int,
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    describe: Callable[[str], str | None] = commands.describe,
) -> dict[str, Any]:
    """`node_info.collect_node_info` with the variables of Slurm and, on node 0, `scontrol show job`.

    Secrets are masked, as are the variables among the arguments of a job by hand.
    """
    job_id = environ.get("SLURM_JOB_ID")
    text = describe(job_id) if job_id and node == 0 else None
    return {
        **node_info.collect_node_info(node, root=root),
        "slurm": {
            name: MASK if is_secret(name) else value
            for name, value in sorted(environ.items())
            if name.startswith("SLURM_")
        },
        "scontrol": mask_lines(_SECRETS.sub(f" {MASK}", text)) if text else None,
    }


if __name__ == "__main__":
    sys.exit(node_info.main(sys.argv[1:], collect_node_record))
