"""Resolution of `train.local_batch_size: auto` on the ranks: from a checkpoint, or by probe processes.

Each rank waits for a probe process of its own, `disttrain.engine.batch_probe`, which reads `request.json` of
its folder and writes the fields of `ProbeState` to `answer.json`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disttrain.checkpoint.folder import DamagedCheckpoint, checkpoint_folder, read_manifest
from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from disttrain.records.checkpoint import BatchFit, Checkpoint, committed_paths
from disttrain.records.heartbeat import FOLDER_VARIABLE, record_killed_probe
from disttrain.records.json_files import read_json_or_none, write_json
from disttrain.records.process_limits import count_oom_kills
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput

_POLL_S = 0.2
_GRACE_S = 5.0
"""Time for the other processes to end after one has failed: the failure of the first may be that its peer is
gone."""
_SIGNALS = {
    -signal.SIGKILL: "was ended by SIGKILL, and the kernel counts no kill of its OOM killer",
    -signal.SIGALRM: "gave no answer within job.setup_timeout_s; set train.local_batch_size",
}
_numbers = itertools.count(1)
"""Numbers of the probe processes of this rank: each has a prefix of its own in the store."""


def resolve_batch_size(
    config: Config, strategy: str, output: RunOutput, world: World
) -> tuple[Config, BatchFit | None]:
    """The config with the local batch size as a number, and the search that gave it. All ranks together.

    A search trains with `strategy`, which `parallel.strategy: auto` was resolved to. A run that resumes keeps
    its global batch size, and its local one where the ranks divide that. Raises `ConfigError` if no batch
    size fits.
    """
    if config.train.local_batch_size != "auto":
        return config, None
    manifest = world.on_all_ranks(lambda: _manifest(config, output) if world.rank == 0 else None)[0]
    if manifest is not None:
        global_, fit = manifest.global_batch_size, manifest.batch_fit
        config = config.with_values("train", global_batch_size=global_)
        if fit is not None and global_ % (fit.local_batch_size * world.size) == 0:
            log.info("batch size kept", local=fit.local_batch_size, checkpoint_step=manifest.step)
            return config.with_values("train", local_batch_size=fit.local_batch_size), fit
    fit = search_batch_size(config.with_values("parallel", strategy=strategy), world)
    return config.with_values("train", local_batch_size=fit.local_batch_size), fit


def _manifest(config: Config, output: RunOutput) -> Checkpoint | None:
    """Manifest of the newest readable checkpoint that the run would continue from, if there is one."""
    paths, start_from = committed_paths(checkpoint_folder(config.checkpoint, output.run)), []
    if config.checkpoint.start_from is not None and config.checkpoint.start_with != "model":
        start_from = [Path(config.checkpoint.start_from).resolve()]
    for path in (*paths, *start_from):
        with contextlib.suppress(DamagedCheckpoint):  # reported where the checkpoint is loaded
            return read_manifest(path)
    return None


def search_batch_size(config: Config, world: World) -> BatchFit:
    """The fastest local batch size that fits on every rank. All ranks together.

    Raises `ConfigError` on all ranks if the smallest one does not fit or the config cannot be run, and
    `RuntimeError` if a probe process fails otherwise, also by a SIGKILL that the OOM killer has not sent.
    """
    failed: list[int] = []
    while True:
        ends = _run_probes(config, failed, world)
        if all(end.fit for end in ends):
            fit = BatchFit.model_validate(ends[0].fit)
            log.info(
                "batch size found", local=fit.local_batch_size, accumulation=fit.accumulation,
                peak_mib=fit.verified_peak_bytes >> 20, limit_mib=fit.limit_bytes >> 20, seconds=fit.seconds,
            )  # fmt: skip
            return fit
        for end in ends:
            if end.refused:
                raise ConfigError(end.refused)
        if not any(end.out_of_memory for end in ends):
            codes = {rank: end.code for rank, end in enumerate(ends) if end.code}
            rank = min(codes, key=codes.__getitem__)  # after a signal, the peers fail, too
            how = _SIGNALS.get(codes[rank], f"ended with code {codes[rank]}; its output is above")
            raise RuntimeError(f"rank {rank}: the probe of {ends[rank].trying} samples {how}")
        failed.append(max(end.trying for end in ends))
        if failed[-1] <= 1:
            raise ConfigError(
                "train.local_batch_size=auto: a probe of the smallest size runs out of memory; use "
                "memory.activation_checkpointing=full, a smaller model, or devices with more memory"
            )
        log.info("batch size does not fit", local=failed[-1])


@dataclass(frozen=True)
class ProbeState:
    """State of one rank's probe process, as the other ranks receive it."""

    code: int | None
    """Exit code; None while it runs, and SIGALRM if it was silent for too long."""
    trying: int = 0
    """Size that is tried."""
    out_of_memory: bool = False
    """Whether its allocator had too little memory. Or SIGKILL ended it, and the kernel has counted a kill of
    its OOM killer since its start."""
    fit: dict[str, Any] | None = None
    refused: str | None = None
    """Reason why the config cannot be run."""


def _run_probes(config: Config, failed: list[int], world: World) -> list[ProbeState]:
    """The states by rank, once all processes have succeeded or one has failed. All ranks together."""
    kills_before = count_oom_kills() or 0
    with tempfile.TemporaryDirectory(prefix="disttrain-probe-") as name:
        request = {
            "config": config.as_dict(), "failed": failed, "store_prefix": f"batch-probe-{next(_numbers)}",
        }  # fmt: skip
        write_json(Path(name, "request.json"), request, durable=False)
        process = subprocess.Popen(
            [sys.executable, "-m", "disttrain.engine.batch_probe", name],
            env=os.environ | {"NCCL_DEBUG_FILE": f"{name}/nccl.log"}, stdout=2,  # never the rank's own
        )  # fmt: skip

        def state() -> ProbeState:
            code = process.poll()
            killed = code == -signal.SIGKILL and (count_oom_kills() or 0) > kills_before
            answer = read_json_or_none(Path(name, "answer.json")) or {}
            return ProbeState(code, **{"out_of_memory": killed, **answer})

        def is_over(end: ProbeState) -> bool:
            return end.code is not None and end.fit is None

        before, since = None, 0.0
        try:
            while True:
                heartbeat.progress()
                if (now := state()) != before:
                    before, since = now, time.monotonic()
                elif time.monotonic() - since > config.job.setup_timeout_s:
                    process.send_signal(signal.SIGALRM)
                states = world.all_gather_object(now)
                if all(end.fit for end in states):
                    return states
                if any(map(is_over, states)):
                    break
                time.sleep(_POLL_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            end = state()
            if end.out_of_memory and end.code and (folder := os.environ.get(FOLDER_VARIABLE)):
                with contextlib.suppress(OSError):  # the other ranks wait in a collective
                    record_killed_probe(Path(folder), process.pid)  # the agent counts such kills
            return world.all_gather_object(end)
        finally:
            process.kill()
            process.wait()
