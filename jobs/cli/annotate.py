"""`annotate`: print or change the tags and notes of sweeps and runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from disttrain.errors import ConfigError, nearest
from jobs.cli import run_lookup
from jobs.cli.command_output import add_json
from jobs.core.sweep_lock import sweep_lock
from jobs.status.annotations import Annotation, annotate, check_tags, read_annotation
from jobs.status.run_state import read_state


def run(args: argparse.Namespace) -> int:
    check_tags(args.tags, "--tag")
    folders = {name.strip("/"): _folder(args.runs, name) for name in args.targets}
    known = {tag for folder in folders.values() for tag in read_annotation(folder).tags}
    for tag in args.untag:
        if tag not in known:
            raise ConfigError(f"no such tag here: {tag!r}{nearest(tag, known)}", at="--untag")
    found: dict[str, Annotation] = {}
    for name, folder in folders.items():
        if not (args.tags or args.untag or args.note is not None):
            found[name] = read_annotation(folder)
            continue
        with sweep_lock(folder if folder.parent == args.runs else folder.parent):
            found[name] = annotate(folder, add=args.tags, remove=args.untag, note=args.note)
    rows = [{"target": name, "tags": list(each.tags), "note": each.note} for name, each in found.items()]
    states = map(read_state, run_lookup.find_runs(args.runs, args.targets)) if args.json else ()
    add_json(list(states), annotations=rows)
    for name, each in found.items():
        note = f'"{each.note}"' if each.note else "no note"
        print(f"{name}: {', '.join(each.tags) or 'no tags'}; {note}")
    return 0


def _folder(root: Path, name: str) -> Path:
    """The folder of a sweep, else of a run. Raises `ConfigError`."""
    sweep = name.strip("/")
    return root / sweep if sweep in run_lookup.sweep_names(root) else run_lookup.find_run(root, sweep).path
