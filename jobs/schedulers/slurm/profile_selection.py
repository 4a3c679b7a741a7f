"""Find and read site profiles, and select the profile of a submission.

A name refers to a file in `~/.config/disttrain/profiles/` or, after that, in `jobs/profiles/`.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError

from disttrain.config.parsing import Draft, load, parse_value
from disttrain.errors import ConfigError, nearest
from jobs.schedulers.interface import ProfileSelection
from jobs.schedulers.profile_files import profile_files
from jobs.schedulers.slurm.profile_options import check_options
from jobs.schedulers.slurm.site_profile import GENERIC, Container, Profile, Variable
from jobs.schedulers.slurm.version import InstalledSlurm

VARIABLE = "DISTTRAIN_PROFILE"
_OF_PYDANTIC = r"literal\[|function-|constrained-"
"""Parts of an error's location that name an alternative of a union type, not a key."""
_SECTIONS = ("sbatch", "srun", "environment", "container")
_SETTABLE = [name for name in Profile.model_fields if name != "name"]


def resolve(
    selection: ProfileSelection,
    recorded: Mapping[str, Any] | None = None,
    slurm: Callable[[], InstalledSlurm] | None = None,
) -> Profile:
    """The profile of a submission: `--profile`, else `recorded` (of a resumed run), else the default.

    `slurm` is called only for a profile with options that depend on the version, which are then checked
    against it. Raises `ConfigError`.
    """
    if selection.flag is not None:
        draft = read(selection.flag, "--profile")
    elif recorded is not None:
        draft = Draft(dict(recorded))
    elif os.environ.get(VARIABLE):
        draft = read(os.environ[VARIABLE], VARIABLE)
    else:
        draft = read(GENERIC.name, "--profile")
    for text in selection.overrides:
        _lay_over(draft, text)
    profile = check(draft)
    problem = check_options(profile, slurm()) if slurm and depends_on_version(profile) else None
    if problem is not None:
        key, why = problem
        raise ConfigError(f"{key}: {why}", at=draft.at(key))
    return profile


def depends_on_version(profile: Profile) -> bool:
    """Whether a profile has options that not every version of Slurm has."""
    return bool(profile.sbatch or profile.srun or profile.exclusive == "topo")


def read(word: str, origin: str) -> Draft:
    """The unchecked profile of this name or file. Raises `ConfigError`."""
    if word.endswith((".yaml", ".yml")) or "/" in word:
        path = Path(word).expanduser()
    else:
        known = profile_files()
        if word not in known:
            raise ConfigError(
                f"{origin}={word!r}: no such profile{nearest(word, known)}; there are: {', '.join(known)}, "
                "or give a file"
            )
        path = known[word]
    draft = load(path)
    if "name" in draft.data:
        raise ConfigError("a profile is named by its file: leave `name` out", at=draft.at("name"))
    draft.set("name", path.stem, str(path))
    return draft


def check(draft: Draft) -> Profile:
    """The checked profile. Raises `ConfigError` with a message of one line."""
    try:
        return Profile.model_validate(draft.data)
    except ValidationError as error:
        raise _one_line(error, draft) from None


def _lay_over(draft: Draft, text: str) -> None:
    """Lay `KEY=VALUE` of `--slurm` over the profile; an empty value removes the profile's own."""
    key, equals, value = text.partition("=")
    field, *rest = key.strip().split(".", 1)
    if not equals:
        raise ConfigError(f"{text!r} is not KEY=VALUE", at="--slurm")
    if field not in _SETTABLE:
        hint = nearest(field, _SETTABLE)
        raise ConfigError(f"unknown key '{key}'{hint}; allowed: {', '.join(_SETTABLE)}", at="--slurm")
    section = field in _SECTIONS
    if len(rest) != section:
        form = f"{field}.KEY=VALUE" if section else f"{field}=VALUE"
        raise ConfigError(f"{key}: give {form}", at="--slurm")
    _put(draft, [field, *rest], _value(field, rest, value) if value else None)
    draft.origin[key.strip()] = "--slurm"


def _value(field: str, rest: list[str], text: str) -> Any:
    if field == "environment":
        return {"value": text, "reason": "--slurm"}
    if field in ("sbatch", "srun"):
        return True if text == "true" else text
    if rest:
        return parse_value(text, "--slurm") if rest[0] in ("mounts", "arguments") else text
    if field in ("modules", "setup", "node_setup") and not text.startswith("["):
        return text
    return text if _is_text(Profile.model_fields[field].annotation) else parse_value(text, "--slurm")


def _put(draft: Draft, path: list[str], value: Any) -> None:
    node = draft.data
    for name in path[:-1]:
        child = node.get(name)
        node[name] = node = dict(child) if isinstance(child, dict) else {}
    if value is None:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = value


def _is_text(annotation: Any) -> bool:
    """Whether a field holds text, which is not parsed as YAML."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else [annotation]
    return any(member is str or str in get_args(member) for member in members)


def _one_line(error: ValidationError, draft: Draft) -> ConfigError:
    found = error.errors()  # of the errors of a union type, the one about the value itself
    telling = ("value_error", "extra_forbidden")
    detail = next((each for each in found if each["type"] in telling), found[0])
    place = _place(detail["loc"], draft.data)
    key, kind = ".".join(place), detail["type"]
    if kind == "extra_forbidden":
        sections = {"environment": Variable.model_fields, "container": Container.model_fields}
        allowed = list(sections.get(place[0], {})) if len(place) > 1 else _SETTABLE
        hint = nearest(place[-1], allowed)
        return ConfigError(f"unknown key '{key}'{hint}; allowed: {', '.join(allowed)}", at=draft.at(key))
    reason = str(detail["ctx"]["error"]) if kind == "value_error" else _lower_first(detail["msg"])
    words = [each["ctx"]["expected"] for each in found if each["type"] == "literal_error"]
    if kind.startswith("bool_") and words:  # true, false or one of some words
        reason = f"input should be true, false, {words[0]}"
    of_section = kind == "value_error" and isinstance(detail["input"], Mapping)
    value = "" if of_section else f"={detail['input']!r}"
    return ConfigError(f"{key}{value}: {reason}" if key else reason, at=draft.at(key))


def _place(location: Sequence[str | int], data: Any) -> list[str]:
    """Keys of an error's location: those within the given data, and a missing key."""
    found, node = [], data
    for part in location:
        if re.match(_OF_PYDANTIC, str(part)):
            continue
        if not isinstance(node, (Mapping, list, tuple)):  # the name of a type of a union
            break
        found.append(str(part))
        node = node.get(part) if isinstance(node, Mapping) else node[int(part)]
    return found


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
