"""A sweep file and the command line, expanded into runs.

    sweep file ──┐                 ┌─ points: grids x axes, without excluded combinations
    --set, flags ┴─> draft ─> axes ┴─> base + point ─> checked config ─> batch sizes ─> name

Repeats are the outermost loop, and nodes ascend within each repeat. Every shape runs once before any shape
runs again, so that slow drift of a machine (temperature, other jobs) affects all shapes alike.
"""

from __future__ import annotations

import functools
import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from disttrain.config.batch_plan import BatchPlan
from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.parsing import SWEEP_SECTIONS, Draft, check, take_secrets, with_batch
from disttrain.config.run_key import hash_values, keyed_values
from disttrain.errors import ConfigError, nearest
from disttrain.records.planned import AutoRepeats, Target
from sweeps import command_template
from sweeps.base_config import base_config
from sweeps.overrides import Override, check_distinct
from sweeps.run_names import readable_names, unique_names
from sweeps.sweep_section import SweepSection, check_exclude_keys, read_section, take_auto_repeats
from sweeps.targets_section import read_targets

NODES, GPUS = "resources.nodes", "resources.gpus_per_node"
Axes = dict[str, list[Any]]
Point = dict[str, Any]
_Repeated = tuple[Point, Point, Config, BatchPlan | None, int, str]
"""Axes, axes with a filled command, config, batch plan, repeat and config key of a run."""
Progress = Callable[[Sequence[Any], str], Iterable[Any]]
"""Passes items through and shows how many of them are done; the text describes the work."""


def without_progress(items: Sequence[Any], text: str) -> Iterable[Any]:
    """A `Progress` that shows nothing."""
    return items


@dataclass(frozen=True)
class RunPlan:
    """One planned run of a sweep."""

    name: str
    config: Config
    """Resolved: both batch sizes are set, and the global one is divisible by the ranks."""
    config_key: str
    repeat: int
    axes: dict[str, Any]
    """Axis keys, with this run's value of each."""
    batch: BatchPlan | None
    """None for a `command`."""
    follows: str | None = None
    """The run of the sweep that `job.on_done` or `job.on_checkpoint` submits it for."""


@dataclass(frozen=True)
class SweepPlan:
    """A sweep: its name, its base config (`sweep.json`), and its runs in start order."""

    name: str
    base: dict[str, Any]
    runs: tuple[RunPlan, ...]
    targets: tuple[Target, ...] | None = None
    """None: the file has no `targets` section."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of the secrets that all runs share, which stand in no config."""
    repeats: AutoRepeats | None = None
    """Rule by which repeats are added; `runs` are then those of the largest number of repeats."""

    @property
    def scaling(self) -> Literal["weak", "strong"]:
        scaling: Literal["weak", "strong"] = self.base["sweep"]["scaling"]
        return scaling

    @property
    def base_ranks(self) -> int | None:
        """Number of ranks that the batch sizes refer to; None: each run's own ranks."""
        ranks: int | None = self.base["sweep"]["base_ranks"]
        return ranks


@dataclass(frozen=True)
class ExistingSweep:
    """Runs that a sweep has already: they fix run names and the reference of batch sizes."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Run name by config key."""
    base_ranks: int | None = None
    unreadable: frozenset[str] = frozenset()
    """Names of runs whose config key is unreadable."""


def expand(
    draft: Draft,
    overrides: Sequence[Override] = (),
    *,
    name: str,
    shapes: Sequence[Axes] = (),
    grids: Sequence[str] = (),
    existing: ExistingSweep | None = None,
    scale_batch: bool = True,
    progress: Progress = without_progress,
) -> SweepPlan:
    """The runs of a sweep. Raises `ConfigError` for bad input, a line for each mistake in a config.

    Parameters
    ----------
    draft : the sweep file
    overrides : keys of the command line; each replaces the file's axis, a single value also the base value
    shapes, grids : axes of nodes and GPUs in place of the file's; names of the file's grids (empty: all)
    existing : runs of the sweep of this name
    progress : shows the progress of the longest part, the check of all combinations
    scale_batch : whether batch sizes refer to `base_ranks` and are scaled; False: each run's own ranks
    """
    existing = existing or ExistingSweep()
    check_distinct(overrides)
    base, overrides, has_command = _with_base_values(draft, overrides)
    rule = take_auto_repeats(base)
    section, targets = read_section(base), read_targets(base)
    chosen = [_with_overrides(axes, overrides) for axes in _chosen_grids(section, grids, base)]
    products = [axes | shape for axes in chosen for shape in shapes or [{}]]
    origins = dict.fromkeys((NODES, GPUS), "--gpus") | _axis_origins(section, base, overrides)
    secrets = take_secrets(base, products, origins)
    _check_axes(products, origins)
    has_command = has_command or any("command" in axes for axes in products)
    check_exclude_keys(section, {key for axes in products for key in axes}, base)
    points = progress(_points(products), "checking combinations")
    drafts = ((point, _with_point(base, point, origins, has_command)) for point in points)
    checked = _checked(
        each for each in drafts if not any(_matches(*each, entry) for entry in section.exclude)
    )
    if not checked:
        raise ConfigError("sweep.exclude leaves no run", at=base.at("sweep.exclude"))
    checked.sort(key=lambda item: (item[2].resources.nodes, item[2].resources.gpus_per_node))  # stable
    base_ranks = None
    if scale_batch and not has_command:
        base_ranks = existing.base_ranks or min(config.world_size for _, _, config in checked)
    scaling = section.scaling
    resolved = [(point, *with_batch(config, each, base_ranks, scaling)) for point, each, config in checked]
    return SweepPlan(
        name,
        base_config(base, scaling=scaling, base_ranks=base_ranks, has_command=has_command),
        _runs(_filled(resolved, section.repeats, base, origins), existing),
        targets,
        secrets,
        rule,
    )


def _checked(drafts: Iterable[tuple[Point, Draft]]) -> list[tuple[Point, Draft, Config]]:
    """The points with their checked configs. Raises `ConfigError`, a line for each mistake of any point."""
    checked = []
    errors: dict[str, None] = {}
    tried: set[str] = set()
    for point, draft in drafts:
        values = {_json([key, value]) for key, value in point.items()}
        if errors and values <= tried:
            continue  # a mistake of the base would be found again for each of thousands of points
        tried |= values
        try:
            checked.append((point, draft, check(draft)))
        except ConfigError as error:
            errors |= dict.fromkeys(str(error).splitlines())
    if errors:
        raise ConfigError.of_all(errors)
    return checked


def _with_base_values(draft: Draft, overrides: Sequence[Override]) -> tuple[Draft, Sequence[Override], bool]:
    """The sweep file with the overrides that are no axes; the overrides; whether a command runs."""
    base = draft.copy()
    has_command = any(override.key == "command" for override in overrides) or bool(base.get("command"))
    if has_command:  # a name that only the command uses is no part of the base config
        is_free = command_template.is_free
        overrides = [replace(each, axis=each.axis or is_free(each.key)) for each in overrides]
    for override in overrides:
        if not override.axis:
            base.set(override.key, override.values[0], override.origin)
    return base, overrides, has_command


def _chosen_grids(section: SweepSection, chosen: Sequence[str], draft: Draft) -> list[Axes]:
    """Axes of each chosen grid, those of `sweep.axes` first."""
    for name in chosen:
        if name not in section.grids:
            known = ", ".join(section.grids) or "none"
            hint = nearest(name, section.grids)
            raise ConfigError(f"no grid {name!r} in the sweep file{hint}; grids: {known}", at="--grid")
    for name, grid in section.grids.items():
        for key in grid:
            if key in section.axes:
                origin = draft.at(f"sweep.grids.{name}.{key}")
                raise ConfigError(f"{key} is an axis of grid {name!r} and in sweep.axes; keep one", at=origin)
    if not section.grids:
        return [section.axes]
    return [section.axes | grid for name, grid in section.grids.items() if not chosen or name in chosen]


def _with_overrides(axes: Axes, overrides: Sequence[Override]) -> Axes:
    axes = dict(axes)
    for override in overrides:
        if override.axis:
            axes[override.key] = list(override.values)
        else:
            axes.pop(override.key, None)
    return axes


def _axis_origins(section: SweepSection, draft: Draft, overrides: Sequence[Override]) -> dict[str, str]:
    """Origin of each axis, for messages: `file.yaml:12`, `--nodes`."""
    written = [(key, f"sweep.axes.{key}") for key in section.axes]
    written += [(key, f"sweep.grids.{name}.{key}") for name, grid in section.grids.items() for key in grid]
    origins = {key: draft.at(path) or "sweep" for key, path in written}
    return origins | {override.key: override.origin for override in overrides}


def _check_axes(products: list[Axes], origins: Mapping[str, str]) -> None:
    for axes in products:
        for key, values in axes.items():
            if key.split(".")[0] in SWEEP_SECTIONS:
                raise ConfigError(f"{key} cannot be an axis", at=origins[key])
            texts = [_json(value) for value in values]
            twice = next((text for text in texts if texts.count(text) > 1), None)
            if twice is not None:
                raise ConfigError(f"{key}: the axis has the value {twice} twice", at=origins[key])


def _points(products: list[Axes]) -> list[Point]:
    """Union of the products, in order, without duplicates."""
    union: dict[str, Point] = {}
    for axes in products:
        for values in itertools.product(*axes.values()):
            point = dict(zip(axes, values, strict=True))
            union.setdefault(_json(point), point)
    return list(union.values())


def _with_point(base: Draft, point: Point, origins: Mapping[str, str], has_command: bool) -> Draft:
    draft = base.copy()
    for key, value in point.items():
        if not (has_command and command_template.is_free(key)):
            draft.set(key, value, origins[key])
    return draft


def _matches(point: Point, draft: Draft, entry: Mapping[str, Any]) -> bool:
    return all((point[key] if key in point else _value(draft, key)) == value for key, value in entry.items())


def _value(draft: Draft, key: str) -> Any:
    """Value of a key in an unchecked config: an excluded combination need not be valid."""
    value = draft.get(key)
    return get_key(_defaults(), key) if value is None else value


@functools.cache
def _defaults() -> dict[str, Any]:
    return Config().as_dict()


def _filled(
    resolved: Sequence[tuple[Point, Config, BatchPlan | None]],
    repeats: int,
    base: Draft,
    origins: Mapping[str, str],
) -> list[_Repeated]:
    """Every repeat of every run, with the words of its command and variables."""

    def origin(key: str) -> str | None:
        return origins.get(key) or base.at(key)

    found: list[_Repeated] = []
    keyed = [keyed_values(config) for _, config, _ in resolved]
    for repeat in range(repeats):
        for (point, config, batch), values in zip(resolved, keyed, strict=True):
            axes = point
            if config.command or config.job.env:
                config = command_template.filled(config, point, repeat, origin)
                values["job"]["env"] = config.job.env
            if config.command:
                values["command"] = list(config.command)
                if "command" in point:
                    axes = {**point, "command": shlex.join(config.command)}
            found.append((point, axes, config, batch, repeat, hash_values(values, repeat)))
    return found


def _runs(repeated: Sequence[_Repeated], existing: ExistingSweep) -> tuple[RunPlan, ...]:
    seen: dict[str, Point] = {}
    for _, point, *_, key in repeated:
        if key in seen:
            raise ConfigError(f"two runs would be the same: {_difference(seen[key], point)}")
        seen[key] = point
    names = readable_names((config, axes, repeat) for axes, _, config, _, repeat, _ in repeated)
    wanted = [(name, key) for name, (*_, key) in zip(names, repeated, strict=True)]
    return tuple(
        RunPlan(name, config, key, repeat, point, batch)
        for name, (_, point, config, batch, repeat, key) in zip(
            unique_names(wanted, existing.names, existing.unreadable), repeated, strict=True
        )
    )


def _difference(one: Point, other: Point) -> str:
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    texts = [f"{key}={one.get(key, 'base')} and {key}={other.get(key, 'base')}" for key in keys]
    return f"{', '.join(texts)} have the same config key"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
