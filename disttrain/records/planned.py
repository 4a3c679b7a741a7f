"""What is written before a run starts: the run, its sweep, the environment added to its job."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from disttrain.config.renamed_keys import translate_run
from disttrain.records.base import Record
from disttrain.records.provenance import Provenance


class RunRecord(Record):
    """`run.json`: everything needed to start this run; written before submission.

    A retry leaves it as it is unless what it says changes, provenance aside (other code or another copy of
    it, another cluster, a raised limit); the former one is then kept as `attempts/NNN/run.json` of the last
    attempt made with it.
    """

    name: str
    sweep: str
    run_key: str
    """Hash of what the run computes and the code it does it with: config, shape, repeat, code."""
    config_key: str
    """The same without the code."""
    repeat: int
    config: dict[str, Any]
    """The full resolved config; both batch sizes are given in it."""
    axes: dict[str, Any]
    """The swept keys and this run's value of each."""
    cluster: Literal["local", "slurm"]
    profile: dict[str, Any] | None = None
    """The site profile it is submitted with, in full (`docs/schemas/site-profile.json`); null where there is
    none, as on the local cluster."""
    provenance: Provenance

    @model_validator(mode="before")
    @classmethod
    def _with_todays_keys(cls, record: Any) -> Any:
        return translate_run(record) if isinstance(record, dict) else record


class EnvVariable(Record):
    """One environment variable added to the ranks."""

    value: str
    reason: str
    source: Literal["derived", "config", "site"]


class EnvRecord(Record):
    """`env.json`: the environment added to the job. Values of secret-looking names are masked."""

    variables: dict[str, EnvVariable]


class SweepRecord(Record):
    """`sweep.json`, in the sweep's folder: the base that every run of this sweep shares."""

    name: str
    base: dict[str, Any]
    """The config before axes are laid over it, with `scaling`."""
    created: str
