"""Generate documents from site profiles and scripts: `python -m jobs.schedulers.documents [--check]`.

The documents are `docs/schemas/site-profile.json`, the keys in `docs/profiles.md`, and `jobs/train.sbatch`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pydantic import BaseModel

from disttrain.config.parsing import check, load
from disttrain.config.type_names import type_name
from disttrain.documents import DOCS, table, update_files
from jobs.schedulers.slurm.profile import Container, Profile, Variable
from jobs.schedulers.slurm.script import by_hand

ROOT = Path(__file__).resolve().parents[2]
_KEYS = re.compile(r"(?<=<!-- keys, made by `make schemas` -->\n).*(?=<!-- end of keys -->)", re.DOTALL)


def documents() -> dict[Path, str]:
    """Every generated file and its text."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Profile.model_json_schema()}
    schema["required"].remove("name")  # the file's name is the name; run.json has it as a field
    page = DOCS / "profiles.md"
    return {
        DOCS / "schemas" / "site-profile.json": json.dumps(schema, indent=2) + "\n",
        page: _KEYS.sub(lambda _: keys(), page.read_text()),
        ROOT / "jobs" / "train.sbatch": by_hand(check(load(ROOT / "sweeps" / "default.yaml")).as_dict()),
    }


def keys() -> str:
    """The keys of a profile, as Markdown."""
    rows = []
    for prefix, model in (("", Profile), ("environment.NAME.", Variable), ("container.", Container)):
        rows += _rows(prefix, model)
    return "\n" + table(["key", "type", "default", "meaning"], rows) + "\n"


def _rows(prefix: str, model: type[BaseModel]) -> list[list[str]]:
    return [
        [
            f"`{prefix}{name}`",
            type_name(field.rebuild_annotation()),
            "needed"
            if field.is_required()
            else f"`{json.dumps(field.get_default(call_default_factory=True))}`",
            " ".join((field.description or "").split()),
        ]
        for name, field in model.model_fields.items()
        if name != "name"
    ]


def main(arguments: list[str]) -> int:
    """Write the documents; with `--check` list those that are out of date."""
    return update_files(documents(), [], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
