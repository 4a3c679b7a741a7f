"""Slurm by `jobs.schedulers.interface`: sbatch (placed by submitit), squeue and queries."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disttrain.errors import ConfigError
from disttrain.records.json_files import write_text
from disttrain.records.run_directory import RunDir
from jobs.core import run_code
from jobs.schedulers import inherited_variables
from jobs.schedulers.interface import (
    AccountedStart,
    Batch,
    Job,
    ProfileSelection,
    Scheduler,
    ScriptPreview,
    SiteProfile,
    Submission,
    SubmitQuota,
    Unreachable,
)
from jobs.schedulers.site_profiles import resolve
from jobs.schedulers.slurm import commands, queries, train_script
from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import (
    ArrayTask,
    ScriptFields,
    check_path,
    render,
    render_report,
    shape_options,
)

if TYPE_CHECKING:
    from jobs.schedulers.slurm.executor import Backoff

_UNAVAILABLE = "no Slurm controller answers"


class SlurmScheduler(Scheduler):
    """Submits one job for each run or for several of one node, and the jobs of a batch as a job array."""

    name = "slurm"
    title = "Slurm"
    packs = True
    log_consequence = commands.CONSEQUENCE
    accounting = "sacct"

    def __init__(self, selection: ProfileSelection | None = None, backoff: Backoff | None = None) -> None:
        """Raises `ConfigError` if the profile of `selection` cannot be read."""
        self._selection = selection or ProfileSelection()
        self._backoff = backoff
        self._profiles: dict[str, Profile] = {}
        self._scripts: dict[str, str] = {}
        self._ended: dict[str, Job] = {}
        """Jobs that have ended by accounting."""
        if selection is not None:
            self.profile(None)

    def unavailable(self) -> str | None:
        return None if queries.answers() else f"{_UNAVAILABLE} (`scontrol ping`)"

    def check_runs_folder(self, path: Path) -> None:
        check_path("--runs", path.absolute())

    def profile(self, recorded: Mapping[str, Any] | None) -> Profile:
        """The site profile of a submission. Cached: the runs of a sweep share one."""
        key = json.dumps(recorded, sort_keys=True)
        if key not in self._profiles:
            self._profiles[key] = resolve(self._selection, recorded, try_options=True)
        return self._profiles[key]

    def batch_key(self, run: RunDir, record: Mapping[str, Any], profile: SiteProfile | None) -> str:
        """The script without the run: a task of an array finds its run by its index.

        Rendered once for all runs whose records are the same in what a script reads.
        """
        names = ("command", "resources", "job", "data")
        config = {name: record["config"][name] for name in names if name in record["config"]}
        code, folders = run_code.code_of_run(run, record), run_code.folders_of_run(run, record)
        read = [config, record["profile"], record.get("excluded_nodes"), str(code), *map(str, folders)]
        key = json.dumps(read)
        if key not in self._scripts:
            runs = config["resources"].get("runs_per_node", 1)
            own = {**record, "config": config}
            fields = script_fields(Batch([Submission(run, 0, "")], own, profile, runs_per_job=runs))
            fields = dataclasses.replace(fields, name="array", comment="", tasks=[ArrayTask(Path("/"), 0)])
            self._scripts[key] = render(dataclasses.replace(fields, logs=Path("/")))
        return self._scripts[key]

    def submit(self, batch: Batch) -> list[str]:
        fields = script_fields(batch)
        script = render(fields)
        first, *others = [each.run.script for each in batch.submissions]
        write_text(first, script)
        for path in others:  # not copies: the script of an array grows with the number of its runs
            _link(first, path)
        if len(batch.submissions) > 1:  # sbatch does not create the folder of the logs
            fields.logs.mkdir(exist_ok=True)
        job_id = self._sbatch(batch.submissions[0].run.script, fields.name, fields.comment)
        return [commands.run_job_id(job_id, each.index, each.place) for each in batch.submissions]

    def submit_after(
        self,
        job: Submission,
        command: Sequence[str],
        job_ids: Sequence[str],
        profile: Mapping[str, Any] | None,
    ) -> str:
        name = f"report-{job.run.sweep}"
        script = render_report(
            name=name,
            comment=job.tag,
            after=list(dict.fromkeys(re.split("[_/]", job_id)[0] for job_id in job_ids)),  # whole arrays
            command=command,
            logs=job.run.submissions.absolute(),
            python=sys.executable,
            profile=resolve(ProfileSelection(), profile),
        )
        write_text(job.run.script, script)
        return self._sbatch(job.run.script, name, job.tag)

    def _sbatch(self, script: Path, name: str, comment: str) -> str:
        from jobs.schedulers.slurm.executor import sbatch, submit_with_backoff

        return submit_with_backoff(
            lambda: sbatch(script, name),
            lambda: _jobs_by_comment().get(comment),
            self._backoff,
        )

    def find(self, submissions: Sequence[Submission]) -> list[str | None]:
        jobs = _jobs_by_comment()
        return [
            commands.run_job_id(jobs[each.tag], each.index, each.place) if each.tag in jobs else None
            for each in submissions
        ]

    def poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        jobs = self._poll(list(dict.fromkeys(map(commands.job_of, job_ids))))
        return {job_id: jobs[job] for job_id in job_ids if (job := commands.job_of(job_id)) in jobs}

    def _poll(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """States from one squeue, and from sacct for the jobs that squeue does not list.

        sacct gets no job that lives, and each job that ended once. Without accounting, a job that squeue does
        not list has ended. sacct also has the user who cancelled a job.
        """
        if not job_ids:
            return {}
        try:
            queue = queries.queue(job_ids)
        except commands.SlurmCommandError as why:
            return dict.fromkeys(job_ids, Job("unknown", str(why)))
        jobs = {job_id: queries.from_queue(queue[job_id]) for job_id in job_ids if job_id in queue}
        cancelled = [job_id for job_id, job in jobs.items() if job.cause == "cancelled"]
        jobs = {job_id: self._ended[job_id] for job_id in job_ids if job_id in self._ended} | jobs
        rest = [job_id for job_id in job_ids if job_id not in jobs]
        try:
            records = queries.records([*rest, *cancelled])
        except commands.SlurmCommandError:
            return jobs | dict.fromkeys(rest, Job("ended", certain=False))
        arrays = {job_id.partition("_")[0] for job_id in queue if "_" in job_id}
        accounted = {
            job_id: queries.from_accounting(own, job_id, arrays)
            for job_id, own in queries.by_job(records, [*rest, *cancelled]).items()
        }
        self._ended |= {job_id: accounted[job_id] for job_id in rest if accounted[job_id].status == "ended"}
        late = [job_id for job_id in cancelled if accounted[job_id].cause != "cancelled"]
        return jobs | {job_id: job for job_id, job in accounted.items() if job_id not in late}

    def cancel(self, jobs: Mapping[str, str | None]) -> dict[str, str]:
        """End these jobs with scancel.

        A job whose comment lacks the tag is left: Slurm may use a job id again, and another cluster does.
        """
        if not jobs:
            return {}
        failures = self._cancel({commands.job_of(job_id): tag for job_id, tag in jobs.items()})
        return {job_id: failures[job] for job_id in jobs if (job := commands.job_of(job_id)) in failures}

    def _cancel(self, jobs: Mapping[str, str | None]) -> dict[str, str]:
        failures = {}
        for job_id, entry in self._listed(jobs).items():
            tag = jobs.get(job_id)
            if tag and tag not in entry.comment:
                reason = f"job {job_id} is another job (its comment is {entry.comment!r}, not {tag!r})"
                failures[job_id] = f"{reason}; if it is not, end it with `scancel {job_id}`"
        wanted = [job_id for job_id in jobs if job_id not in failures]
        refusal = queries.cancel(wanted) if wanted else None
        if refusal is not None:  # scancel does not name every job that it has not ended
            left = self._listed(wanted)
            alive = [job_id for job_id in wanted if job_id in left and not queries.is_ending(left[job_id])]
            failures |= {job_id: f"scancel did not end job {job_id}: {refusal}" for job_id in alive}
        return failures

    def _listed(self, job_ids: Iterable[str]) -> dict[str, queries.QueueEntry]:
        """Entries of squeue. Raises `ConfigError` if the controller does not answer."""
        try:
            return queries.queue(job_ids)
        except commands.SlurmCommandError as why:
            raise ConfigError(f"{_UNAVAILABLE} ({why})") from None

    def batch_log(self, run: RunDir, submission: int, job_id: str) -> Path:
        job = commands.job_of(job_id)
        by_hand = run.path.parent.parent / train_script.LOG.replace("%j", job)
        own = run.submissions / f"{job}.log"  # of a run beside others, once its agent starts
        shared = _logs(run, shared=job != job_id or "_" in job) / f"{job}.log"
        return next((path for path in (by_hand, own) if path.exists()), shared)

    def cluster_name(self) -> str | None:
        return self._cluster_name

    @functools.cached_property
    def _cluster_name(self) -> str | None:
        """Slurm's ClusterName. One query, also while the controller does not answer."""
        return commands.settings().get("ClusterName")

    def node_names(self) -> list[str] | None:
        return queries.node_names()

    def accounted(self, job_ids: Sequence[str]) -> dict[str, list[AccountedStart]]:
        # the starts of a job are not those of each of its runs, which end one after the other
        alone = [job_id for job_id in job_ids if commands.job_of(job_id) == job_id]
        try:
            records = queries.records(alone)
        except commands.SlurmCommandError as why:
            raise Unreachable(str(why)) from None
        own = queries.by_job(records, alone)
        return {job_id: [*own.get(job_id, ())] for job_id in job_ids}

    def quota(self) -> SubmitQuota:
        return queries.quota()

    def submission_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return inherited_variables.outside_job(environ)

    def warnings(self, environ: Mapping[str, str]) -> list[str]:
        unused = unused_by_sbatch(environ)
        return [f"{', '.join(unused)} of this shell: not used; use a site profile or --slurm"] * bool(unused)

    def previews(self, batches: Iterable[Batch], *, test: bool, complete: bool) -> list[ScriptPreview]:
        if test and not queries.answers():
            raise ConfigError(f"--test-only needs Slurm, and {_UNAVAILABLE} (`scontrol ping`)")
        environment = inherited_variables.outside_job(os.environ)
        found: list[ScriptPreview] = []
        for batch in batches:
            fields = script_fields(batch)
            runs = [each.run.name for each in batch.submissions]
            script = render(fields) if complete or not found else None
            check = None
            if test:
                from jobs.schedulers.slurm.executor import check_script

                # without the jobs to wait for, which do not exist yet
                check = check_script(render(dataclasses.replace(fields, after=(), needs=())), environment)
            found.append(
                ScriptPreview(fields.name, runs, fields.profile.name, shape_options(fields), script, check)
            )
        return found


SCHEDULER = SlurmScheduler


def _logs(run: RunDir, *, shared: bool) -> Path:
    """The folder of a job's batch log, which Slurm names by the job id.

    Logs of several runs lie outside the runs, because a requeued job opens its log again.
    """
    return run.path.parent / ".arrays" if shared else run.submissions


def _link(source: Path, path: Path) -> None:
    """Make `path` a hard link to `source`, or a copy where no link between two folders is possible."""
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError:
        write_text(path, source.read_text(encoding="utf-8"))


def script_fields(batch: Batch) -> ScriptFields:
    """The fields of a batch's script."""
    first = batch.submissions[0].run
    profile = batch.profile or GENERIC
    assert isinstance(profile, Profile)
    # the end of a job of several runs does not tell how one of them ended: its start looks
    packed = [job_id for job_id in batch.needs.values() if commands.job_of(job_id) != job_id]
    return ScriptFields(
        name=batch.name,
        comment=batch.submissions[0].tag,
        config=batch.record["config"],
        tasks=[ArrayTask(each.run.path.absolute(), each.number) for each in batch.submissions],
        logs=_logs(first, shared=len(batch.submissions) > 1).absolute(),
        code=run_code.code_of_run(first, batch.record),
        python=sys.executable,
        profile=profile,
        after=list(dict.fromkeys(map(commands.job_of, [*batch.after, *packed]))),
        needs=[job_id for job_id in batch.needs.values() if job_id and job_id not in packed],
        at_once=batch.at_once,
        runs_per_job=batch.runs_per_job,
        folders=run_code.folders_of_run(first, batch.record),
        excluded_nodes=batch.record.get("excluded_nodes") or (),
    )


def unused_by_sbatch(inherited: Mapping[str, str]) -> list[str]:
    """Variables of the environment that set options of sbatch, and that `disttrain` does not pass on."""
    kept = inherited_variables.outside_job(inherited)
    return sorted(name for name in inherited if name.startswith("SBATCH_") and name not in kept)


def _jobs_by_comment() -> dict[str, str]:
    """Jobs and arrays that the controller lists, of any user, by comment. Raises `Unreachable`."""
    try:
        return queries.jobs_by_comment()
    except commands.SlurmCommandError:
        raise Unreachable("the Slurm controller does not answer") from None
