"""Check the plug-ins and the Hugging Face models of planned configs, by importing them.

`python -m disttrain.engine.plug_in_check` reads a JSON list of configs before a submission, in a process of
its own. It prints the first error and ends with code 2, or a line for each name that only a job can import.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from disttrain.config.config_tree import Config
from disttrain.config.options import check_options, inspected, plug_ins
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from disttrain.models import huggingface
from disttrain.runtime.plug_ins import load_plug_in


def unchecked(config: Config) -> Iterator[str]:
    """A line for each plug-in that cannot be imported here. Raises `ConfigError` for an invalid one."""
    for key, package, name in plug_ins(config):
        if ":" in name and not _is_here(module := name.partition(":")[0]):
            yield f"{key}={name}: no module {module!r} here, so only the job can check it"
            continue
        build = load_plug_in(key, f"disttrain.{package.replace('/', '.')}", name)
        section, _, leaf = key.partition(".")
        if leaf == "kind":
            given = config.model.model_extra if section == "model" else config.data.model_extra
            check_options(inspected(build), section, name, given or {})
    if config.model.kind != "huggingface":
        return
    path = (config.model.model_extra or {}).get("path")
    if not _is_here("transformers"):
        yield "model.kind=huggingface: transformers is not installed here, so only the job can check it"
    elif path and not Path(path, "config.json").is_file():
        yield f"model.path={path} has no config.json on this machine, so only the job can check it"
    else:
        huggingface.check(config.as_dict())


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def main() -> int:
    try:
        lines = [line for each in json.load(sys.stdin) for line in unchecked(Config.model_validate(each))]
    except ConfigError as error:
        print(error)
        return EXIT_BAD_INPUT
    for line in dict.fromkeys(lines):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
