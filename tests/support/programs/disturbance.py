"""Disturbances of a program: its first start waits for its pre-emption, and its second one loses a rank."""

import os
import signal
import time
from pathlib import Path

RANK = os.environ["RANK"]
PREEMPTED_AT, KILLED_AT = 12, 17


def at(step, stops=lambda: False):
    start = os.environ["DISTTRAIN_ATTEMPT"]
    if (start, step) == ("0", PREEMPTED_AT):
        Path(os.environ["DISTTRAIN_RUN_DIR"], f"waits-{RANK}").touch()
        while not stops():
            time.sleep(0.05)
    if (start, step, RANK) == ("1", KILLED_AT, "1"):
        os.kill(os.getpid(), signal.SIGKILL)
