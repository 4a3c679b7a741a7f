"""`annotate`: print or change the tags and notes of sweeps and runs."""

from __future__ import annotations

import argparse

from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser, annotations="tags and note of each named sweep or run")
    options.value(parser, "targets", "SWEEP|RUN", nargs="+")
    options.annotation(parser, "each")
    options.words(parser, "--untag", "TAG", "tags to remove from each")


def run(args: argparse.Namespace) -> int:
    from disttrain.errors import ConfigError, nearest
    from jobs.cli import selection
    from jobs.cli.command_output import add_json
    from jobs.core.lock import sweep_lock
    from jobs.status.run_folders import annotate, check_tags, read_annotation
    from jobs.status.run_state import read_state

    check_tags(args.tags, "--tag")
    sweeps = selection.sweep_names(args.runs)
    names = [name.strip("/") for name in args.targets]
    folders = {
        name: args.runs / name if name in sweeps else selection.find_run(args.runs, name).path
        for name in names
    }
    known = {tag for folder in folders.values() for tag in read_annotation(folder).tags}
    for tag in args.untag:
        if tag not in known:
            raise ConfigError(f"no such tag here: {tag!r}{nearest(tag, known)}", at="--untag")
    rows = []
    for name, folder in folders.items():
        if args.tags or args.untag or args.note is not None:
            with sweep_lock(folder if folder.parent == args.runs else folder.parent):
                annotate(folder, add=args.tags, remove=args.untag, note=args.note)
        now = read_annotation(folder)
        note = f'"{now.note}"' if now.note else "no note"
        print(f"{name}: {', '.join(now.tags) or 'no tags'}; {note}")
        rows.append({"target": name, "tags": list(now.tags), "note": now.note})
    states = map(read_state, selection.find_runs(args.runs, names)) if args.json else ()
    add_json(list(states), annotations=rows)
    return 0
