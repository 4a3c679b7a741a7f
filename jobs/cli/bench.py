"""Experiments in a job, whose run is a command of this project: `bench comm` and `fabric ab`.

Each submits a job unless it was, and prints the result of a finished one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jobs.cli import options
from jobs.cli.options import above_zero, positive

if TYPE_CHECKING:
    from disttrain.records.comm_bench import CommBench, FabricAb
    from disttrain.records.run_directory import RunDir

JOB_MARGIN_MIN = 10.0
"""Minutes of the job's time limit beyond those of `fabric ab`: start of the job and of the last arm."""
_MAX_NAME_CHARS = 60


def _above_one(text: str) -> int:
    if (number := positive(text)) == 1:
        raise argparse.ArgumentTypeError("1 is not a whole number above 1")
    return number


Number = tuple[str, str, Callable[[str], float], float, str]
"""Option, name of its value, type, default, help."""
_COMM: tuple[Number, ...] = (
    ("--max-mb", "MIB", above_zero, 16.0, "largest message in MiB"),
    ("--size-factor", "N", _above_one, 8, "ratio of a message to the next smaller one"),
    ("--rounds", "N", positive, 15, "repeats of each measurement"),
    ("--width", "N", positive, 1024, "width of the model's layers"),
    ("--layers", "N", positive, 8, "layers of the model"),
    ("--rows", "N", positive, 16, "samples of a rank in a step"),
)
_AB: tuple[Number, ...] = (
    ("--minutes", "MIN", above_zero, 20, "largest duration of the experiment in minutes"),
    ("--pairs", "N", positive, 200, "largest number of pairs of each comparison"),
    ("--block-s", "S", above_zero, 1, "seconds of a block of steps"),
)
_MODEL: tuple[Number, ...] = (
    ("--width", "N", positive, 1024, "width"),
    ("--layers", "N", positive, 8, "layers"),
    ("--rows", "N", positive, 16, "samples of a rank"),
    ("--bucket-mb", "MIB", above_zero, 25, "largest bucket in MiB"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    text = "measure collectives and forms of gradient communication, one job for each shape"
    comm = actions.add_parser("comm", help=text, description=text)
    options.common(
        comm,
        **options.SUBMISSION,
        page="the HTML page of the report, once a run has ended",
        report="`report.json`",
        comm_bench="`comm-bench.json` of each finished run",
    )
    options.value(comm, "--nodes", "N", "node counts (2)", nargs="+", default=["2"])
    options.value(comm, "--gpus-per-node", "N", "ranks on each node (1)", nargs="+")
    _add_device(comm, default="auto")
    text = "backend of the collectives (auto: NCCL where each rank has a GPU of its own, else gloo)"
    options.value(comm, "--backend", "auto|nccl|gloo", text, choices=["auto", "nccl", "gloo"], default="auto")
    _add_numbers(comm, _COMM)
    options.submission(comm)


def add_ab_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fabric ab`."""
    options.common(
        parser,
        **options.SUBMISSION,
        fabric_ab="`fabric-ab.json` of each experiment that has a result",
        kept="variables that gained, alone and again together, by run",
    )
    text = (
        "variables; each is compared with the run's environment without this value (those derived for speed)"
    )
    options.value(parser, "settings", "VAR=VALUE", text, nargs="*")
    text = "compare also a name that is unknown and close to a known one, and a value that the known versions"
    options.flag(parser, "--allow-unknown", f"{text} do not allow")
    options.value(parser, "--like", "RUN", "measure the step of this run, on its nodes and ranks")
    options.value(parser, "--nodes", "N", "number of nodes (2)", type=positive)
    options.value(parser, "--gpus-per-node", "N", "ranks on each node (1)", type=positive)
    _add_device(parser)
    _add_numbers(parser, _AB)
    _add_numbers(parser.add_argument_group("step of a model of linear layers, without --like"), _MODEL)
    options.submission(parser)


def _add_device(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    devices, text = ["auto", "cpu", "cuda", "shared"], "resources.device (auto)"
    parser.add_argument("--device", choices=devices, default=default, help=text)


def _add_numbers(parser: options.Container, numbers: Iterable[Number]) -> None:
    for name, metavar, kind, default, text in numbers:
        options.value(parser, name, metavar, f"{text} ({default:g})", type=kind, default=default)


def _words(args: argparse.Namespace, *tables: Iterable[Number]) -> list[str]:
    """The options of these tables and their values, as words of a command."""
    names = [number[0] for table in tables for number in table]
    return [word for name in names for word in (name, str(getattr(args, name[2:].replace("-", "_"))))]


def _submit(args: argparse.Namespace, command: list[str], name: str, settings: list[str]) -> int:
    """Submit a sweep of this command; its exit code. Its report is about training, so no job writes it."""
    from jobs.cli import submitting
    from jobs.submission import plan

    fields: dict[str, Any] = {"file": None, "repeats": None, "scaling": None, "grid": [], "no_report": True}
    vars(args).update(fields, command=command, name=args.name or name, set=settings)
    return submitting.submit_plan(args, plan.sweep_plan)


def _is_dry(args: argparse.Namespace) -> bool:
    return args.dry_run or args.test_only or args.memory


def run(args: argparse.Namespace) -> int:
    """`bench comm`."""
    from jobs.cli import report
    from jobs.cli.command_output import add_json
    from jobs.status.run_folders import runs_of

    backend = [] if args.backend == "auto" else ["--backend", args.backend]
    words = ["-m", "disttrain.comm_bench", "--device", args.device, *backend, *_words(args, _COMM)]
    words[words.index("--rounds")] = "--repeats"
    exit_code = _submit(args, words, "comm-bench", [f"resources.device={args.device}"])
    if not _is_dry(args) and (results := _results(runs_of(args.runs, args.name))):
        report.write(args.runs, [args.name])
        add_json(comm_bench={name: result.model_dump(mode="json") for name, result in results.items()})
    return exit_code


def results_text(runs: Iterable[RunDir]) -> str:
    """Tables of the finished communication benchmarks among these runs; empty without one."""
    from jobs.cli.formatting import table

    results = _results(runs)
    if not results:
        return ""
    # imports matplotlib, which takes seconds
    from analysis.report.sections.network import printed

    return "\n\n".join(
        f"{caption}\n{table(head, rows, right=frozenset(head[1:]))}"
        for caption, head, rows in printed(results)
    )


def _results(runs: Iterable[RunDir]) -> dict[str, CommBench]:
    measured = [run for run in runs if run.comm_bench.exists()]
    if not measured:
        return {}
    from disttrain.records.comm_bench import CommBench  # imports pydantic
    from disttrain.records.json_files import read_json

    return {run.name: CommBench.model_validate(read_json(run.comm_bench)) for run in measured}


def run_ab(args: argparse.Namespace) -> int:
    """`fabric ab`: a sweep of one run. Raises `ConfigError`."""
    from disttrain.errors import ConfigError
    from jobs.arms.plan import ALLOW_UNKNOWN, doubtful_settings, parse_settings
    from jobs.cli.command_output import print_warning
    from jobs.cli.selection import find_run

    settings = parse_settings(args.settings, allow_unknown=args.allow_unknown)
    for sentence in doubtful_settings(settings):
        print_warning(sentence)
    config = _config_of_run(args) if args.like else None
    one_rank: dict[str, Any] = {"nodes": 2, "gpus_per_node": 1, "device": "auto"}
    default = config["resources"] if config else one_rank
    nodes, gpus, device = (
        getattr(args, name) or default[name] for name in ("nodes", "gpus_per_node", "device")
    )
    if nodes == gpus == 1:
        raise ConfigError("one rank has no communication: --nodes or --gpus-per-node above 1", at="fabric ab")
    words = ["-m", "jobs.arms", *(f"{name}={value}" for name, value in settings.items()), "--device", device]
    words += [ALLOW_UNKNOWN] if args.allow_unknown else []
    words += _words(args, _AB) if args.like else _words(args, _AB, _MODEL)
    if args.like:
        words += ["--like", str(find_run(args.runs, args.like).path.resolve())]
    args.nodes, args.gpus_per_node = [str(nodes)], [str(gpus)] if gpus > 1 else None
    limit = f"job.time_limit_min={args.minutes + JOB_MARGIN_MIN:g}"
    overrides = [f"resources.device={device}", limit, *_environment_of(config)]
    exit_code = _submit(args, words, sweep_name(settings), overrides)
    if not _is_dry(args):
        _print_ab_results(args)
    return exit_code


def sweep_name(settings: Mapping[str, str]) -> str:
    """`ab-NCCL_ALGO-Ring`: variables and values, as far as they can stand in a folder's name; `ab-derived`
    without any."""
    words = "-".join(word for setting in settings.items() for word in setting) or "derived"
    import re

    safe = re.sub("[^A-Za-z0-9_.]+", "-", words)
    return f"ab-{safe}"[:_MAX_NAME_CHARS].rstrip("-")


def _print_ab_results(args: argparse.Namespace) -> None:
    """Print the table of each finished or running experiment of the sweep, and the lines to keep."""
    from disttrain.records.comm_bench import FabricAb
    from disttrain.records.json_files import read_json
    from jobs.arms.experiment import kept
    from jobs.cli.command_output import add_json
    from jobs.status.run_folders import runs_of

    results = {
        run.name: FabricAb.model_validate(read_json(run.fabric_ab))
        for run in runs_of(args.runs, args.name)
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
    from jobs.arms import result as text
    from jobs.cli.formatting import table

    shown = table(text.HEAD, text.rows(result), right=frozenset({"ratio", "pairs"}))
    return "\n".join([text.title(result), shown, *text.notes(result), "", *text.lines_to_keep(result)])


def _config_of_run(args: argparse.Namespace) -> dict[str, Any]:
    """The config of the run of `--like`. Raises `ConfigError` where no step can be repeated."""
    from disttrain.errors import ConfigError
    from disttrain.records.json_files import read_json
    from jobs.cli.selection import find_run

    config: dict[str, Any] = read_json(find_run(args.runs, args.like).run_json)["config"]
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


def _environment_of(config: Mapping[str, Any] | None) -> list[str]:
    """`--set` words for `job.env` and the threads of a run, without its secrets."""
    import json

    if config is None:
        return []
    words = [f"job.env.{name}={json.dumps(value)}" for name, value in config["job"]["env"].items()]
    return [*words, f"resources.threads_per_rank={config['resources']['threads_per_rank']}"]
