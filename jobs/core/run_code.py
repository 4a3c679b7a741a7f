"""The code of a run, by its `run.json`: the copies that it runs (`jobs.core.code_copy`), and its command.

Standard library only.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.records.collect_provenance import code_hash
from disttrain.records.run_directory import RunDir

FOLDER = ".code"
"""Name of the folder of all copies, in the runs folder."""
CODE_ROOT = Path(__file__).resolve().parents[2]
"""Root of the running code: a checkout, an installation, or a copy."""
_WITH_PLUG_INS = ("model", "data", "optim", "telemetry")
_PLUG_IN = re.compile(r'"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*"')

CommandCode = dict[str, Any]
"""Plain data of `records.CommandCode`."""


def code_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `records.Code` in a `run.json`; empty in one that was made by hand."""
    code: Mapping[str, Any] = record.get("provenance", {}).get("code") or {}
    return code


def command_record(record: Mapping[str, Any]) -> CommandCode | None:
    """The `records.CommandCode` in a `run.json`; None for a run of the trainer."""
    command: CommandCode | None = record.get("provenance", {}).get("command")
    return command


def hash_in(record: Mapping[str, Any]) -> str:
    """Hash of the code that decides the results of a run: that of its command, else of the trainer."""
    command = command_record(record)
    code: str = code_record(record)["hash"] if command is None else command["hash"] or ""
    return code


def paths_in(record: Mapping[str, Any]) -> list[str]:
    """Paths below the runs folder of the copies that a run refers to: of this code, and of its command."""
    codes = (code_record(record), command_record(record) or {})
    return [code["path"] for code in codes if code.get("path")]


def copies_of_run(run: RunDir, record: Mapping[str, Any]) -> list[Path]:
    """Folders and archives of the copies that a run refers to."""
    copies = [(run.path.parent.parent / path).absolute() for path in paths_in(record)]
    return [path for copy in copies for path in (copy, archive_of(copy))]


def archive_of(copy: Path) -> Path:
    """The archive from which a batch script unpacks this copy."""
    return copy.with_name(f"{copy.name}.tar")


def code_of_run(run: RunDir, record: Mapping[str, Any]) -> Path:
    """Root of the code of a run; the running code if `run.json` names none."""
    path = code_record(record).get("path")
    return (run.path.parent.parent / path).absolute() if path else CODE_ROOT


def code_problem(run: RunDir, record: Mapping[str, Any]) -> str | None:
    """The difference between the running code and the run's copy, in one line; None if there is none.

    A run without a copy in its `run.json` accepts any code.
    """
    if not code_record(record).get("path"):
        return None
    copy, recorded = code_of_run(run, record), code_record(record)["hash"]
    again = "`disttrain resume` starts the run with the current code"
    if not (copy / "jobs").is_dir():
        return f"the code copy of the run does not exist ({copy}); {again}"
    if copy.resolve() != CODE_ROOT:
        return f"the code in {CODE_ROOT} runs, and the run was submitted with the code in {copy}; {again}"
    if recorded != (found := code_hash()):
        return f"the code copy of the run was changed ({found}, not {recorded}, in {copy}); {again}"
    return None


def modules_in(config: Mapping[str, Any]) -> set[str]:
    """Modules that a config names as `package.module:callable`."""
    return {*_PLUG_IN.findall(json.dumps([config.get(section) for section in _WITH_PLUG_INS]))}


def has_module(folder: Path, module: str) -> bool:
    """Whether the package of a module, or the module itself, lies in a folder."""
    package = module.partition(".")[0]
    return (folder / package).is_dir() or (folder / f"{package}.py").is_file()


def missing_modules(config: Mapping[str, Any], code: Path) -> list[str]:
    """Modules that a config names and that the copy at `code` lacks."""
    return sorted(module for module in modules_in(config) if not has_module(code, module))


def script_words(command: Sequence[str]) -> tuple[str, ...]:
    """The script of a command, such as that of `accelerate launch train.py` or `bash train.sh`, or `./train`;
    `("-m", MODULE)`; empty for an installed executable."""
    if command and command[0] == "-m":
        return tuple(command[:2])
    named = (word for word in command if re.fullmatch(r"[^-\s]\S*\.(py|sh)", word))
    files = (word for word in command[:1] if "/" in word and not word.startswith("/"))
    return tuple(itertools.islice(itertools.chain(named, files), 1))


@dataclass(frozen=True)
class RunCommand:
    """The `command` of a run, and the code that it starts."""

    words: Sequence[str]
    folder: Path
    """Working directory of the submission."""
    source: Path | None
    """Folder that was copied; None for an installed module."""
    copy: Path | None
    workdir: Path
    """Working directory of the ranks (`job.workdir`)."""

    @property
    def problem(self) -> str | None:
        """Why it cannot start on this machine, in one line; None if it can."""
        if not self.folder.is_dir():
            return f"the working directory of the command does not exist here: {self.folder}"
        if self.copy is not None and not self.copy.is_dir():
            again = "`disttrain resume` starts the run with the present files"
            return f"the copy of the script does not exist ({self.copy}); {again}"
        return None

    def words_to_start(self) -> list[str]:
        """Its words, in which the script is that of the copy."""
        script = script_words(self.words)
        if len(script) != 1 or self.copy is None:
            return list(self.words)
        at = self.words.index(script[0])
        copy = str(self._in_copy(self.folder / script[0]))
        return [*self.words[:at], copy, *self.words[at + 1 :]]

    def search_path(self, inherited: str) -> list[str]:
        """Its module search path: that of the submission, with the copy in place of copied folders."""
        entries = [self.folder / entry for entry in inherited.split(":") if entry]
        if self.words[0] == "-m" and self.copy is not None:
            entries.insert(0, self.folder)
        return [str(self._in_copy(entry)) for entry in entries]

    def _in_copy(self, path: Path) -> Path:
        """The counterpart of `path` in the copy; `path` itself outside of the copied folder."""
        real = path.resolve()
        if self.source is None or self.copy is None or not real.is_relative_to(self.source):
            return path
        return self.copy / real.relative_to(self.source)


def command_of_run(run: RunDir, record: Mapping[str, Any]) -> RunCommand | None:
    """The command of a run; None for a run of the trainer."""
    code = command_record(record)
    if code is None:
        return None
    folder, config = Path(code["folder"]), record["config"]
    copy = (run.path.parent.parent / code["path"]).absolute() if code["path"] else None
    source = Path(code["source"]) if code["source"] else None
    folders = {"code": copy, "run": run.path.absolute(), "checkpoints": run.checkpoints.absolute()}
    workdir = folders.get(config["job"]["workdir"]) or folder
    return RunCommand(config["command"], folder, source, copy, workdir)


def folders_of_run(run: RunDir, record: Mapping[str, Any]) -> list[Path]:
    """Folders that the processes of a command need, besides the run directory; none for the trainer."""
    command = command_of_run(run, record)
    return [] if command is None else [*filter(None, [command.copy]), command.folder]
