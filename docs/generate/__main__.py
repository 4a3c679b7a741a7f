"""`python -m docs.generate [--check]`: write the generated files, or list those that are out of date."""

from __future__ import annotations

import sys

from docs.generate import command_line, configuration, json_output, refusals, slurm, telemetry, variables
from docs.generate.files import DOCS, REFERENCE, update_files


def main(arguments: list[str]) -> int:
    """Write the files that differ; with `--check` only list them. Exit code."""
    modules = (configuration, refusals, slurm, json_output, command_line, telemetry, variables)
    texts = {path: text for module in modules for path, text in module.documents().items()}
    generated = [*DOCS.glob("schemas/*.json"), *REFERENCE.glob("*.md")]
    return update_files(texts, [path for path in generated if path not in texts], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
