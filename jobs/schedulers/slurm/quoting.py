"""Quoting of values in the `#SBATCH` lines of a batch script. Pure functions, standard library only."""

from __future__ import annotations

import re


def sbatch_word(text: str) -> str:
    """`text` as one argument of a `#SBATCH` line.

    sbatch splits such a line like a shell, with three exceptions: a backslash escapes within both kinds of
    quotes, an unquoted `#` ends the line, and sbatch expands nothing.
    """
    if re.fullmatch(r"[A-Za-z0-9_@%+=:,./&|*()\[\]!-]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def file_pattern(path: str) -> str:
    """A path as a file pattern of Slurm, with each `%` escaped as `%%`.

    Raises `ValueError` for a backslash, which switches file patterns off.
    """
    if "\\" in path:
        raise ValueError("holds a backslash, which switches Slurm's file patterns off")
    return path.replace("%", "%%")
