"""`init`: write a config, a site profile and a batch script into a folder, as the start of a project."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs import PROGRAM
from jobs.cli import options

CONFIG, PROFILE, SCRIPT, IGNORED = "config.yaml", "profile.yaml", "train.sbatch", ".gitignore"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.json_document(parser, files="paths of the files that were written")
    text = "folder, which need not exist (the working directory)"
    options.value(parser, "folder", "FOLDER", text, nargs="?", type=Path, default=Path())
    options.this_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """Raises `ConfigError` for a folder that has one of the files or cannot be written."""
    import os

    from disttrain.config.parsing import check, load
    from disttrain.errors import ConfigError, message_of
    from disttrain.records.json_files import write_bytes
    from jobs.cli.command_output import add_json, print_warning
    from jobs.cli.selection import chosen_doctor

    for name in (CONFIG, PROFILE, SCRIPT):
        if os.path.lexists(path := args.folder / name):
            raise ConfigError(f"{path} exists already, and is not overwritten: name a new folder")
    template = Path(__file__).parents[1] / "templates" / CONFIG
    files = {CONFIG: template.read_text(encoding="utf-8")}
    if not (args.folder / IGNORED).exists():
        files[IGNORED] = "runs/\ntrain-*.log\n"
    try:
        files[PROFILE], files[SCRIPT] = chosen_doctor(args).draft_files(check(load(template)).as_dict())
    except ConfigError as error:
        print_warning(f"{PROFILE} and {SCRIPT} are not written: {error}")
    paths = [args.folder / name for name in files]
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            write_bytes(path, files[path.name].encode())
    except OSError as error:
        raise ConfigError(f"cannot write to {str(args.folder)!r}: {message_of(error)}") from None
    add_json(files=[str(path) for path in paths])
    print(f"wrote {', '.join(map(str, paths))}")
    flag = f" --profile {PROFILE}" if PROFILE in files else ""
    print("check them; then, in their folder:")
    print(f"  {PROGRAM} doctor{flag}{' --job' if flag else ''}")
    print(f"  {PROGRAM} sweep {CONFIG}{flag} --nodes 1 2")
    if flag:
        print(f"  sbatch --nodes 2 {SCRIPT} --config {CONFIG}")
    return 0
