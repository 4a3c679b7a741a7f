"""Records written before a run starts: run, provenance, environment of the job, sweep, excluded nodes."""

from __future__ import annotations

import re
from typing import Any, Literal

from disttrain.records.base import Part, Record


class _GitState(Record):
    """State of the git repository of some code; all null without one."""

    git_commit: str | None = None
    git_dirty: bool | None = None
    git_diff: str | None = None
    """Output of `git diff HEAD`: uncommitted changes of tracked files, at most 256 KiB."""


class Code(_GitState):
    """The code of a run."""

    hash: str | None
    """SHA-256 over the sources that run inside a job: `2-` and 12 hex digits. Null for a training loop of the
    user, whose sources are unknown; the fields of git are then those of the user's script."""
    snapshot: Literal["git", "files"] | None = None
    """Source of the code copy that the job runs: files tracked by git, or files of the installed
    packages. Null for a trainer started by hand, which runs the code in place."""
    path: str | None = None
    """Path of the snapshot, below the runs folder."""
    source: str | None = None
    """The folder that was copied; the last entry of the job's module search path. Null for an installed
    package, beside which lie packages that another interpreter must not import."""
    taken: Literal["submission", "start"] | None = None
    """Time of the snapshot; `start` (`sbatch jobs/train.sbatch`) includes changes made in the queue time."""
    not_covered: list[str] = []
    """Modules named in the config that are not in the snapshot: later changes to them affect the run."""


class CommandCode(_GitState):
    """The code of a `command`, and the repository of its script."""

    folder: str
    """Working directory of the submission, and of each process of the command."""
    source: str | None
    """The folder that was copied: the git repository of the script, or the script's folder. Null for an
    installed module (`-m package.train`), which is not copied."""
    path: str | None
    """Path of the copy, below the runs folder."""
    hash: str | None
    """SHA-256 over the Python, YAML and TOML files of the copy: `c-` and 12 hex digits."""


class Provenance(Record):
    """Host, command and software of the planning of a run."""

    created: str
    """UTC, ISO 8601."""
    host: str
    user: str | None = None
    python: str
    packages: dict[str, str]
    """Versions of the recorded packages, by name."""
    code: Code
    command: CommandCode | None = None
    """The code of a `command`; null for a run of the trainer."""
    argv: list[str]
    """The planning command, secrets masked."""


class Ingested(Record):
    """The table, and what it has about a run beside the step records."""

    source: str
    """Name of the CSV file."""
    sha256: str
    """Of its content."""
    rows: int
    """Rows of this run that are used."""
    incomplete_steps: int = 0
    """Steps left out, since some rank of the run has no row of them."""
    ingested: str
    """UTC, ISO 8601."""
    hosts: list[str] = []
    """Host of each rank; empty without the column `host`."""


class RunRecord(Record):
    """`run.json`: everything needed to start this run; written before submission.

    A retry rewrites it only if something besides the provenance changes: the code or its copy, the cluster,
    a limit. The previous version is then kept as `attempts/NNN/run.json` of the last attempt made with it.
    """

    name: str
    sweep: str
    run_key: str
    """Hash of config (with the shape of the job), repeat and code."""
    config_key: str
    """Hash of config and repeat, without the code."""
    repeat: int | None
    """Null for a run that was started by hand."""
    config: dict[str, Any]
    """The full resolved config, with both batch sizes."""
    axes: dict[str, Any]
    """Swept keys, and this run's value of each."""
    cluster: Literal["local", "slurm"] | None
    """Null for a run that was started by hand, which no scheduler of `disttrain` started."""
    profile: dict[str, Any] | None = None
    """The full site profile of the submission (`docs/schemas/site-profile.json`); null without one, as on the
    local cluster."""
    excluded_nodes: list[str] = []
    """Nodes that the submission excluded, of the exclusion list of the runs folder."""
    follows: str | None = None
    """The run of the sweep that `job.on_done` or `job.on_checkpoint` submitted this one for."""
    runs_per_job: int = 1
    """Runs in its job, side by side on one node."""
    provenance: Provenance
    ingested: Ingested | None = None
    """Origin of a run that `disttrain ingest` made of a table; null for a run that this program measured."""


class EnvVariable(Record):
    """One environment variable added to the ranks."""

    value: str
    reason: str
    source: Literal["derived", "config", "site"]
    evidence: str | None = None
    """Path that detection read on the first node, or a figure, for a value derived from its network."""
    reference: str | None = None
    """Document that recommends such a value."""
    since: str | None = None
    """First version of its library for which a derived value holds; null for all."""
    until: str | None = None
    """Last such version."""


class EnvInherited(Record):
    """One communication variable that the job did not add."""

    value: str
    origin: str
    """`environment`, or the path of a file that NCCL reads."""


class EnvFinding(Record):
    """One finding of the lint of communication variables (docs/communication.md)."""

    severity: Literal["error", "warning", "info"]
    kind: str
    name: str
    value: str
    origin: str
    message: str
    source: str | None = None
    """Document that has the rule; null for rules without one."""


class EnvVersions(Record):
    """Versions of the first node for which the derived values hold; null for those that were not found."""

    nccl: str | None = None
    nvidia_driver: str | None = None
    aws_ofi_nccl: str | None = None
    """NCCL's network plugin for EFA and Slingshot."""
    libfabric: str | None = None


class EnvRecord(Record):
    """`env.json`: the environment added to the job. Values of secrets are masked."""

    variables: dict[str, EnvVariable]
    inherited: dict[str, EnvInherited] = {}
    """Communication variables of the first node that come from the shell, the site, or a file of NCCL."""
    findings: list[EnvFinding] = []
    """Findings of the lint on the first node, the worst first."""
    versions: EnvVersions | None = None


TargetMetric = Literal[
    "efficiency",
    "gpu_utilization",
    "memory_utilization",
    "mfu",
    "communication_share",
    "throughput",
    "throughput_per_gpu",
]
SHARES = frozenset({"efficiency", "gpu_utilization", "memory_utilization", "mfu", "communication_share"})
"""Target metrics between 0 and 1."""


_SIZES = [
    re.compile(form.replace("N", "[1-9][0-9]*"), re.IGNORECASE)
    for form in (
        "(?P<size>N)( ?(gpu|rank)s?)?",
        "n(?P<nodes>N)",
        "(?P<nodes>N) ?nodes?",
        "(?P<nodes>N) ?x ?(?P<per_node>N)",
    )
]


def parse_size(text: int | str) -> dict[str, int] | None:
    """What a size names: `16`, `16 gpus` or `16 ranks` the `size` in devices, `2 nodes` or `n2` the `nodes`,
    `2x8` the `nodes` and the devices `per_node`; None for another text."""
    known = next((found for form in _SIZES if (found := form.fullmatch(str(text)))), None)
    return known and {name: int(value) for name, value in known.groupdict().items()}


class Target(Record):
    """One target of a sweep file: a figure that runs of one size have to reach."""

    metric: TargetMetric
    """`communication_share` is exposed communication / step time, an upper bound; all others are lower
    bounds. `gpu_utilization` is the mean that NVML reports, `memory_utilization` the highest fraction of a
    device's memory that torch reserved, `throughput` is in samples/s."""
    value: float
    at: int | str | None = None
    """A size of `parse_size`; null for the largest planned."""


class AutoRepeats(Record):
    """`auto:2%:10`: repeats are added to each point until the 95 % interval of its throughput is narrow."""

    within: float
    """Half width of the interval, as a share of the throughput."""
    most: int
    """Largest number of repeats of a point."""


class SweepRecord(Record):
    """`sweep.json`, in the sweep's folder: the base config of all its runs, and its targets."""

    name: str
    base: dict[str, Any]
    """The config without the axes, and `scaling`."""
    created: str
    targets: list[Target] = []
    """Replaced by each `sweep` whose file has a `targets` section."""
    repeats: AutoRepeats | None = None
    """Of the latest `sweep` with `--repeats auto`; null without one."""


class AnnotationRecord(Record):
    """`annotation.json` of a sweep or run, which the user may change at any time.

    It is no part of the config, and so of no hash.
    """

    tags: list[str] = []
    """In alphabetical order."""
    note: str | None = None


class ExcludedNodeRecord(Part):
    """One excluded node."""

    host: str
    reason: str
    """One line."""
    cluster: str | None
    """Slurm's ClusterName; null: the node is excluded on every cluster that has a node of this name."""
    by: str
    """Run whose pre-flight found the node, or the user who excluded it."""
    time: str
    expires: str
    """Time from which the node is used again."""


class ExcludedNodes(Record):
    """`.excluded-nodes.json` in the runs folder: nodes that later submissions exclude."""

    nodes: list[ExcludedNodeRecord]
