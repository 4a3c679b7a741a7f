"""Find srun, sbatch and salloc among the words of a command, their options, and the program that they start.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobs.core.sbatch_options import (
    PYXIS_OPTIONS,
    SALLOC_OPTIONS,
    SBATCH_OPTIONS,
    SHORT_OPTIONS_WITH_VALUE,
    SRUN_OPTIONS,
)

_OPTIONS = {
    name: PYXIS_OPTIONS | table
    for name, table in (("srun", SRUN_OPTIONS), ("sbatch", SBATCH_OPTIONS), ("salloc", SALLOC_OPTIONS))
}
_SHORT_WITH_OPTIONAL_VALUE = "IKk"


class JobCommand(NamedTuple):
    """A use of srun, sbatch or salloc."""

    name: str
    """`srun`, `sbatch` or `salloc`."""
    options: dict[str, str]
    """Values of its long options; of an option given twice the last one, which counts."""
    program: Sequence[str]
    """The words of the program or script that it starts: options among them are the program's own."""


def job_commands(words: Sequence[str]) -> Iterator[JobCommand]:
    """The uses of srun, sbatch and salloc in a command line, of which one may start another."""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in _OPTIONS:
            found = job_command(name, words[index + 1 :])
            yield found
            yield from job_commands(found.program)
            return


def job_command(name: str, words: Sequence[str]) -> JobCommand:
    """Divide the words after `srun`, `sbatch` or `salloc`.

    The program is the first word that is neither an option nor the value of one. A variable of the shell is
    passed over, because scripts keep options in variables.
    """
    options: dict[str, str] = {}
    index = 0
    while index < len(words):
        word = words[index]
        following = words[index + 1] if index + 1 < len(words) else ""
        if word == "--":
            return JobCommand(name, options, words[index + 1 :])
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            option = _full_name(name, option)
            takes_next = not equals and _OPTIONS[name].get(option) == "required"
            options[option] = following if takes_next else value
        elif word.startswith("-"):
            takes_next = _takes_next(name, word[1:])
        elif word.startswith("$"):
            takes_next = False
        else:
            break
        index += 1 + takes_next
    return JobCommand(name, options, words[index:])


def _full_name(command: str, option: str) -> str:
    """The option that a name means: unique beginnings are accepted, too."""
    matching = [each for each in _OPTIONS[command] if each.startswith(option)]
    return matching[0] if option not in matching and len(matching) == 1 else option


def _takes_next(command: str, letters: str) -> bool:
    """Whether the value of a word of short options, such as `-lN`, is the next word."""
    for index, letter in enumerate(letters):
        if letter in _SHORT_WITH_OPTIONAL_VALUE:
            return False
        if letter in SHORT_OPTIONS_WITH_VALUE[command]:
            return index == len(letters) - 1
    return False
