"""`python -m docs.generate [--check]`: write the generated files, or list those that are out of date."""

from __future__ import annotations

import sys

from docs.generate import configuration, json_output, slurm
from docs.generate.files import DOCS, update_files


def main(arguments: list[str]) -> int:
    """Write the files that differ; with `--check` only list them. Exit code."""
    texts = {**configuration.documents(), **slurm.documents(), **json_output.documents()}
    return update_files(texts, [path for path in DOCS.glob("schemas/*.json") if path not in texts], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
