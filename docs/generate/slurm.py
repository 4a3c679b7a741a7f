"""The schema of site profiles, the reference of their keys, and `jobs/train.sbatch`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from disttrain.config.parsing import check, load
from docs.generate.configuration import HEAD, field_row
from docs.generate.files import DOCS, REFERENCE, ROOT, page, table
from jobs.schedulers.slurm.profile import Container, Profile, Variable
from jobs.schedulers.slurm.train_script import script_of_checkout

_INTRODUCTION = """
Keys of a [site profile](../your-cluster.md#a-profile). Editors can check profiles with the
[schema](../schemas/site-profile.json).
"""


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Profile.model_json_schema()}
    schema["required"].remove("name")  # the file's name is the name; run.json has it as a field
    defaults = check(load(ROOT / "sweeps" / "default.yaml")).as_dict()
    return {
        DOCS / "schemas" / "site-profile.json": json.dumps(schema, indent=2) + "\n",
        REFERENCE / "profile-keys.md": page("Keys of a site profile", _INTRODUCTION, keys()),
        ROOT / "jobs" / "train.sbatch": script_of_checkout(defaults),
    }


def keys() -> str:
    """The keys of a profile, as Markdown."""
    models: dict[str, type[BaseModel]] = {"": Profile, "environment.NAME.": Variable, "container.": Container}
    rows = [
        field_row(f"{prefix}{name}", field)
        for prefix, model in models.items()
        for name, field in model.model_fields.items()
        if name != "name"
    ]
    return table(HEAD, rows)
