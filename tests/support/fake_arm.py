"""A process that answers as `disttrain.comm_bench.arm_rank` does, without torch and without other ranks.

`FAKE_STEP_S` is the duration of its step in seconds, `FAKE_END` its failure: `start`, `block`, `killed`, or
`stuck` (it does not end). `FAKE_LINES` are JSON lines that it writes once it is ready, as those that rank 0
relays.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def say(message: dict) -> None:
    print(json.dumps(message), flush=True)


def main() -> int:
    failure = os.environ.get("FAKE_END")
    if failure == "start":
        say({"error": "no interface 'ib9'"})
        return 1
    say({"ready": {"device": "cpu", "backend": "gloo", "nodes": 2, "ranks_per_node": 1, "torch": "2",
                   "nccl": None, "step": "a step"}})  # fmt: skip
    if failure == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    for line in os.environ.get("FAKE_LINES", "").splitlines():
        print(line, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "steps" in command:
            if failure == "block":
                return 3
            say({"seconds_per_step": float(os.environ.get("FAKE_STEP_S", "0.5"))})
        elif "relay" in command:
            say({"relayed": command["relay"]})
        elif failure == "stuck":
            time.sleep(600)
        else:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
