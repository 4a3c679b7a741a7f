"""Generate the documents on `--json`: `python -m jobs.cli.documents [--check]`.

The documents are `docs/schemas/command-output.json` and the tables in `docs/json.md`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from disttrain.config.type_names import type_name
from disttrain.documents import DOCS, table, update_files
from jobs.cli.command_output import SCHEMA
from jobs.status.run_state import StateName

_SUBMISSION = {
    "actions": "the action on each run and its reason; `blocked` and `deferred` runs make the exit code 1",
    "plans": "`--dry-run`: batch size, cost, config, environment and commands of each run",
    "batches": "`--dry-run`: batch scripts, and the scheduler's answer to each with `--test-only`",
    "sweep": "`--dry-run`: name of the sweep",
    "scaling": "`--dry-run`: `weak`, `strong`, or null",
    "base_ranks": "`--dry-run`: ranks for which the batch size is set, or null",
    "cluster": "`--dry-run`: scheduler that would be used",
}
VERB_KEYS: dict[str, dict[str, str]] = {
    "sweep": _SUBMISSION,
    "run": _SUBMISSION,
    "bench comm": {
        **_SUBMISSION,
        "page": "the HTML page of the report, once a run has ended",
        "report": "`report.json`",
        "comm_bench": "`comm-bench.json` of each finished run",
    },
    "fabric explain": {
        "fabric": "description of the node's adapters, interfaces, GPUs and libraries",
        "defects": "defects of the node that no variable mends, with the remedy",
        "variables": "variables that the network needs, with reason, evidence and source; `given` wins",
        "given": "variables that are already set, with their origin and the findings of the lint",
    },
    "fabric ab": {
        **_SUBMISSION,
        "fabric_ab": "`fabric-ab.json` of each experiment that has a result",
        "kept": "variables that gained, alone and again together, by run",
    },
    "fabric lint": {
        "findings": "findings, the worst first: severity, kind, name, value, origin, message, source",
        "checked": "number of communication variables in the file",
        "nccl": "version of NCCL that they were checked for; null: the newest known",
    },
    "resume": {"actions": _SUBMISSION["actions"]},
    "status": {
        "usage": "`--long`: GPU-hours and queue time of each run that has started",
        "usage_by_sweep": "`--long`: their sums",
        "table": "`--csv FILE`, `--parquet FILE`: the file written",
    },
    "nodes": {"excluded_nodes": "nodes that submissions from this runs folder exclude"},
    "annotate": {"annotations": "tags and note of each named sweep or run"},
    "watch": {},
    "show": {
        "record": "`run.json`",
        "attempt_records": "`attempt.json` of each attempt",
        "node_records": "hardware of each node of the last attempt",
        "env": "variables added to the environment of the ranks",
        "metrics": "`metrics.json`, or null",
    },
    "logs": {},
    "cancel": {
        "cancelled": "runs whose jobs were cancelled",
        "stopping": "`--graceful`: runs that will save a checkpoint and end",
    },
    "clean": {
        "moved": "runs, and the folder that each moved to; `runs` also has the active runs that stayed",
        "restored": "`--restore`: runs, and the folder that each moved to",
        "deleted": "`--purge`: folders of the trash, and their runs",
    },
    "doctor": {
        "subject": "the cluster or machine that was examined",
        "facts": "values that were read, by `host`, `runs` and `cluster`",
        "findings": "problems, worst first: `severity`, `key`, `problem`, `fix`, `evidence`",
        "unchecked": "checks that could not be made: `check`, `reason`",
        "profile": "`--write-profile`: the file written",
    },
    "emulate": {
        "path": "the file written",
        "scale": "compute time of the measured steps, divided by that of the isolated layer passes",
        "table": "the layer table",
    },
    "ingest": {},
    "report": {
        "page": "the HTML page",
        "report": "`report.json`",
        "csv": "`--csv`: the folder of the tables",
        "parquet": "`--parquet`: the folder of the tables",
        "targets": "`--check`: each target with the achieved figure and the verdict",
    },
    "cluster up": {"clusters": "the new cluster"},
    "cluster status": {"clusters": "nodes, partitions and links of each cluster"},
    "cluster down": {"removed": "name of the cluster"},
}
"""Keys that only some verbs have, with their meaning."""


class RunItem(BaseModel):
    """A run. Unknown values are null."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    sweep: str
    """Name of the sweep."""
    run: str
    """Name of the run within its sweep."""
    path: str
    """The run directory."""
    state: StateName | Literal["stopped", "cancelled"]
    """State of the run (docs/states.md)."""
    tags: list[str]
    """Tags of the run and of its sweep, in alphabetical order."""
    note: str | None
    """The user's note on the run."""
    sweep_note: str | None
    """The user's note on the sweep."""
    cause: str | None
    """Why the last attempt ended."""
    message: str | None
    """One line: the error, or what a queued run waits for."""
    retryable: bool
    """Whether the same `sweep` or `run` command submits the run again."""
    stale: bool
    """Whether code other than the current one finished the run."""
    cluster: str | None
    """Name of the scheduler, as of `--cluster`."""
    job_id: str | None
    """Job of the newest submission."""
    attempt: int | None
    """Number of the newest attempt; the first is 0."""
    attempts: int
    """Number of attempts."""
    step: int | None
    """Newest recorded optimizer step."""
    steps: int | None
    """Optimizer steps at the end of training."""
    samples_per_s: float | None
    """Throughput of all ranks over the measured steps so far."""
    live_samples_per_s: float | None
    """Throughput of the newest second or so."""
    loss: float | None
    """Training loss at the newest progress."""
    eta_s: float | None
    """Expected seconds to the end of training."""
    gpu_utilization: float | None
    """Mean over the GPUs of rank 0's node, from 0 to 1."""
    gpu_memory_used_bytes: float | None
    """Memory used on each of these GPUs, mean over the GPUs."""
    gpu_power_w: float | None
    """Power of each of these GPUs in watts, mean over the GPUs."""
    cpu_percent: float | None
    """Processor time of one rank, in percent of one processor."""
    rss_bytes: float | None
    """Resident memory of one rank."""
    updated: float | None
    """Unix time of the newest progress, in seconds."""
    changed: float | None
    """Unix time of the newest submission, start, progress or end, in seconds."""
    emulated: bool
    """Whether some of the work is emulated by waiting."""
    waits_for: str | None
    """Why a queued job waits, as the scheduler reports."""
    start_expected: float | None
    """Unix time at which the scheduler expects to start a queued job, in seconds."""
    config_key: str | None
    """Hash of the config keys that change the results."""
    run_key: str | None
    """Hash of config and code."""
    code_hash: str | None
    """Hash of the code of the newest attempt."""


class ErrorItem(BaseModel):
    """Why the exit code is not 0."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    message: str
    """The lines on stderr, without `error: `."""
    exit_code: int
    """Exit code of the command."""


class Document(BaseModel):
    """Output of `submit.py VERB --json`. Further keys depend on the verb."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    schema_: Literal[1]
    """Version of this schema."""
    verb: str | None
    """For example `status` or `cluster up`; null if the command line has no valid verb."""
    runs: list[RunItem]
    """The runs that the command shows or changes, in the state after the command."""
    warnings: list[str]
    """The warnings on stderr."""
    error: ErrorItem | None
    """Null if and only if the exit code is 0."""


def schema() -> dict[str, Any]:
    """The JSON schema of a document, which admits for each verb the keys of that verb."""
    made = Document.model_json_schema()
    made["properties"] = {"schema": made["properties"].pop("schema_")} | made["properties"]
    made["required"] = list(made["properties"])
    made["properties"]["schema"] |= {"const": SCHEMA, "title": "Schema"}
    made["allOf"] = [_admit({"const": verb}, [*made["required"], *keys]) for verb, keys in VERB_KEYS.items()]
    made["allOf"].append(_admit({"not": {"enum": [*VERB_KEYS]}}, made["required"]))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _admit(verb: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """A rule of JSON Schema: a document of such a verb has only these keys."""
    return {"if": {"properties": {"verb": verb}}, "then": {"propertyNames": {"enum": keys}}}


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    page = DOCS / "json.md"
    text = page.read_text()
    for name, generated in {"run": _run_table(), "verb": _verb_table()}.items():
        marks = rf"(?s)(?<=<!-- {name} keys, made by `make schemas` -->\n).*(?=<!-- end of {name} keys -->)"
        text = re.sub(marks, f"\n{generated}\n".replace("\\", r"\\"), text)
    return {DOCS / "schemas" / "command-output.json": json.dumps(schema(), indent=2) + "\n", page: text}


def _run_table() -> str:
    rows = [
        [f"`{name}`", type_name(field.rebuild_annotation()), field.description or ""]
        for name, field in RunItem.model_fields.items()
    ]
    return table(["key", "type", "meaning"], rows)


def _verb_table() -> str:
    """One row for each key and meaning, with all verbs that share it."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, keys in VERB_KEYS.items():
        for key, meaning in keys.items():
            verbs.setdefault((key, meaning), []).append(f"`{verb}`")
    rows = [[f"`{key}`", ", ".join(names), meaning] for (key, meaning), names in verbs.items()]
    return table(["key", "verb", "meaning"], rows)


def main(arguments: list[str]) -> int:
    """Write the documents; with `--check` list those that are out of date."""
    return update_files(documents(), [], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
