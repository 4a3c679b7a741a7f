"""Check the plug-ins, the Hugging Face models and the compilers of planned configs, by importing them.

`python -m disttrain.engine.plug_in_check` reads a JSON list of configs before a submission, in a process of
its own. It prints the first error and ends with code 2, or a line for each name that only a job can import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from disttrain.config.config_tree import Config
from disttrain.config.options import check_options, inspected, plug_ins
from disttrain.config.sections.compute import KNOWN_BACKENDS
from disttrain.errors import EXIT_BAD_INPUT, ConfigError, in_one_line
from disttrain.hardware.fields import load_field
from disttrain.models import huggingface
from disttrain.runtime.kernels import require_backend
from disttrain.runtime.plug_ins import load_plug_in, place_of

_SCHEME = "parallel.gradient_communication.scheme"


def unchecked(config: Config) -> Iterator[str]:
    """The reason for each name that cannot be checked here. Raises `ConfigError` for an invalid one."""
    for key, package, name in plug_ins(config):
        package = f"disttrain.{package.replace('/', '.')}"
        module, attribute = place_of(package, name)
        try:
            hasattr(importlib.import_module(module), attribute)  # a lazy module imports it now
        except SyntaxError as error:
            raise ConfigError(f"{key}={name}: {error.msg}", at=f"{error.filename}:{error.lineno}") from None
        except (Exception, SystemExit) as error:  # this machine may lack what the module needs
            yield f"{key}={name}: {in_one_line(error)}"
            continue
        if key == "telemetry.fields":
            load_field(name)
        else:
            _check_options(config, key, name, load_plug_in(key, package, name))
    if config.compile.used_backend not in (None, *KNOWN_BACKENDS):
        require_backend(config.compile.used_backend)
    if config.model.kind != "huggingface":
        return
    path = (config.model.model_extra or {}).get("path")
    if importlib.util.find_spec("transformers") is None:
        yield "model.kind=huggingface: transformers is not installed here"
    elif path and not Path(path, "config.json").is_file():
        yield f"model.path={path} has no config.json on this machine"
    else:
        huggingface.check(config.as_dict())


def _check_options(config: Config, key: str, name: str, build: Callable[..., Any]) -> None:
    """Raise `ConfigError` for options that `build` does not accept."""
    parallel, scheme = config.parallel, config.parallel.gradient_communication
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "model.kind": ("model", config.model.model_extra or {}),
        "data.kind": ("data", config.data.model_extra or {}),
    }
    if ":" in name:
        given["parallel.strategy"] = ("parallel.options", parallel.options)
        given[_SCHEME] = ("parallel.gradient_communication.options", scheme.options)
    if key in given:
        build = functools.partial(build, None) if key == _SCHEME else build  # its first argument is the group
        section, options = given[key]
        check_options(inspected(build), section, name, options, key)


def main(answer: TextIO) -> int:
    try:
        lines = [line for each in json.load(sys.stdin) for line in unchecked(Config.model_validate(each))]
    except ConfigError as error:
        print(error, file=answer)
        return EXIT_BAD_INPUT
    for line in dict.fromkeys(lines):
        print(f"{line}, so only the job can check it", file=answer)
    return 0


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # what plug-ins print is not part of the answer
        code = main(answer)
    sys.exit(code)
