"""Disturbances of a program: its first start waits for its pre-emption; of one, the second loses a rank."""

import os
import signal
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
PREEMPTED_AT, KILLED_AT = 12, 17
KILLED = "raw_ddp.py"


def at(step, stops=lambda: False):
    start = os.environ["DISTTRAIN_ATTEMPT"]
    if (start, step) == ("0", PREEMPTED_AT):
        Path(os.environ["DISTTRAIN_RUN_DIR"], f"waits-{RANK}").touch()
        while not stops():
            time.sleep(0.05)
    if (start, step, RANK) == ("1", KILLED_AT, "1") and sys.argv[0].endswith(KILLED):
        os.kill(os.getpid(), signal.SIGKILL)
