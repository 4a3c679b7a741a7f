"""The run directory: where each file of a run lives, and how files are read and written.

Files appear by write-to-temporary then rename, so a reader never sees half of one. Imports nothing
beyond the standard library: `status` reads a thousand of these in a second.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STRICT = json.JSONEncoder(allow_nan=False)  # kept: making one costs as much as a line of step records


class CorruptFile(ValueError):
    """A record that cannot be read; the message is one line naming the file."""


@dataclass(frozen=True)
class Attempt:
    """One start of a run: `attempts/000/`, `attempts/001/`, ..."""

    path: Path
    number: int

    @property
    def record(self) -> Path:
        return self.path / "attempt.json"

    @property
    def rendezvous(self) -> Path:
        return self.path / "rendezvous.json"

    @property
    def tensorboard(self) -> Path:
        """Within the run's `tensorboard/`, so that it shows all attempts together."""
        return RunDir(self.path.parent.parent).tensorboard / self.path.name

    def node_log(self, node: int) -> Path:
        return self.path / f"node-{node:02d}.log"

    def node_record(self, node: int) -> Path:
        return self.path / f"node-{node:02d}.json"

    def rank_log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def steps(self, rank: int) -> Path:
        return self.path / f"steps-{rank:05d}.jsonl"

    def gpu_samples(self, node: int) -> Path:
        return self.path / f"gpu-node{node:02d}.jsonl"

    def gpu_devices(self, node: int) -> Path:
        return self.path / f"gpu-node{node:02d}.json"

    def host_samples(self, node: int) -> Path:
        return self.path / f"host-node{node:02d}.jsonl"

    def comm(self, rank: int) -> Path:
        """Collectives of the sampled steps."""
        return self.path / f"comm-{rank:05d}.jsonl"

    def trace(self, rank: int) -> Path:
        """The trace that was asked for, as PyTorch's profiler exports it."""
        return self.path / f"trace-{rank:05d}.json.gz"

    def profile(self, rank: int) -> Path:
        """What is in that trace, beside the step clock's figures."""
        return self.path / f"profile-{rank:05d}.json"

    @property
    def layers(self) -> Path:
        """What each layer took, where that was asked for."""
        return self.path / "layers.json"

    def error(self, rank: int) -> Path:
        return self.path / f"error-{rank:05d}.json"

    @property
    def stop(self) -> Path:
        """A request to stop that came in on a node: `cause`, `time`, and what was seen."""
        return self.path / "stop.json"

    def node_exit(self, node: int) -> Path:
        """How a node's share of the attempt ended, for the node that closes it."""
        return self.path / f"node-{node:02d}.exit.json"

    def node_oom(self, node: int) -> Path:
        """There if the kernel ended processes of a node's share for want of memory: how many."""
        return self.path / f"node-{node:02d}.oom.json"

    def superseded_by(self) -> int | None:
        """The newest attempt, if there is one after this: whoever is behind writes nothing shared any more.

        A job taken for dead may still live on a node that was frozen, beside the one in its place.
        """
        newest = max(_numbers(self.path.parent), default=self.number)
        return newest if newest > self.number else None


@dataclass(frozen=True)
class RunDir:
    """`runs/<sweep>/<run>/`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def sweep(self) -> str:
        return self.path.parent.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def script(self) -> Path:
        """The batch script as it was submitted last, where Slurm got one."""
        return self.path / "submit.sbatch"

    @property
    def env_json(self) -> Path:
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def progress(self) -> Path:
        """Small live state that rank 0 rewrites as it goes (step, rate, loss)."""
        return self.path / "progress.json"

    @property
    def usage(self) -> Path:
        """What the run used, by the cluster's accounting."""
        return self.path / "usage.json"

    @property
    def submissions(self) -> Path:
        """The submission journal: one folder entry per submission (see `jobs.ledger`)."""
        return self.path / "submissions"

    @property
    def done(self) -> Path:
        return self.path / "DONE"

    @property
    def failed(self) -> Path:
        return self.path / "FAILED"

    @property
    def stop(self) -> Path:
        return self.path / "STOP"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def attempt(self, number: int) -> Attempt:
        return Attempt(self.path / "attempts" / f"{number:03d}", number)

    def attempts(self) -> list[Attempt]:
        """The attempts there are, oldest first."""
        return [self.attempt(number) for number in sorted(_numbers(self.path / "attempts"))]

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"


_CHECKPOINT = re.compile(r"step-(\d{8,})")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the committed checkpoints in `folder`, newest first, whatever they hold."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))), reverse=True)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry) for entry in os.listdir(folder) if entry.isdigit()]
    except FileNotFoundError:
        return []


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a whole file atomically: readers see the old content or the new, never a part.

    `durable` also waits for the disk; live state that is rewritten every second does without.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode(), durable=durable)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write strict JSON atomically; a float that is not finite becomes null."""
    write_text(path, to_json(value, indent=1) + "\n", durable=durable)


def create_exclusive(path: Path, value: Any) -> bool:
    """Create `path` with complete JSON content if nobody has; False if it is there already.

    Hard-linking a finished temporary file is atomic, also on NFS: exactly one caller wins, and no
    reader ever sees the winner's file without its content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    write_json(temporary, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS the answer to a link that was made may get lost, and asking again then says this.
        with open(temporary) as file:  # which asks the server, where `stat` may remember
            return os.fstat(file.fileno()).st_nlink > 1
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _temporary(path: Path) -> Path:
    """Nobody else's: on two nodes there may be processes of one number, above all in containers."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text: NaN and infinities, which JSON has no word for, become null."""
    encoder = json.JSONEncoder(indent=indent, allow_nan=False) if indent else _STRICT
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object. Raises `FileNotFoundError`, or `CorruptFile` when it is not one."""
    try:
        value = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path} holds {type(value).__name__}, not an object")
    return value


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """The JSON object at `path`, or None when it is missing or corrupt."""
    try:
        return read_json(path)
    except (OSError, CorruptFile):
        return None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file; a truncated last line (a killed writer) is left out.

    Raises `CorruptFile` for a bad line anywhere else.
    """
    with open(path, "rb") as file:
        pending: bytes | None = None
        number = 0
        for line in file:
            if pending is not None:
                yield _record(path, number, pending)
            pending = line
            number += 1
            if not line.endswith(b"\n"):
                break  # the end as it was just now: its writer may go on meanwhile, in the midst of a line
        if pending is not None:
            try:
                record = _record(path, number, pending)
            except CorruptFile:
                return
            yield record


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CorruptFile(f"{path}:{number} is not a JSON record") from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path}:{number} is not a JSON object")
    return value
