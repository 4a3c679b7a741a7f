"""Warnings before submission: conditions under which the figures of a run are not valid, and options without
effect."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from disttrain.config.builder_options import BUILT_SECTIONS, unchecked_options
from disttrain.config.config_tree import model_waits
from disttrain.config.options_without_effect import options_without_effect
from disttrain.records import run_placeholders
from jobs.core import code_copy
from jobs.fabric.lint import FindingSeverity, lint
from jobs.fabric.registry import registry
from jobs.fabric.settings import Setting
from jobs.schedulers.interface import Scheduler
from jobs.submission.huggingface_check import check_huggingface
from jobs.submission.prepare import nodes_to_exclude
from jobs.submission.start_from_check import unchecked_start_from
from sweeps.expand import RunPlan

_NAMED = 3


def warnings_for(
    runs: Sequence[RunPlan], scheduler: Scheduler, sweep: Sequence[RunPlan], root: Path
) -> list[str]:
    """One line for each warning on the runs that start now; `sweep` has all runs of their sweep,
    and `root` is the runs folder."""
    if not runs:
        return scheduler.warnings(os.environ)
    found = []
    processors = scheduler.processors()
    if processors is not None:
        on_cpus = [run for run in runs if not scheduler.uses_gpus(*_device_and_gpus(run))]
        crowded = {run.name: busy for run in on_cpus if (busy := _busy_threads(run)) > processors}
        if crowded:
            found.append(
                f"{_names(list(crowded))}: up to {max(crowded.values())} busy threads (ranks x threads and "
                f"loader workers) on {processors} processors: timings will describe this machine, "
                "not scaling"
            )
    found += [*scheduler.warnings(os.environ), *_wrong_variables(runs)]
    unmeasured = [run for run in runs if _is_all_warm_up(run)]
    if unmeasured:
        most = max(run.config.telemetry.warmup_steps for run in unmeasured)
        found.append(
            f"{_names([run.name for run in unmeasured])}: no step will be measured: train.steps is not above "
            f"telemetry.warmup_steps={most}"
        )
    found += [*options_without_effect(run.config for run in sweep), *_shared_directory(sweep)]
    return [*found, *_unchecked_options(runs), *unchecked_start_from(runs, root, scheduler)]


def _wrong_variables(runs: Sequence[RunPlan]) -> list[str]:
    """One line for each error: misspelt names, values out of range, values that fail on these nodes.

    The network of the nodes is not known yet; their agents judge it at the start of the run.
    """
    distinct = dict.fromkeys(
        (run.config.resources.nodes, tuple(run.config.job.env.items())) for run in runs if run.config.job.env
    )
    return list(dict.fromkeys(line for each in distinct for line in _variable_errors(*each)))


def _variable_errors(nodes: int, variables: Sequence[tuple[str, str]]) -> list[str]:
    settings = {
        name: Setting(name, value, "job.env") for name, value in variables if registry().is_judged(name)
    }
    return [
        f"job.env.{each.name}: {each.message}"
        for each in lint(settings, nodes=nodes)
        if each.severity is FindingSeverity.ERROR and each.name in settings
    ]


def excluded_nodes_warning(root: Path, scheduler: Scheduler) -> list[str]:
    """The line that names the nodes which submissions from this runs folder avoid; none without any."""
    hosts = nodes_to_exclude(root, scheduler)
    if not hosts:
        return []
    nodes = ", ".join(hosts[:_NAMED]) + (f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else "")
    return [f"excluded nodes: {nodes} (submit.py nodes shows why; --clear uses them again)"]


def _shared_directory(sweep: Sequence[RunPlan]) -> list[str]:
    """A warning on scripts that cannot know their run, in a sweep of several runs."""
    runs = [run for run in sweep if run.config.command and not _knows_its_run(run)]
    if len(runs) < 2:
        return []
    return [
        f"{_names([run.name for run in runs])} share a working directory, in which a run can resume from a "
        "checkpoint of another one: set job.workdir=run, or give the script a path with {checkpoint_dir}"
    ]


def _knows_its_run(run: RunPlan) -> bool:
    config = run.config
    words = [*config.command, *config.job.env.values()]
    if config.job.workdir == "run" or any(map(run_placeholders.differs_by_run, words)):
        return True
    script = code_copy.script_file(config.command, Path.cwd())  # may read DISTTRAIN_RUN_DIR, or use Trainer
    return script is None or b"disttrain" in script.read_bytes().lower()


def _unchecked_options(runs: Sequence[RunPlan]) -> list[str]:
    """Options of the user's own models and data sources that a misspelling could leave without effect."""
    sections = {
        (package, key, section.kind, tuple(section.model_extra or ()))
        for run in runs
        for key, package in BUILT_SECTIONS.items()
        if (section := getattr(run.config, key)).model_extra
    }
    return sorted(filter(None, [*(unchecked_options(*each) for each in sections), check_huggingface(runs)]))


def _device_and_gpus(run: RunPlan) -> tuple[str, int]:
    """`resources.device`, and the GPUs of the run if it has any."""
    resources = run.config.resources
    return resources.device, resources.nodes * resources.gpus_per_node


def _busy_threads(run: RunPlan) -> int:
    """Busy threads of a run, counted as for `Metrics.oversubscribed`."""
    config = run.config
    own = 0 if model_waits(config) else config.resources.threads_per_rank
    return config.world_size * (own + config.data.workers)


def _is_all_warm_up(run: RunPlan) -> bool:
    """Whether all steps are warm-up. False for a length in epochs: the login node does not load the data."""
    steps = run.config.train.steps
    return steps is not None and steps <= run.config.telemetry.warmup_steps


def _names(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
