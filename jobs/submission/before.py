"""Checks and warnings before submission, as far as this machine can see: options without effect, figures that
would not be valid, checkpoints to start from, models of Hugging Face, memory."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.config.options import PACKAGE_OF, plug_ins
from disttrain.config.sections.compute import KNOWN_BACKENDS
from disttrain.config.without_effect import options_without_effect
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from disttrain.records.checkpoint import refuse_missing
from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_json import asks_for_gpus, differs_by_run, has_placeholder
from jobs import PROGRAM
from jobs.core.code_copy import script_file
from jobs.core.run_code import CODE_ROOT
from jobs.fabric.lint import FindingSeverity, lint
from jobs.fabric.registry import registry
from jobs.fabric.settings import Setting
from jobs.schedulers.interface import Scheduler
from jobs.submission.decide import Action
from jobs.submission.prepare import nodes_to_exclude
from sweeps.expand import RunPlan

Estimate = dict[str, Any]
"""Fields of `disttrain.engine.memory_estimate.MemoryEstimate`; of strategy `auto`, `candidates` with
these fields; or `reason` why there is no estimate."""
_ESTIMATES_S = 600.0
_IMPORT_S = 120.0
"""Importing transformers and torch from a cold network file system may take a minute."""
_NAMED = 3


def warnings_for(
    runs: Sequence[RunPlan], scheduler: Scheduler, sweep: Sequence[RunPlan], root: Path
) -> list[str]:
    """One line for each warning on the runs that start now; `sweep` has all runs of their sweep,
    and `root` is the runs folder."""
    lines = [*_oversubscribed(runs, scheduler), *scheduler.warnings(os.environ)]
    if not runs:
        return lines
    lines += [*_nested_launchers(runs), *_wrong_variables(runs)]
    unmeasured = [run for run in runs if _is_all_warm_up(run)]
    if unmeasured:
        most = max(run.config.telemetry.warmup_steps for run in unmeasured)
        lines.append(
            f"{_names(unmeasured)}: no step will be measured: train.steps is not above "
            f"telemetry.warmup_steps={most}"
        )
    lines += [*options_without_effect(run.config for run in sweep), *_shared_directory(sweep)]
    packed = [run for run in runs if run.config.resources.runs_per_node > 1]
    if packed and not scheduler.packs:
        lines.append(
            f"{_names(packed)}: resources.runs_per_node has no effect: {scheduler.title} runs one at a time"
        )
    return [*lines, *check_plug_ins(runs), *unchecked_start_from(runs, root, scheduler)]


def check_packing(actions: Iterable[Action], scheduler: Scheduler, most_running: int | None) -> None:
    """Raise `ConfigError` for runs that start and cannot share a node as `resources.runs_per_node` says."""
    for action in actions if scheduler.packs else ():
        record = read_json_or_none(action.state.run.run_json) if action.state and not action.plan else None
        config = action.plan.config.as_dict() if action.plan else (record or {}).get("config", {})
        resources = config.get("resources", {})
        runs = resources.get("runs_per_node", 1)
        if not action.submits or runs == 1:
            continue
        if most_running is not None:
            raise ConfigError(
                f"resources.runs_per_node={runs}: the runs of a job run at the same time; leave out "
                "--max-running and --serial, or use resources.runs_per_node=1"
            )
        profile, gpus = scheduler.profile(action.profile), resources["gpus_per_node"]
        if profile is None or resources["share_gpus"] or not asks_for_gpus(resources["device"]):
            continue
        if profile.gpus_per_node and runs * gpus > profile.gpus_per_node:
            raise ConfigError(
                f"resources.runs_per_node={runs} with resources.gpus_per_node={gpus}: a node has "
                f"{profile.gpus_per_node} GPUs (profile {profile.name}), for at most "
                f"{max(1, profile.gpus_per_node // gpus)} runs; resources.share_gpus=true shares them"
            )


def excluded_nodes_warning(root: Path, scheduler: Scheduler) -> list[str]:
    """The line that names the nodes which submissions from this runs folder avoid; none without any."""
    hosts = nodes_to_exclude(root, scheduler)
    shown = f"excluded nodes: {_first(hosts)} ({PROGRAM} nodes shows why; --clear uses them again)"
    return [shown] if hosts else []


def _first(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _names(runs: Sequence[RunPlan]) -> str:
    return _first([run.name for run in runs])


def _oversubscribed(runs: Sequence[RunPlan], scheduler: Scheduler) -> list[str]:
    """A warning on runs with more busy threads than processors, counted as for `Metrics.oversubscribed`."""
    processors = scheduler.processors()
    busy = {}
    for number, run in enumerate(runs if processors is not None else ()):
        config, resources = run.config, run.config.resources
        if not scheduler.uses_gpus(resources.device, resources.nodes * resources.gpus_per_node):
            own = 0 if config.model.kind == "emulated" else resources.threads_per_rank
            busy[number] = config.world_size * (own + config.data.workers)
    crowded = {number: threads for number, threads in busy.items() if threads > (processors or 0)}
    if not crowded:
        return []
    return [
        f"{_names([runs[number] for number in crowded])}: up to {max(crowded.values())} busy threads "
        f"(ranks x threads and loader workers) on {processors} processors: timings will describe this "
        "machine, not scaling"
    ]


def _nested_launchers(runs: Sequence[RunPlan]) -> list[str]:
    """A line for each command that starts the processes of all ranks, and is started several times."""
    lines = []
    for command, launcher in dict.fromkeys((run.config.command, run.config.job.launcher) for run in runs):
        program = Path(command[0]).name if command else ""
        tasks = re.search(r" --ntasks-per-node[ =](\d+)", " ".join(command))
        times = f" {tasks[1]} times (--ntasks-per-node={tasks[1]})" if tasks else ""
        if program == "srun":
            lines.append(
                f"each {launcher} starts srun, which starts the rest{times} on all nodes: leave it out"
            )
        elif program == "torchrun" and launcher == "rank":
            lines.append("each rank starts torchrun, which starts all ranks of a node: use job.launcher=node")
    return [*dict.fromkeys(lines)]


def _wrong_variables(runs: Sequence[RunPlan]) -> list[str]:
    """One line for each error: misspelt names, values out of range, values that fail on these nodes.

    The network of the nodes is not known yet; their agents judge it at the start of the run.
    """
    environments = {
        (run.config.resources.nodes, tuple(run.config.job.env.items())) for run in runs if run.config.job.env
    }
    lines: dict[str, None] = {}
    for nodes, variables in sorted(environments):
        settings = {
            name: Setting(name, value, "job.env") for name, value in variables if registry().is_judged(name)
        }
        errors = [each for each in lint(settings, nodes=nodes) if each.severity is FindingSeverity.ERROR]
        lines |= {f"job.env.{each.name}: {each.message}": None for each in errors if each.name in settings}
    return list(lines)


def _is_all_warm_up(run: RunPlan) -> bool:
    """Whether all steps are warm-up. False for a length in epochs: the login node does not load the data."""
    steps = run.config.train.steps
    return steps is not None and steps <= run.config.telemetry.warmup_steps


def _shared_directory(sweep: Sequence[RunPlan]) -> list[str]:
    """A warning on scripts that cannot know their run, in a sweep of several runs."""
    runs = [run for run in sweep if run.config.command and not _knows_its_run(run)]
    if len(runs) < 2:
        return []
    return [
        f"{_names(runs)} share a working directory, in which a run can resume from a "
        "checkpoint of another one: set job.workdir=run, or give the script a path with {checkpoint_dir}"
    ]


def _knows_its_run(run: RunPlan) -> bool:
    """Also of a script that may read DISTTRAIN_RUN_DIR, or use `Trainer`."""
    config = run.config
    words = [*config.command, *config.job.env.values()]
    if config.job.workdir in ("run", "checkpoints") or any(map(differs_by_run, words)):
        return True
    return _may_read_variables(config)


def _may_read_variables(config: Config) -> bool:
    script = script_file(config.command, Path.cwd())
    return script is None or b"disttrain" in script.read_bytes().lower()


def check_resume_args(config: Config) -> None:
    """Raise `ConfigError` for `job.resume_args` of a command that cannot know its folder of checkpoints."""
    text = " ".join([*config.command, *config.job.env.values()])
    is_given = config.job.workdir == "checkpoints" or has_placeholder(text, ("checkpoint_dir", "run_dir"))
    if config.job.resume_args and not (is_given or _may_read_variables(config)):
        raise ConfigError(
            f"job.resume_args={shlex.join(config.job.resume_args)}: no start will find a checkpoint, as the "
            "command does not know the folder to save to: give it {checkpoint_dir}, or set "
            "job.workdir=checkpoints"
        )


def check_start_from(
    runs: Sequence[RunPlan], existing: Collection[str | None], root: Path, scheduler: Scheduler | None = None
) -> None:
    """Raise `ConfigError` for a path of a new run that has no checkpoint, unless an earlier job may write it.

    Args:
        runs: the runs of a sweep.
        existing: keys of configs that have a run. Such a run may go on from a checkpoint of its own after the
            one that it started from was deleted.
        root: the runs folder.
        scheduler: the scheduler to submit to; None within a job.
    """
    paths = _start_paths([run for run in runs if run.config_key not in existing], root)
    if not paths or (scheduler is not None and _dependency(scheduler)):
        return
    for path, is_visible in paths.items():
        if is_visible and (message := refuse_missing(path)):
            raise ConfigError(message)


def unchecked_start_from(runs: Sequence[RunPlan], root: Path, scheduler: Scheduler) -> list[str]:
    """A line for each path that this machine does not see, and for each that an earlier job may write."""
    paths = _start_paths(runs, root)
    lines = [
        f"checkpoint.start_from={path}: this machine has no folder {Path(path).parent}, so the path can only "
        "be checked in the job"
        for path, is_visible in paths.items()
        if not is_visible
    ]
    if dependency := _dependency(scheduler) if paths else None:
        lines += [
            f"checkpoint.start_from={path} holds no checkpoint yet; the job waits for others "
            f"(sbatch.dependency={dependency}), and checks the path when it starts"
            for path, is_visible in paths.items()
            if is_visible and refuse_missing(path)
        ]
    return lines


def _start_paths(runs: Sequence[RunPlan], root: Path) -> dict[str, bool]:
    """The paths that runs start from, each with whether this machine has its file system.

    A login node may lack a file system of the compute nodes, and still have the empty folder on which they
    mount it. The runs folder is on both.
    """
    paths = sorted({run.config.checkpoint.start_from for run in runs if run.config.checkpoint.start_from})
    folders = {path: os.path.dirname(os.path.realpath(path)) for path in paths}
    return {
        path: os.path.isdir(folder) or Path(folder).is_relative_to(os.path.realpath(root))
        for path, folder in folders.items()
    }


def _dependency(scheduler: Scheduler) -> str | None:
    """The `--dependency` of the site profile: its jobs may write the checkpoint."""
    profile = scheduler.profile(None)
    given = profile.as_dict().get("sbatch", {}).get("dependency") if profile is not None else None
    return None if given is None else str(given)


def check_plug_ins(runs: Sequence[RunPlan]) -> list[str]:
    """Check plug-ins, Hugging Face models and compilers by importing them; a line for each that only the job
    can check.

    Raises `ConfigError` for a name or an option that does not exist.
    """
    sections = {"compile", *(key.partition(".")[0] for key in PACKAGE_OF)}
    texts = dict.fromkeys(
        json.dumps(run.config.model_dump(mode="json", include=sections))
        for run in runs
        if not run.config.command and _has_names_to_import(run.config)
    )
    return _unchecked(tuple(texts)) if texts else []


def _has_names_to_import(config: Config) -> bool:
    other_compiler = config.compile.used_backend not in (None, *KNOWN_BACKENDS)
    return bool(plug_ins(config)) or config.model.kind == "huggingface" or other_compiler


@functools.cache
def _unchecked(texts: tuple[str, ...]) -> list[str]:
    done = _run_module("disttrain.engine.plug_in_check", texts, _IMPORT_S)
    if done is not None and done.returncode == EXIT_BAD_INPUT:
        raise ConfigError(done.stdout)
    if done is None or done.returncode:
        reason = _last_line(done) if done else f"not imported within {_IMPORT_S:.0f} s"
        return [f"plug-ins are only checked in the job: {reason}"]
    return done.stdout.splitlines()


def estimate_memory(runs: Sequence[RunPlan]) -> list[Estimate]:
    """The estimates of `runs`, in their order; equal configs are estimated once."""
    configs = ["" if run.config.command else json.dumps(run.config.as_dict(), sort_keys=True) for run in runs]
    distinct = [config for config in dict.fromkeys(configs) if config]
    estimates = dict(zip(distinct, _estimates(distinct), strict=True)) if distinct else {}
    estimates[""] = {"reason": "the memory of a command is unknown"}
    return [estimates[config] for config in configs]


def _estimates(configs: Sequence[str]) -> list[Estimate]:
    done = _run_module("disttrain.engine.memory_estimate", configs, _ESTIMATES_S)
    if done is None:
        return [{"reason": f"no estimate within {_ESTIMATES_S:.0f} s"}] * len(configs)
    if done.returncode:
        return [{"reason": _last_line(done)}] * len(configs)
    estimates: list[Estimate] = json.loads(done.stdout)
    return estimates


def _run_module(
    module: str, texts: Sequence[str], within_s: float
) -> subprocess.CompletedProcess[str] | None:
    """Run a module that imports torch, with a JSON list on its stdin; None after a time-out.

    It finds modules of the working directory, as ranks do.
    """
    path = os.pathsep.join(filter(None, [str(CODE_ROOT), os.environ.get("PYTHONPATH"), "."]))
    try:
        return subprocess.run(
            [sys.executable, "-m", module],
            input=f"[{','.join(texts)}]",
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return None


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
