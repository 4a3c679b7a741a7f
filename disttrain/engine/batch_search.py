"""Resolution of `train.local_batch_size: auto` on the ranks: from a checkpoint, or by probe processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.engine.host_limit import host_limit, resident_bytes
from disttrain.engine.probe_protocol import EXIT_OUT_OF_MEMORY, STORE_PREFIX
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from disttrain.records.batch_fit import BatchFit
from disttrain.records.heartbeat import FOLDER_VARIABLE, record_killed_probe
from disttrain.records.oom_kills import count_oom_kills
from disttrain.runtime import heartbeat, log, nccl_log_file
from disttrain.runtime.process_group import World

_POLL_S = 0.2
_searches = itertools.count(1)
"""Numbers of the searches of this process: each has a prefix of its own in the store."""
_GRACE_S = 5.0
"""Time for the other processes to end after one has failed: the failure of the first may be that its peer is
gone."""
_PACKAGE_PARENT = Path(__file__).parents[2]


def search_batch_size(config: Config, world: World) -> BatchFit:
    """The fastest local batch size that fits on every rank. All ranks together.

    Raises `ConfigError` on all ranks if the smallest one does not fit or the config cannot be run, and
    `RuntimeError` if a probe process fails otherwise, also by a SIGKILL that the OOM killer has not sent.
    """
    limit = host_limit(world.local_size)
    world.all_gather_object(None)  # every rank has measured before any starts a process
    request: dict[str, Any] = {
        "config": config.as_dict(),
        "limit_bytes": limit.bytes,
        "limit_source": limit.source,
        "parent_bytes": resident_bytes() if limit.shared and world.device.type == "cpu" else 0,
        "below": None,
    }
    failed: list[int] = []
    search = next(_searches)
    while True:
        outcomes = _run_probes(request, world, f"{search}-{len(failed)}", config.job.setup_timeout_s)
        if all(outcome.fit for outcome in outcomes):
            fit = BatchFit.model_validate(outcomes[0].fit).model_copy(update={"out_of_memory": failed})
            log.info(
                "batch size found", local=fit.local_batch_size, accumulation=fit.accumulation,
                peak_mib=fit.verified_peak_bytes >> 20, limit_mib=fit.limit_bytes >> 20, seconds=fit.seconds,
            )  # fmt: skip
            return fit
        _raise_unless_out_of_memory(outcomes)
        tried = max(outcome.trying for outcome in outcomes)
        if tried <= 1:
            raise ConfigError(
                "train.local_batch_size=auto: a probe of the smallest size runs out of memory; use "
                "memory.activation_checkpointing=full, a smaller model, or devices with more memory"
            )
        failed.append(tried)
        request["below"] = tried
        log.info("batch size does not fit", local=tried)


class _ProbeProcess:
    """One probe process, and its answers."""

    def __init__(self, request: dict[str, Any], number: str) -> None:
        path = os.pathsep.join(filter(None, [str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))
        environment = {
            **nccl_log_file.environment_of_children(),
            "PYTHONPATH": path,
            STORE_PREFIX: f"batch-probe-{number}",
        }
        self._kills_before = count_oom_kills()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "disttrain.engine.batch_probe"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.trying = 0
        self.fit: dict[str, Any] | None = None
        self.refused: str | None = None
        self.answered_at = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request))
            self._process.stdin.close()
        except BrokenPipeError:
            return  # the exit code gives the reason

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self.trying = answer.get("trying", self.trying)
            self.fit = answer.get("fit", self.fit)
            self.refused = answer.get("refused", self.refused)
            self.answered_at = time.monotonic()

    def code(self) -> int | None:
        """Exit code; None while the process runs."""
        code = self._process.poll()
        if code is not None:
            self._reader.join()
        return code

    def oom_killed(self) -> bool:
        """Whether SIGKILL ended the process, and the kernel has counted a kill of its OOM killer since the
        start."""
        if self.code() != -signal.SIGKILL or self._kills_before is None:
            return False
        return (count_oom_kills() or 0) > self._kills_before

    def wait(self, timeout_s: float) -> int | None:
        """Exit code after at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while (code := self.code()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class _Outcome:
    """The end of one rank's probe process, as the other ranks receive it."""

    def __init__(self, process: _ProbeProcess, code: int | None) -> None:
        self.code = code
        self.out_of_memory = code == EXIT_OUT_OF_MEMORY or process.oom_killed()
        self.trying = process.trying
        self.fit = process.fit if code == 0 else None
        self.refused = process.refused


def _run_probes(request: dict[str, Any], world: World, number: str, timeout_s: float) -> list[_Outcome]:
    """The outcomes by rank, once all processes have succeeded or one has failed. All ranks together."""
    process = _ProbeProcess(request, number)
    try:
        while True:
            heartbeat.progress()
            code = process.code()
            silent = time.monotonic() - process.answered_at > timeout_s
            code = -signal.SIGALRM if silent else code
            outcomes = world.all_gather_object(_Outcome(process, code))
            if all(outcome.code == 0 for outcome in outcomes):
                return outcomes
            if any(outcome.code for outcome in outcomes):
                code = process.wait(_GRACE_S) if code is None else code
                if process.oom_killed():
                    _record_kill(process.pid)
                return world.all_gather_object(_Outcome(process, code))
            time.sleep(_POLL_S)
    finally:
        process.kill()


def _record_kill(pid: int) -> None:
    """Record a probe that the OOM killer ended for the agent of this node, which counts such kills."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is not None:
        with contextlib.suppress(OSError):  # the other ranks wait in a collective
            record_killed_probe(Path(folder), pid)


def _raise_unless_out_of_memory(outcomes: list[_Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        if outcome.code == EXIT_BAD_INPUT and outcome.refused:
            raise ConfigError(outcome.refused)
        if outcome.code == -signal.SIGALRM:
            raise RuntimeError(
                f"rank {rank}: the probe of {outcome.trying} samples gave no answer within "
                "job.setup_timeout_s; set train.local_batch_size"
            )
    if any(outcome.out_of_memory for outcome in outcomes):
        return
    codes = {rank: outcome.code for rank, outcome in enumerate(outcomes) if outcome.code}
    rank = min(codes, key=lambda rank: codes[rank] > 0)  # after a signal, the peers fail, too
    how = f"ended with code {codes[rank]}; its output is above"
    if codes[rank] == -signal.SIGKILL:
        how = "was ended by SIGKILL, and the kernel counts no kill of its OOM killer"
    raise RuntimeError(f"rank {rank}: the probe of {outcomes[rank].trying} samples {how}")
