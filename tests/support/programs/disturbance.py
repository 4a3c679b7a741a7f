"""Disturbances of a program: its first start waits for its stop signal; the second loses a rank."""

import json
import os
import signal
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
PREEMPTED_AT, KILLED_AT = 12, 17
STEP_S = float(os.environ.get("STEP_S", "0"))
_began: dict[int, float] = {}


def at(step: int) -> None:
    """Each step begins with this."""
    _began[step] = time.perf_counter()
    time.sleep(STEP_S)
    start, loop = os.environ["DISTTRAIN_ATTEMPT"], sys.modules.get("disttrain.integrations.loop")
    if loop:
        loop.AGREE_EVERY_S = 0.0  # these steps are short
    if (start, step) == ("0", PREEMPTED_AT):
        waits = Path(os.environ["DISTTRAIN_RUN_DIR"], f"waits-{RANK}")
        waits.with_suffix(".new").write_text(str(os.getpid()))
        waits.with_suffix(".new").rename(waits)
        while not (loop and loop._signals.received):
            time.sleep(0.05)
    if (start, step, RANK) == ("1", KILLED_AT, "1"):
        os.kill(os.getpid(), signal.SIGKILL)


def finished(first: int, step: int, loss: float) -> None:
    """On rank 0, the program has ended: what it came to, and when its steps began, by its own stopwatch."""
    result = {"first": first, "step": step, "loss": loss, "began": _began}
    Path(f"{Path(sys.argv[0]).stem}.json").write_text(json.dumps(result))
