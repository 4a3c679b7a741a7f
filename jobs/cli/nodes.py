"""`nodes`: print or change the nodes that submissions from this runs folder exclude."""

from __future__ import annotations

import argparse
import getpass
import re
from datetime import datetime

from disttrain.errors import ConfigError, nearest
from jobs.cli.command_output import add_json
from jobs.cli.formatting import count, table
from jobs.cli.target import answering_cluster
from jobs.core import excluded_nodes
from jobs.core.excluded_nodes import ExcludedNode
from jobs.submission.prepare import nodes_to_exclude

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def run(args: argparse.Namespace) -> int:
    known = [each.host for each in excluded_nodes.read(args.runs)]
    for host in args.clear:
        if host not in known:
            raise ConfigError(f"no excluded node {host!r}{nearest(host, known)}", at="--clear")
    for name in ("reason", "hours"):
        if getattr(args, name) is not None and not args.exclude:
            raise ConfigError("has an effect only with --exclude", at=f"--{name}")
    if args.exclude:
        _exclude(args)
    removed = []
    if args.clear or (args.clear_all and known):
        removed = excluded_nodes.remove(args.runs, None if args.clear_all else args.clear)
    entries = excluded_nodes.read(args.runs)
    add_json([], excluded_nodes=[vars(each) for each in entries])
    if args.json:
        return 0
    if removed:
        print(f"used again: {', '.join(each.host for each in removed)}")
    print(_table(entries) if entries else f"no excluded nodes in {args.runs}")
    if entries and (scheduler := answering_cluster()) and (hosts := nodes_to_exclude(args.runs, scheduler)):
        print(f"jobs by hand do not read this list: sbatch --exclude={','.join(hosts)} jobs/train.sbatch ...")
    return 0


def _exclude(args: argparse.Namespace) -> None:
    """Add nodes for the cluster that answers; for every cluster where none does."""
    for host in args.exclude:
        if _HOST.fullmatch(host) is None:
            raise ConfigError(f"{host!r} is not the name of one node", at="--exclude")
    scheduler = answering_cluster()
    names = scheduler.node_names() if scheduler else None
    for host in args.exclude:
        if names is not None and host not in names:  # a submission that excludes an unknown node is refused
            raise ConfigError(f"the cluster has no node {host!r}{nearest(host, names)}", at="--exclude")
    cluster = scheduler.cluster_name() if scheduler else None
    reason = " ".join((args.reason or "excluded by hand").split())
    hours = args.hours or excluded_nodes.DEFAULT_HOURS
    args.runs.mkdir(parents=True, exist_ok=True)
    for host in args.exclude:
        entry = ExcludedNode.until(host, reason, cluster=cluster, by=getpass.getuser(), hours=hours)
        excluded_nodes.add(args.runs, entry)


def _table(entries: list[ExcludedNode]) -> str:
    rows = [
        (
            each.host,
            f"{datetime.fromisoformat(each.expires).astimezone():%Y-%m-%d %H:%M}",
            each.by,
            each.reason,
        )
        for each in entries
    ]
    return f"{table(('NODE', 'UNTIL', 'BY', 'REASON'), rows)}\n\n{count(len(rows), 'excluded node')}"
