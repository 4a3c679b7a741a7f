"""The lines that a namespace init and its parent process exchange over the init's stdin and stdout.

| line | from | meaning |
|---|---|---|
| `ready` | init | the namespaces exist |
| subnet number | parent | the links exist; configure them and start the services |
| `controller ready` | parent, to a node | slurmctld listens; start slurmd |
| `up` | init | every service accepts connections |
| `failed REASON` | init | startup failed; the init ends |
| `detach` | parent | the cluster is up; outlive the pipe |

Standard library only.
"""

from __future__ import annotations

import select
import subprocess
import sys

READY = "ready"
CONTROLLER_READY = "controller ready"
UP = "up"
FAILED = "failed "
DETACH = "detach"


class ServiceError(RuntimeError):
    """A service did not start; the message is one line."""


def send_to_parent(line: str) -> None:
    """Write one line to the parent process."""
    print(line, flush=True)


def receive_from_parent() -> str:
    """Read the parent's next line. Raises `EOFError` when the parent has ended."""
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        raise EOFError("the process that started this cluster has ended")
    return line.strip()


def parent_has_ended() -> bool:
    """Whether the other end of the pipe on stdin is closed."""
    pipe = select.poll()
    pipe.register(0, 0)  # an empty event mask still reports POLLHUP
    return bool(pipe.poll(0))


def send_to_init(init: subprocess.Popen[str], line: str) -> None:
    """Write one line to a namespace init. Raises `BrokenPipeError` when it has ended."""
    assert init.stdin is not None
    init.stdin.write(line + "\n")
    init.stdin.flush()


def expect_from_init(init: subprocess.Popen[str], expected: str, host: str) -> None:
    """Wait for one line of a namespace init. Raises `ServiceError` for any other line, or when it ends."""
    assert init.stdout is not None
    line = init.stdout.readline().strip()
    if line != expected:
        raise ServiceError(
            f"{host}: {line.removeprefix(FAILED) or 'its namespace init ended without a reason'}"
        )
