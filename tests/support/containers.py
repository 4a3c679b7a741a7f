"""Stand-ins for Apptainer and Pyxis: an image is a mount namespace with one folder, and without Slurm."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

_INSIDE = """\
mount --bind {python} {image} || exit
for command in scontrol srun squeue sbatch; do
  mount --bind /dev/null "$(PATH={path} command -v $command)" || exit
done
exec "$@"
"""
_APPTAINER = """\
#!/bin/sh
# apptainer exec [OPTION...] IMAGE COMMAND...: the command is a child of a runtime that waits for it.
while [ "${{1##*.}}" != sif ]; do shift; done
shift
unshare --mount sh -c {inside} sh "$@" &
trap 'kill -TERM $!' TERM
wait $! || {{ code=$?; wait $! || code=$?; exit $code; }}
"""
_SRUN = """\
#!{interpreter}
import itertools, os, sys
words = sys.argv[1:]
options = [*itertools.takewhile(lambda word: word.startswith("-"), words)]
command = words[len(options) :]
if any(word.startswith("--container-image") for word in options):
    options = [word for word in options if "container-" not in word]
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", {inside!r}, "sh", *command]
os.execv({srun!r}, ["srun", *options, *command])
"""


def stand_ins(folder: Path, python: Path, path: str) -> tuple[Path, str]:
    """A folder of commands, and the Python of the image, which exists in no other place.

    `python` is a virtual environment, and `path` the `PATH` with Slurm's commands.
    """
    commands, image = folder / "commands", folder / "image"
    commands.mkdir()
    image.mkdir()
    names = {"python": python, "image": image, "path": path}
    inside = _INSIDE.format(**{name: shlex.quote(str(value)) for name, value in names.items()})
    srun = shutil.which("srun", path=path)
    scripts = {
        "apptainer": _APPTAINER.format(inside=shlex.quote(inside)),
        "srun": _SRUN.format(interpreter=sys.executable, inside=inside, srun=srun),
    }
    for name, text in scripts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return commands, f"{image}/bin/python"
