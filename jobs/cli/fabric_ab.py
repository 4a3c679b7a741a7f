"""`fabric ab`: submit a job that compares environment variables, and print the verdicts of a finished one."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError
from disttrain.records.fabric_ab import FabricAb
from disttrain.records.json_files import read_json
from disttrain.records.run_json import read_run_json
from jobs.arms import result as ab_result
from jobs.arms.experiment import kept
from jobs.arms.plan import ALLOW_UNKNOWN, doubtful_settings, parse_settings
from jobs.cli import submitting
from jobs.cli.command_output import add_json, print_warning
from jobs.cli.formatting import table
from jobs.cli.selection import find_run
from jobs.status.run_folders import runs_of
from jobs.submission import plan

MODULE = "jobs.arms"
JOB_MARGIN_MIN = 10.0
"""Minutes of the job's time limit beyond those of the experiment: start of the job and of the last arm."""
_MAX_NAME_CHARS = 60


def run(args: argparse.Namespace) -> int:
    """Submit the job unless it was, and print its result if there is one; the exit code."""
    exit_code = submitting.submit_plan(with_command(args), plan.sweep_plan)
    if not (args.dry_run or args.test_only or args.memory):
        print_results(args.runs, args.name)
    return exit_code


def with_command(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a `sweep` of one run, whose command is the experiment. Raises `ConfigError`."""
    settings = parse_settings(args.settings, allow_unknown=args.allow_unknown)
    for sentence in doubtful_settings(settings):
        print_warning(sentence)
    config = _config_of_run(args) if args.like else None
    nodes, gpus, device = _shape(args, config)
    if nodes == gpus == 1:
        raise ConfigError("one rank has no communication: --nodes or --gpus-per-node above 1", at="fabric ab")
    words = ["-m", MODULE, *(f"{name}={value}" for name, value in settings.items()), "--device", device]
    words += [ALLOW_UNKNOWN] if args.allow_unknown else []
    of_model = () if args.like else ("width", "layers", "rows", "bucket_mb")
    for option in ("minutes", "pairs", "block_s", *of_model):
        words += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    if args.like:
        words += ["--like", str(find_run(args.runs, args.like).path.resolve())]
    args.command, args.file, args.name = words, None, args.name or sweep_name(settings)
    args.nodes, args.gpus_per_node = [str(nodes)], [str(gpus)] if gpus > 1 else None
    limit = f"job.time_limit_min={args.minutes + JOB_MARGIN_MIN:g}"
    args.set = [f"resources.device={device}", limit, *_environment_of(config)]
    args.repeats, args.scaling, args.grid = None, None, []
    args.no_report = True  # the report is about training
    return args


def sweep_name(settings: Mapping[str, str]) -> str:
    """`ab-NCCL_ALGO-Ring`: variables and values, as far as they can stand in a folder's name; `ab-derived`
    without any."""
    words = "-".join(word for setting in settings.items() for word in setting) or "derived"
    safe = re.sub("[^A-Za-z0-9_.]+", "-", words)
    return f"ab-{safe}"[:_MAX_NAME_CHARS].rstrip("-")


def print_results(root: Path, sweep: str) -> None:
    """Print the table of each finished or running experiment of the sweep, and the lines to keep."""
    results = {
        run.name: FabricAb.model_validate(read_json(run.fabric_ab))
        for run in runs_of(root, sweep)
        if run.fabric_ab.exists()
    }
    for result in results.values():
        print(f"\n{render(result)}")
    if results:
        add_json(
            fabric_ab={name: result.model_dump(mode="json") for name, result in results.items()},
            kept={name: kept(result.alone, result.together) for name, result in results.items()},
        )


def render(result: FabricAb) -> str:
    """Title, table, notes and lines to keep."""
    shown = table(ab_result.HEAD, ab_result.rows(result), right=frozenset({"ratio", "pairs"}))
    parts = [ab_result.title(result), shown, *ab_result.notes(result), "", *ab_result.lines_to_keep(result)]
    return "\n".join(parts)


def _config_of_run(args: argparse.Namespace) -> dict[str, Any]:
    """The config of the run of `--like`. Raises `ConfigError` where no step can be repeated."""
    config: dict[str, Any] = read_run_json(find_run(args.runs, args.like))["config"]
    obstacles = {
        "is a run of a command, whose step is not known": config.get("command"),
        "has train.local_batch_size=auto, not a number": config["train"]["local_batch_size"] == "auto",
        "averages only some steps (local_sgd), so its steps differ": (
            config["parallel"]["gradient_communication"]["scheme"] == "local_sgd"
        ),
    }
    for obstacle in [text for text, holds in obstacles.items() if holds][:1]:
        raise ConfigError(f"{args.like} {obstacle}", at="--like")
    return config


def _shape(args: argparse.Namespace, config: Mapping[str, Any] | None) -> tuple[int, int, str]:
    """Nodes, ranks on each, and device: as given, else those of the run, else 2 nodes of one rank."""
    default: Mapping[str, Any] = {"nodes": 2, "gpus_per_node": 1, "device": "auto"}
    default = config["resources"] if config else default
    return (
        args.nodes or default["nodes"],
        args.gpus_per_node or default["gpus_per_node"],
        args.device or default["device"],
    )


def _environment_of(config: Mapping[str, Any] | None) -> list[str]:
    """`--set` words for `job.env` and the threads of a run, without its secrets."""
    if config is None:
        return []
    words = [f"job.env.{name}={json.dumps(value)}" for name, value in config["job"]["env"].items()]
    return [*words, f"resources.threads_per_rank={config['resources']['threads_per_rank']}"]
