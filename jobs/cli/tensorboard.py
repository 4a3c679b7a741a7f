"""`tensorboard`: serve the logs of a sweep's runs, of all attempts, until Ctrl-C."""

from __future__ import annotations

import argparse

from jobs.cli import options

add_arguments = options.page


def run(args: argparse.Namespace) -> int:
    import importlib.util
    import os
    import sys

    from disttrain.errors import ConfigError
    from jobs.cli import open as web_page
    from jobs.cli.formatting import count
    from jobs.cli.report import named_or_newest_sweep
    from jobs.status.run_folders import runs_of
    from jobs.status.run_state import read_runs

    sweep = named_or_newest_sweep(args.runs, args.sweep)
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(f"TensorBoard is not installed: {sys.executable} -m pip install tensorboard")
    logged = [run for run in runs_of(args.runs, sweep) if run.tensorboard.exists()]
    if not logged and not any(state.active for state in read_runs(args.runs, sweep)):
        raise ConfigError(
            f"no run of {sweep} has TensorBoard logs: none has started with the sink `tensorboard` in "
            "telemetry.sinks"
        )
    port = web_page.choose_port(args.port)
    print(f"TensorBoard of {sweep}: {count(len(logged), 'run')} with logs; new ones appear while it is open")
    print(*web_page.directions(port, "", os.environ), sep="\n", flush=True)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(args.runs / sweep)]
    # It replaces this process, so that Ctrl-C and the end of the terminal reach it.
    os.execv(sys.executable, [*command, "--host", web_page.LOOPBACK, "--port", str(port)])
