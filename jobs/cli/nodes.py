"""`nodes`: print or change the nodes that submissions from this runs folder exclude."""

from __future__ import annotations

import argparse

from jobs.cli import options

_YEAR_H = 8760


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser, excluded_nodes="nodes that submissions from this runs folder exclude")
    text = "exclude these nodes from later submissions"
    options.value(parser, "--exclude", "NODE", text, nargs="+", default=[])
    options.value(parser, "--reason", "TEXT", "with --exclude: the reason")
    text = "with --exclude: for so many hours (24; at most 8760)"
    options.value(parser, "--hours", "H", text, type=_hours)
    which = parser.add_mutually_exclusive_group()
    options.value(which, "--clear", "NODE", "use these nodes again", nargs="+", default=[])
    options.flag(which, "--clear-all", "use all nodes again")


def _hours(text: str) -> float:
    """A number of hours above 0, at most a year."""
    hours = options.above_zero(text)
    if hours > _YEAR_H:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_YEAR_H} hours (a year)")
    return hours


def run(args: argparse.Namespace) -> int:
    from datetime import datetime

    from disttrain.errors import ConfigError, nearest
    from jobs.cli.command_output import add_json
    from jobs.cli.formatting import count, table
    from jobs.cli.selection import answering_cluster
    from jobs.core import excluded_nodes
    from jobs.submission.prepare import nodes_to_exclude

    known = [entry.host for entry in excluded_nodes.read(args.runs)]
    for host in args.clear:
        if host not in known:
            raise ConfigError(f"no excluded node {host!r}{nearest(host, known)}", at="--clear")
    for name in ("reason", "hours"):
        if getattr(args, name) is not None and not args.exclude:
            raise ConfigError("has an effect only with --exclude", at=f"--{name}")
    if args.exclude:
        _exclude(args)
    if args.clear or (args.clear_all and known):
        removed = excluded_nodes.remove(args.runs, None if args.clear_all else args.clear)
        print(f"used again: {', '.join(entry.host for entry in removed)}")
    entries = excluded_nodes.read(args.runs)
    add_json([], excluded_nodes=[vars(entry) for entry in entries])
    if not entries:
        print(f"no excluded nodes in {args.runs}")
        return 0
    rows = [
        (
            entry.host,
            f"{datetime.fromisoformat(entry.expires).astimezone():%Y-%m-%d %H:%M}",
            entry.by,
            entry.reason,
        )
        for entry in entries
    ]
    print(table(("NODE", "UNTIL", "BY", "REASON"), rows), count(len(rows), "excluded node"), sep="\n\n")
    if (scheduler := answering_cluster()) and (hosts := nodes_to_exclude(args.runs, scheduler)):
        print(f"jobs by hand do not read this list: sbatch --exclude={','.join(hosts)} train.sbatch ...")
    return 0


def _exclude(args: argparse.Namespace) -> None:
    """Add nodes for the cluster that answers; for every cluster where none does."""
    import getpass
    import re

    from disttrain.errors import ConfigError, nearest
    from jobs.cli.selection import answering_cluster
    from jobs.core import excluded_nodes

    scheduler = answering_cluster()
    names = scheduler.node_names() if scheduler else None
    for host in args.exclude:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", host) is None:
            raise ConfigError(f"{host!r} is not the name of one node", at="--exclude")
        if names is not None and host not in names:  # a submission that excludes an unknown node is refused
            raise ConfigError(f"the cluster has no node {host!r}{nearest(host, names)}", at="--exclude")
    cluster = scheduler.cluster_name() if scheduler else None
    reason = " ".join((args.reason or "excluded by hand").split())
    hours = args.hours or excluded_nodes.DEFAULT_HOURS
    args.runs.mkdir(parents=True, exist_ok=True)
    for host in args.exclude:
        entry = excluded_nodes.ExcludedNode.until(
            host, reason, cluster=cluster, by=getpass.getuser(), hours=hours
        )
        excluded_nodes.add(args.runs, entry)
