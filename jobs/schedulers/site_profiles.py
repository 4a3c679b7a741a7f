"""Read site profiles from files and flags.

A name refers to a file in `~/.config/disttrain/profiles/` or, after that, in `jobs/profiles/`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from disttrain.config.parsing import Draft, load, parse_value
from disttrain.config.validation import describe
from disttrain.errors import ConfigError, nearest
from jobs.schedulers import profile_files
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.slurm.profile import Container, Profile, Variable

VARIABLE = "DISTTRAIN_PROFILE"
_SECTIONS = ("sbatch", "srun", "environment", "container")
_SETTABLE = [name for name in Profile.model_fields if name != "name"]
_PARSED = ("gpus_per_node", "cpus_per_task", "exclusive", "idle_timeout_min")
_LISTS = ("mail_type", "modules", "setup", "node_setup", "mounts", "arguments")
"""Keys whose values in brackets are lists."""


def resolve(
    selection: ProfileSelection, recorded: Mapping[str, Any] | None = None, *, try_options: bool = False
) -> Profile:
    """The profile of a submission: `--profile`, else `recorded` (of a resumed run), else the default.

    With `try_options`, the installed sbatch and srun check its options. Raises `ConfigError`, one line.
    """
    if selection.flag is not None:
        draft = _read(selection.flag, "--profile")
    elif recorded is not None:
        draft = Draft(dict(recorded))
    else:
        draft = _read(os.environ.get(VARIABLE) or "generic", VARIABLE)
    for text in selection.overrides:
        _lay_over(draft, text)
    try:
        profile = Profile.model_validate(draft.data)
    except ValidationError as error:
        raise _one_line(error, draft) from None
    if try_options and (refused := profile.refused_option()):
        key, reason = refused
        raise ConfigError(f"{key}: {reason}", at=draft.at(key))
    return profile


def _read(word: str, origin: str) -> Draft:
    """The unchecked profile of this name or file."""
    if word.endswith((".yaml", ".yml")) or "/" in word:
        path = Path(word).expanduser()
    else:
        known = profile_files()
        if word not in known:
            hint = f"{nearest(word, known)}; there are: {', '.join(known)}, or give a file"
            raise ConfigError(f"{origin}={word!r}: no such profile{hint}")
        path = known[word]
    draft = load(path)
    if "name" in draft.data:
        raise ConfigError("a profile is named by its file: leave `name` out", at=draft.at("name"))
    draft.set("name", path.stem, str(path))
    return draft


def _lay_over(draft: Draft, text: str) -> None:
    """Lay `KEY=VALUE` of `--slurm` over the profile; an empty value removes the profile's own."""
    key, equals, value = text.partition("=")
    field, *rest = key.strip().split(".", 1)
    if not equals:
        raise ConfigError(f"{text!r} is not KEY=VALUE", at="--slurm")
    if field not in _SETTABLE:
        raise _unknown(key, _SETTABLE, "--slurm")
    if len(rest) != (field in _SECTIONS):
        form = f"{field}.KEY=VALUE" if field in _SECTIONS else f"{field}=VALUE"
        raise ConfigError(f"{key}: give {form}", at="--slurm")
    node = draft.data
    if rest:  # of a copy: the draft may hold a record
        section = node.get(field)
        node = draft.data[field] = dict(section) if isinstance(section, dict) else {}
    leaf = rest[0] if rest else field
    if not value:
        node.pop(leaf, None)
    elif field == "environment":
        node[leaf] = {"value": value, "reason": "--slurm"}
    elif field in ("sbatch", "srun"):
        node[leaf] = value == "true" or value
    else:
        is_yaml = leaf in _PARSED or (leaf in _LISTS and value.startswith("["))
        node[leaf] = parse_value(value, "--slurm") if is_yaml else value
    draft.origin[key.strip()] = "--slurm"


def _unknown(key: str, allowed: list[str], at: str | None) -> ConfigError:
    hint = nearest(key.rpartition(".")[2], allowed)
    return ConfigError(f"unknown key '{key}'{hint}; allowed: {', '.join(allowed)}", at=at)


def _one_line(error: ValidationError, draft: Draft) -> ConfigError:
    errors = error.errors()  # of the errors of a union type, the one about the value itself
    detail = next((each for each in errors if each["type"] in ("value_error", "extra_forbidden")), errors[0])
    section, *rest = map(str, detail["loc"] or [""])
    if detail["type"] == "extra_forbidden":
        fields = {"environment": Variable.model_fields, "container": Container.model_fields}
        allowed = list(fields[section]) if rest else _SETTABLE
        key = ".".join([section, *rest])
        return _unknown(key, allowed, draft.at(key))
    if detail["type"] == "value_error":
        detail["msg"] = str(detail["ctx"]["error"])
    others = () if detail["type"] == "value_error" else (each for each in errors if each is not detail)
    key, message = describe([detail, *others])[0]
    if isinstance(detail["input"], Mapping):  # a mistake of a whole section
        message = f"{key}: {detail['msg']}" if key else detail["msg"]
    return ConfigError(message, at=draft.at(key))
