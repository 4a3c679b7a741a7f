"""`cluster`: a real batch system on this machine, for experiments and tests (see `jobs.minicluster`)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from jobs import PROGRAM
from jobs.cli import options

if TYPE_CHECKING:
    from jobs.minicluster.config import ClusterSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, **keys: str) -> argparse.ArgumentParser:
        of_action = actions.add_parser(name, help=text, description=text)
        if keys:
            options.json_document(of_action, **keys)
        of_action.add_argument("--name", help="name of the cluster (up: mini; else the only cluster)")
        return of_action

    up = action("up", "bring a cluster up (needs root; installs nothing)", clusters="the new cluster")
    options.value(up, "--nodes", "N", "nodes (4)", type=int, default=4)
    options.value(up, "--gpus-per-node", "N", "simulated GPUs of a node (4)", type=int, default=4)
    options.value(up, "--link", "RATE", "rate of each node's link, or none (1gbit)", default="1gbit")
    text = "no slurmdbd and no MariaDB"
    up.add_argument("--no-accounting", dest="accounting", action="store_false", help=text)
    text = "seconds that a pre-empted job may still run (30)"
    options.value(up, "--grace-s", "S", text, type=int, default=30)
    options.flag(up, "--short-timeouts", "reduce Slurm's timeouts to seconds, for fault tests")
    text = "print nodes, partitions and links of all clusters"
    action("status", text, clusters="nodes, partitions and links of each cluster")
    shell = action("shell", "run a shell, or the command after --, whose Slurm commands use the cluster")
    text = "run on node I instead of this machine (needs root)"
    options.value(shell, "--node", "I", text, type=int)
    options.value(shell, "command", "-- COMMAND", "command to run (your shell)", nargs="*")
    text = "end all processes of a cluster and remove its files"
    action("down", text, removed="name of the cluster")


def run(args: argparse.Namespace) -> int:
    from jobs.cli.command_output import print_error
    from jobs.minicluster.init_protocol import ServiceError
    from jobs.minicluster.network import NetworkError

    verbs = {"up": _up, "status": _print_status, "shell": _shell, "down": _down}
    try:
        return verbs[args.action](args)
    except (ServiceError, NetworkError) as error:
        print_error(f"error: {error}")
        return 1


def _up(args: argparse.Namespace) -> int:
    import dataclasses
    import time

    from jobs.cli.command_output import add_json
    from jobs.minicluster import lifecycle
    from jobs.minicluster.config import ClusterSpec

    names = [field.name for field in dataclasses.fields(ClusterSpec)]
    spec = ClusterSpec(**{name: value for name in names if (value := getattr(args, name)) is not None})
    began = time.monotonic()
    cluster = lifecycle.up(spec)
    add_json(clusters=[lifecycle.status_fields(cluster)])
    name_flag = f" --name {args.name}" if args.name else ""
    print(f"cluster {spec.name} is up after {time.monotonic() - began:.1f} s: {_spec_text(spec)}")
    print(f"use it:       {PROGRAM} cluster shell{name_flag}")
    print(f"or in here:   {lifecycle.shell_line(cluster)}")
    print(f"take it down: {PROGRAM} cluster down{name_flag}")
    return 0


def _spec_text(spec: ClusterSpec) -> str:
    from jobs.cli.formatting import count

    link = "unshaped links" if spec.link == "none" else f"{spec.link} links"
    accounting = "accounting" if spec.accounting else "no accounting"
    return f"{count(spec.nodes, 'node')} with {count(spec.gpus_per_node, 'GPU')} each, {link}, {accounting}"


def _print_status(args: argparse.Namespace) -> int:
    from jobs.cli.command_output import add_json
    from jobs.cli.formatting import table
    from jobs.minicluster import discovery, lifecycle

    names = [discovery.resolve_name(args.name)] if args.name else discovery.cluster_names()
    clusters = [lifecycle.find_cluster(name) for name in names]
    fields = [lifecycle.status_fields(cluster) for cluster in clusters]
    add_json(clusters=fields)
    if not clusters:
        print(f"no cluster: {PROGRAM} cluster up")
    for cluster, each in zip(clusters, fields, strict=True):
        shape = f": {_spec_text(cluster.spec)}" if cluster.spec else ""
        print(f"cluster {cluster.name} is {cluster.state}{shape}")
        if cluster.state == "left over":
            print(f"remove its files with: {PROGRAM} cluster down --name {cluster.name}")
        elif each["nodes"] is None and cluster.state == "up":
            print("its controller does not answer")
        for rows in filter(None, (each["nodes"], each["partitions"])):
            print("\n" + table([name.upper() for name in rows[0]], [list(row.values()) for row in rows]))
    return 0


def _shell(args: argparse.Namespace) -> int:
    import os

    from disttrain.errors import ConfigError
    from jobs.minicluster import discovery, lifecycle, packages

    cluster = lifecycle.find_cluster(discovery.resolve_name(args.name))
    if cluster.state != "up":
        raise ConfigError(f"cluster {cluster.name!r} is not up (it is {cluster.state})")
    env = lifecycle.shell_environment(cluster, dict(os.environ))
    command = args.command or [os.environ.get("SHELL", "/bin/sh")]
    words = command
    if args.node is not None:
        if reason := packages.unavailable_reason(accounting=False):
            raise ConfigError(reason)
        words = [*lifecycle.node_command_prefix(cluster, args.node), *command]
    try:
        os.execvpe(words[0], words, env)
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}") from None


def _down(args: argparse.Namespace) -> int:
    import os

    from disttrain.errors import ConfigError
    from jobs.cli.command_output import add_json
    from jobs.minicluster import discovery, lifecycle

    if os.geteuid() != 0:
        raise ConfigError("taking a cluster down needs root (sudo)")
    name = discovery.resolve_name(args.name)
    lifecycle.down(name)
    print(f"cluster {name} is down; its processes and files are removed")
    add_json(removed=name)
    return 0
