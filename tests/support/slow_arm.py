"""One rank of an arm whose step is followed by a sleep of `TEST_SLEEP` times its own duration."""

from __future__ import annotations

import os
import sys
import time

from disttrain.comm_bench import arm_rank

build_step = arm_rank.build_step


def build_slowed_step(given, config, world):
    step, text = build_step(given, config, world)
    share = float(os.environ.get("TEST_SLEEP", "0"))

    def slowed() -> None:
        began = time.perf_counter()
        step()
        time.sleep(share * (time.perf_counter() - began))

    return slowed, text


if __name__ == "__main__":
    arm_rank.build_step = build_slowed_step
    code = arm_rank.main()
    sys.stderr.flush()
    os._exit(code)
