"""Make a `SweepPlan` and `sweep.json` from the arguments of `sweep` and `run`."""

from __future__ import annotations

import argparse
import os
import re
from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from disttrain.config.parsing import Draft, check_words, config_file, is_about_secrets, load
from disttrain.errors import ConfigError, nearest
from disttrain.records.json_files import (
    CorruptFile,
    create_exclusive,
    read_json,
    read_json_or_none,
    write_json,
)
from jobs.core import run_code, secrets_file
from jobs.core.code_copy import CommandReader, script_file
from jobs.core.journal import utc_now
from jobs.status.run_folders import runs_of
from jobs.status.run_state import RunState
from jobs.submission.before import check_plug_ins, check_resume_args
from sweeps.base_config import first_difference
from sweeps.expand import (
    GPUS,
    NODES,
    Axes,
    ExistingSweep,
    Progress,
    SweepPlan,
    expand,
    without_progress,
)
from sweeps.overrides import Override, parse_flag, parse_set
from sweeps.sweep_section import read_section, take_auto_repeats

_RUN_NAME = r"(?!report(-|$))[A-Za-z0-9_][A-Za-z0-9._-]{0,159}"
"""Reports of a sweep lie in its folders `report` and `report-<tags>`."""
_SWEEP_FILES = Path(__file__).resolve().parents[2] / "sweeps"
DEFAULT = _SWEEP_FILES / "default.yaml"
"""Config of a sweep, or of a job by hand, that names none."""


def sweep_name(args: argparse.Namespace) -> str:
    """The sweep's name: `--name`, or the name of the file, or of the script, without its suffix."""
    command = getattr(args, "command", ())
    flag = "--name" if args.name else "sweep file" if args.file else "script"
    if not (args.name or args.file or command):
        raise ConfigError("run needs a config file, or a script of your own after `--`")
    if command and command[0].startswith("-"):
        check_words(command, at="--")
    name: str = args.name or (Path(args.file).stem if args.file else _script_name(command))
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"{flag}: {name!r} cannot name a sweep: letters, digits, '_', '.' and '-', "
            f"the first of them a letter, digit or '_'{'' if args.name else '; give a --name'}"
        )
    return name


def command_hashes(plan: SweepPlan, root: Path) -> dict[tuple[str, ...], str]:
    """Hash of the present code of each command of a plan that is started in the working directory.

    Raises `ConfigError` for a script that does not exist, also one of `job.on_checkpoint`, or cannot be
    copied, for `job.workdir: code` without a copy, and for `job.resume_args` of a command that cannot know
    its folder of checkpoints.
    """
    reader = CommandReader(root)
    found: dict[tuple[str, ...], str] = {}
    for words in {run.config.job.on_checkpoint for run in plan.runs} - {()}:
        script_file(words, Path.cwd())
    for config in (run.config for run in plan.runs if run.config.command):
        found[config.command] = code = reader.read(config.command, Path.cwd())["hash"] or ""
        check_resume_args(config)
        if config.job.workdir == "code" and not code:
            raise ConfigError(
                "job.workdir: code needs a copy of the code, and an installed module has none; use run"
            )
    return found


def _script_name(command: Sequence[str]) -> str:
    """`train` for `train.py`, `-m package.train` and `bash train.sh`; without a script, the executable."""
    words = run_code.script_words(command) or command[:1]
    return Path(words[-1]).stem.rpartition(".")[2] if words else ""


def sweep_plan(
    args: argparse.Namespace,
    states: list[RunState],
    progress: Progress = without_progress,
    gpus_of_node: int | None = None,
) -> SweepPlan:
    """The plan of `disttrain sweep`; `gpus_of_node` is that of the site profile, for `--gpus`.

    Raises `ConfigError`; writes nothing.
    """
    flags = _shape_flags(args.nodes, args.gpus_per_node)
    sets = [parse_set(text) for text in args.set]
    for name in ("repeats", "scaling"):
        if (value := getattr(args, name)) is not None:
            once = parse_flag(f"--{name}", f"sweep.{name}", [value])
            sets.append(replace(once, axis=False))
    draft = _load(args)
    if getattr(args, "command", None):
        draft.set("command", list(args.command), "--")
    shapes: list[Axes] = []
    if getattr(args, "gpus", None):
        of_node = flags[0].values if flags else (gpus_of_node or draft.get(GPUS),)
        if args.nodes or len(of_node) > 1 or {NODES, GPUS} & {each.key for each in sets}:
            raise ConfigError("goes with one --gpus-per-node N and with no other nodes or GPUs", at="--gpus")
        shapes, flags = _gpu_shapes(args.gpus, of_node[0]), []
    return _expand(args, draft, [*flags, *sets], states, shapes=shapes, grids=args.grid, progress=progress)


def _shape_flags(nodes: Sequence[str], gpus_per_node: Sequence[str]) -> list[Override]:
    flags = [("--nodes", NODES, nodes), ("--gpus-per-node", GPUS, gpus_per_node)]
    return [parse_flag(flag, key, words) for flag, key, words in flags if words]


def _gpu_shapes(words: Iterable[str], of_node: Any) -> list[Axes]:
    """Shapes (axes of one value) of these numbers, with `of_node` GPUs on a node.

    Raises `ConfigError` for a number beyond one node that fills no whole nodes.
    """
    numbers = parse_flag("--gpus", "gpus", words).values
    if type(of_node) is not int or of_node < 1:
        hint = "give --gpus-per-node N, or gpus_per_node in the site profile or the sweep file"
        raise ConfigError(f"the GPUs of a node are not known; {hint}", at="--gpus")
    for number in numbers:
        if type(number) is not int or number < 1 or (number > of_node and number % of_node):
            allowed = f"allowed are 1 to {of_node} and multiples of {of_node}, the GPUs of a node"
            raise ConfigError(f"{number} fills no whole nodes; {allowed}", at="--gpus")
    return [{NODES: [max(1, number // of_node)], GPUS: [min(number, of_node)]} for number in numbers]


def run_plan(args: argparse.Namespace, states: list[RunState]) -> SweepPlan:
    """The plan of `disttrain run`: one run on the file's base, with batch sizes as given.

    Each override but secrets is an axis of one value. Axes are part of the run's name and not of the base, so
    another call with another value makes another run of the same sweep.
    """
    draft = _load(args)
    section = draft.data.get("sweep")
    if isinstance(section, dict):
        draft.data["sweep"] = {name: value for name, value in section.items() if name == "scaling"}
    overrides = _overrides_of_run(args)
    for override in overrides:
        if len(override.values) > 1:
            raise ConfigError(
                f"{override.key}: `run` takes one value; `sweep` takes several", at=override.origin
            )
    listed = next((each.values[0] for each in overrides if each.key == "job.secrets"), None)
    names = listed or draft.get("job.secrets") or ()
    axes = [replace(each, axis=not is_about_secrets(each.key, names)) for each in overrides]
    plan = _expand(args, draft, axes, states, scale_batch=False)
    return plan if args.run_name is None else _named(plan, args.run_name, states)


def unused_axes(args: argparse.Namespace) -> list[str]:
    """Axes of the file of `submit.py run` for which the command line gives no value. Raises `ConfigError`."""
    draft = _load(args)
    take_auto_repeats(draft)
    section = read_section(draft)
    given = {override.key for override in _overrides_of_run(args)}
    return [key for key in ChainMap(*section.grids.values(), section.axes) if key not in given]


def _overrides_of_run(args: argparse.Namespace) -> list[Override]:
    overrides = _shape_flags(*([word] if word else [] for word in (args.nodes, args.gpus_per_node)))
    overrides += [parse_set(text) for text in args.set]
    if getattr(args, "command", None):
        overrides.append(Override("command", (tuple(args.command),), "--", axis=True))
    if args.start_from is not None:
        start = str(Path(args.start_from).resolve())
        overrides.append(Override("checkpoint.start_from", (start,), "--from", axis=True))
    return overrides


def _named(plan: SweepPlan, name: str, states: list[RunState]) -> SweepPlan:
    """The plan of one run under this name. Raises `ConfigError` if it names another run, or the run has
    another name."""
    if not re.fullmatch(_RUN_NAME, name):
        raise ConfigError(
            f"{name!r} cannot name a run: up to 160 letters, digits, '_', '.' and '-', the first of them a "
            "letter, digit or '_'; 'report' and 'report-...' are folders of reports",
            at="--run-name",
        )
    (run,) = plan.runs
    for state in states:
        if state.name == name and state.config_key not in (None, run.config_key):
            message = f"{plan.name}/{name} has another config; give this run another name"
            raise ConfigError(message, at="--run-name")
        if state.name != name and state.config_key == run.config_key:
            raise ConfigError(f"{plan.name}/{state.name} is the same run already", at="--run-name")
    return replace(plan, runs=(replace(run, name=name),))


def write_sweep_record(root: Path, plan: SweepPlan) -> bool:
    """Create `sweep.json` if missing; whether it was. The first `sweep` adds its `base_ranks`, which `run`
    leaves null. Targets and the rule of repeats are those of the latest `sweep` that has some. Secrets go to
    a file of their own.

    The caller holds `sweep_lock`. Raises `ConfigError` if another command wrote another base config after
    `plan` was made.
    """
    path = root / plan.name / "sweep.json"
    _refuse_other_base(_recorded_base(path), plan, root)
    secrets_file.add(path.parent, plan.secrets)
    recorded = read_json_or_none(path)
    latest: dict[str, Any] = {}
    if plan.targets is not None:
        latest["targets"] = [each.model_dump() for each in plan.targets]
    if plan.repeats is not None:
        latest["repeats"] = plan.repeats.model_dump()
    if recorded is None:
        record = {"schema_version": 1, "name": plan.name, "base": plan.base}
        return create_exclusive(path, {**record, "created": utc_now(), **latest})
    changed = recorded | latest
    if recorded["base"]["sweep"]["base_ranks"] is None and plan.base_ranks is not None:
        base = recorded["base"]
        changed["base"] = {**base, "sweep": {**base["sweep"], "base_ranks": plan.base_ranks}}
    if changed != recorded:
        write_json(path, changed)
    return False


def discard_sweep_record(root: Path, sweep: str) -> None:
    """Remove `sweep.json` and the secrets if the sweep has no run: another base config can take its name.

    The caller holds `sweep_lock`.
    """
    if not runs_of(root, sweep):
        for name in ("sweep.json", secrets_file.FILE):
            (root / sweep / name).unlink(missing_ok=True)


def _expand(
    args: argparse.Namespace, draft: Draft, overrides: list[Override], states: list[RunState], **options: Any
) -> SweepPlan:
    """The expanded sweep; `options` are those of `sweeps.expand.expand`."""
    name = sweep_name(args)
    recorded = _recorded_base(args.runs / name / "sweep.json")
    existing = ExistingSweep(
        names={state.config_key: state.name for state in states if state.config_key},
        unreadable=frozenset(state.name for state in states if not state.config_key),
        base_ranks=recorded["sweep"]["base_ranks"] if recorded else None,
    )
    if args.on_end:
        overrides = [*overrides, Override("job.on_end", (args.on_end,), "--on-end", axis=False)]
    plan = expand(draft, overrides, name=name, existing=existing, **options)
    _refuse_other_base(recorded, plan, args.runs)
    try:
        check_plug_ins(plan.runs)
    except ConfigError as error:
        origins = draft.origin | {each.key: each.origin for each in overrides}
        raise Draft(origin=origins).error(*str(error).splitlines()) from None
    return plan


def _refuse_other_base(recorded: dict[str, Any] | None, plan: SweepPlan, root: Path) -> None:
    if recorded and (difference := first_difference(recorded, plan.base)):
        raise ConfigError(
            f"sweep {plan.name!r} in {root} has another base config: {difference}; "
            "give this one a --name of its own"
        )
    ranks = recorded["sweep"]["base_ranks"] if recorded else None
    if None not in (ranks, plan.base_ranks) and ranks != plan.base_ranks:
        raise ConfigError(f"sweep {plan.name!r} in {root} was begun by another command; repeat this one")


def _recorded_base(path: Path) -> dict[str, Any] | None:
    hint = "move the sweep aside or use another --name"
    try:
        base = read_json(path)["base"]
        sections = {name: {**section} for name, section in base.items() if name != "command"}
        if not isinstance(sections["sweep"]["base_ranks"], int | None):
            raise KeyError("base_ranks")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptFile as error:
        raise ConfigError(f"{error}; {hint}") from None
    except (AttributeError, KeyError, TypeError):
        raise ConfigError(f"{path} has a missing or invalid 'base'; {hint}") from None
    recorded: dict[str, Any] = base
    return recorded


def _load(args: argparse.Namespace) -> Draft:
    """The sweep file; an empty draft without one."""
    if not args.file:
        return Draft()
    path = config_file(args.file)
    if not path.exists():
        shipped = sorted(_SWEEP_FILES.glob("*.yaml"))
        near = nearest(path.stem, [file.stem for file in shipped])
        names = ", ".join(f"sweeps/{file.name}" for file in shipped)
        raise ConfigError(f"no file {args.file!r}{near}; there are: {names}")
    return load(Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path)
