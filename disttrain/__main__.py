"""`python -m disttrain`: one rank of a run, started by torchrun (or alone).

In a job:    torchrun ... -m disttrain --run-dir RUN --attempt 0        (config from RUN/run.json)
By hand:     torchrun ... -m disttrain --config FILE.yaml [--run-dir DIR] [--train.steps 50 ...]

Every config key is a flag too; `docs/reference/configuration.md` lists them.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, get_args

from disttrain.checkpoint.folder import checkpoint_folder
from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.parsing import Draft, check, flag_pairs, load, parse_value, with_batch
from disttrain.config.run_key import config_key
from disttrain.errors import EXIT_BAD_INPUT, ConfigError, Superseded
from disttrain.records.checkpoint import refuse_missing
from disttrain.records.heartbeat import Phase
from disttrain.records.json_files import CorruptFile, read_json
from disttrain.records.run_directory import Attempt, RunDir, attempt_of_job, checkpoint_steps
from disttrain.runtime.process import die_with_parent, rank_info
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput, record_failure
from disttrain.runtime.stop_signals import StopSignals
from disttrain.runtime.torch_version import require_torch
from disttrain.telemetry.network import request_nccl_log

EXIT_FAILED = 1
_OWN_FLAGS = ("--config", "--run-dir", "--attempt", "--help")


def rank_main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run one rank. Exit code: 0 finished or stopped on request, 1 failed, 2 invalid input (a retry would
    fail)."""
    signals = StopSignals()
    signals.install()  # first: an early stop signal must not end this process
    if "TORCHELASTIC_RUN_ID" in environ:
        die_with_parent()  # torchrun: orphaned ranks would train on
    faulthandler.enable()
    rank, attempt = 0, None
    try:
        rank = rank_info().rank
        arguments, flags = parse_arguments(argv)
        by_hand = arguments.config is not None
        if not by_hand:
            signals.counted = (signal.SIGTERM,)
            attempt = attempt_of_job(arguments.run_dir, arguments.attempt)
            if attempt.is_replaced():
                raise Superseded("the run directory was moved away or deleted")
        require_torch()
        config = read_config(arguments, flags)
        if attempt is not None:
            _observe(config, attempt)
        # torch takes seconds to import: invalid input is refused before that
        from disttrain.engine.train import train
        from disttrain.runtime import log
        from disttrain.runtime.process_group import open_world

        with open_world(config) as world:
            if by_hand:
                output = RunOutput.by_hand(
                    arguments.run_dir, arguments.config, config.as_dict(), config_key(config), world,
                    secrets=config.job.secrets,
                )  # fmt: skip
                attempt = output.attempt
            else:
                output = RunOutput.of_job(arguments.run_dir, arguments.attempt)
            log.open_log(rank, output.attempt.rank_log(rank))
            log.info("run directory", path=str(output.run.path), attempt=output.attempt.number)
            train(config, output, world, signals)
        return 0
    except (Exception, KeyboardInterrupt) as error:
        refused = isinstance(error, ConfigError)
        record_failure(error, rank, attempt)
        if not refused:
            traceback.print_exc()
        elif rank == 0:  # the message is the same on every rank
            print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if refused else EXIT_FAILED
    finally:
        for loader in multiprocessing.active_children():
            loader.kill()  # loaders ignore SIGTERM, as this rank does; Python would join them


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """Parse the command line into its own options and the config flags as (key, text). Raises
    `ConfigError`."""
    parser = argparse.ArgumentParser(
        prog="python -m disttrain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False, exit_on_error=False,
    )  # fmt: skip
    parser.add_argument("--config", type=Path, help="a config file, or a sweep file for its base config")
    parser.add_argument("--run-dir", type=Path, help="the run directory (by hand: the folder to create)")
    parser.add_argument(
        "--attempt", type=int, default=0, help="number of the attempt claimed by the job's agent"
    )
    try:
        arguments, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    flags = flag_pairs(rest, _OWN_FLAGS)
    if not arguments.config and not arguments.run_dir:
        raise ConfigError("--config FILE or --run-dir DIR is needed")
    return arguments, flags


def read_config(arguments: argparse.Namespace, flags: list[tuple[str, str]]) -> Config:
    """The checked config of the file or of the planned run, with the flags set over it. Raises
    `ConfigError`."""
    if arguments.config:
        draft = load(arguments.config)
        # by hand, torchrun's command line sets the number of nodes and ranks
        draft.set("resources.nodes", rank_info().nodes, "torchrun")
        strategy = dict(flags).get("parallel.strategy") or get_key(draft.data, "parallel.strategy")
        if strategy != "dp":  # the only rank of dp computes on all GPUs of the node
            draft.set("resources.gpus_per_node", rank_info().local_size, "torchrun")
    else:
        draft = _planned(arguments.run_dir)
    for key, text in flags:
        draft.set(key, parse_value(text, f"--{key}"), f"--{key}")
    config = check(draft)
    if config.parallel.strategy == "dp" and rank_info().local_size > 1:
        raise ConfigError(
            "parallel.strategy=dp is one process; start it with --nproc-per-node=1, or use ddp",
            at=draft.at("parallel.strategy"),
        )
    if config.command:
        raise ConfigError("command: start a script of your own by disttrain", at=draft.at("command"))
    run, start = RunDir(Path(arguments.run_dir or ".")), config.checkpoint.start_from
    # a run goes on from a checkpoint of its own, also after the other one was deleted
    continues = arguments.run_dir and checkpoint_steps(checkpoint_folder(config.checkpoint, run))
    if start is not None and not continues and (message := refuse_missing(start)):
        raise ConfigError(message, at=draft.at("checkpoint.start_from"))
    if config.model.kind == "huggingface" and importlib.util.find_spec("transformers"):
        from disttrain.models import huggingface  # imports torch

        huggingface.check(config.as_dict())
    if arguments.config:  # of a job, the submission has checked what it could
        _check_plug_ins(config, draft)
    return with_batch(config, draft)[0]


def _check_plug_ins(config: Config, draft: Draft) -> None:
    from disttrain.engine.plug_in_check import unchecked  # imports torch

    try:
        for problem in unchecked(config):
            raise ConfigError(problem)
    except ConfigError as error:
        raise draft.error(str(error)) from None


def _observe(config: Config, attempt: Attempt) -> None:
    """Start the heartbeat of a job's rank, and request the log of NCCL."""
    info = rank_info()
    limits = {
        phase: getattr(config.job, f"{'setup' if phase == 'finish' else phase}_timeout_s")
        for phase in get_args(Phase)
    }
    heartbeat.start(info.rank, limits)
    if config.telemetry.gpu_every_s:
        request_nccl_log(attempt, info)


def _planned(run_dir: Path) -> Draft:
    try:
        return Draft(read_json(RunDir(run_dir).run_json)["config"])
    except (OSError, CorruptFile, KeyError) as error:
        raise ConfigError(f"cannot read the planned config: {error}") from None


def exit_process(code: int) -> NoReturn:
    """Exit with `code`; after a failure without Python's shutdown.

    The shutdown would join the thread that writes a checkpoint, destroy NCCL communicators, and wait for open
    operations of gloo, such as an agreement to stop. All can wait forever, for a file system or for peers,
    and torchrun ends the peers only after this exit.
    """
    if code:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    exit_process(rank_main(sys.argv[1:], os.environ))
