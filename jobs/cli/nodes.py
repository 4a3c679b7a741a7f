"""`nodes`: print or change the nodes that submissions from this runs folder exclude."""

from __future__ import annotations

import argparse
import getpass
import re
from datetime import datetime

from disttrain.errors import ConfigError, nearest
from jobs.cli.command_output import add_json
from jobs.cli.formatting import count, table
from jobs.core import excluded_nodes
from jobs.core.excluded_nodes import ExcludedNode

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def run(args: argparse.Namespace) -> int:
    known = [each.host for each in excluded_nodes.read(args.runs)]
    for host in args.clear:
        if host not in known:
            raise ConfigError(f"no excluded node {host!r}{nearest(host, known)}", at="--clear")
    for host in args.exclude:
        if _HOST.fullmatch(host) is None:
            raise ConfigError(f"{host!r} is not the name of one node", at="--exclude")
    if args.exclude:
        args.runs.mkdir(parents=True, exist_ok=True)
    for host in args.exclude:
        reason = " ".join((args.reason or "excluded by hand").split())
        by, hours = getpass.getuser(), args.hours
        excluded_nodes.add(args.runs, ExcludedNode.until(host, reason, cluster=None, by=by, hours=hours))
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
    return 0


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
