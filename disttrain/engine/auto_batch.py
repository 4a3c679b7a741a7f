"""Resolution of `train.local_batch_size: auto` on the ranks: from a checkpoint, or by probe processes.

Each rank waits for a probe process of its own, `disttrain.engine.batch_probe`, which reads `request.json` of
its folder and writes `answer.json`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
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
from disttrain.config.run_key import config_key
from disttrain.engine.batch_fit import EXIT_OUT_OF_MEMORY, STORE_PREFIX, divisors
from disttrain.engine.host_limit import host_limit, resident_bytes
from disttrain.errors import EXIT_BAD_INPUT, ConfigError
from disttrain.records.checkpoint import BatchFit, Checkpoint, committed_paths
from disttrain.records.heartbeat import FOLDER_VARIABLE, record_killed_probe
from disttrain.records.process_limits import count_oom_kills
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.runtime.rank_heartbeat import heartbeat
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.network import environment_of_children

_POLL_S = 0.2
_GRACE_S = 5.0
"""Time for the other processes to end after one has failed: the failure of the first may be that its peer is
gone."""
_numbers = itertools.count(1)
"""Numbers of the probe processes of this rank: each has a prefix of its own in the store."""
_PACKAGE_PARENT = Path(__file__).parents[2]


def resolve_batch_size(
    config: Config, strategy: str, output: RunOutput, world: World
) -> tuple[Config, BatchFit | None]:
    """The config with the local batch size as a number, and the search that gave it. All ranks together.

    A search trains with `strategy`, which `parallel.strategy: auto` was resolved to.
    A run that resumes keeps its global batch size, and on as many ranks its local one. Raises `ConfigError`
    if no batch size fits.
    """
    if config.train.local_batch_size != "auto":
        return config, None
    manifest = world.on_all_ranks(lambda: _manifest(config, output) if world.rank == 0 else None)[0]
    if manifest is not None:
        config = config.with_values("train", global_batch_size=manifest.global_batch_size)
        if (size := kept_size(manifest, world.size)) is not None:
            log.info("batch size kept", local=size, checkpoint_step=manifest.step)
            return config.with_values("train", local_batch_size=size), manifest.batch_fit
    fit = search_batch_size(config.with_values("parallel", strategy=strategy), world)
    return config.with_values("train", local_batch_size=fit.local_batch_size), fit


def _manifest(config: Config, output: RunOutput) -> Checkpoint | None:
    """Manifest of the newest readable checkpoint that the run would continue from, if there is one."""
    for path in committed_paths(checkpoint_folder(config.checkpoint, output.run)):
        with contextlib.suppress(DamagedCheckpoint):
            manifest = read_manifest(path)
            return manifest if manifest.config_key == config_key(config) else None
    if config.checkpoint.start_from is not None and config.checkpoint.start_with != "model":
        with contextlib.suppress(DamagedCheckpoint):  # reported where the checkpoint is loaded
            return read_manifest(Path(config.checkpoint.start_from).resolve())
    return None


def kept_size(manifest: Checkpoint, ranks: int) -> int | None:
    """The local batch size of a checkpoint on `ranks` ranks; None if it does not record a search."""
    if manifest.batch_fit is None or manifest.global_batch_size % ranks:
        return None
    largest = manifest.batch_fit.local_batch_size
    return max(size for size in divisors(manifest.global_batch_size // ranks) if size <= largest)


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
    while True:
        ends = _run_probes(request, world, config.job.setup_timeout_s)
        if all(end.fit for end in ends):
            fit = BatchFit.model_validate(ends[0].fit).model_copy(update={"out_of_memory": failed})
            log.info(
                "batch size found", local=fit.local_batch_size, accumulation=fit.accumulation,
                peak_mib=fit.verified_peak_bytes >> 20, limit_mib=fit.limit_bytes >> 20, seconds=fit.seconds,
            )  # fmt: skip
            return fit
        _raise_unless_out_of_memory(ends)
        tried = max(end.trying for end in ends)
        if tried <= 1:
            raise ConfigError(
                "train.local_batch_size=auto: a probe of the smallest size runs out of memory; use "
                "memory.activation_checkpointing=full, a smaller model, or devices with more memory"
            )
        failed.append(tried)
        request["below"] = tried
        log.info("batch size does not fit", local=tried)


@dataclass(frozen=True)
class ProbeEnd:
    """State of one rank's probe process, as the other ranks receive it."""

    code: int | None
    """Exit code; None while it runs, and SIGALRM if it has been silent for too long."""
    killed_for_memory: bool = False
    """Whether SIGKILL ended it, and the kernel has counted a kill of its OOM killer since its start."""
    trying: int = 0
    fit: dict[str, Any] | None = None
    refused: str | None = None


def _run_probes(request: dict[str, Any], world: World, timeout_s: float) -> list[ProbeEnd]:
    """The ends by rank, once all processes have succeeded or one has failed. All ranks together."""
    kills_before = count_oom_kills()
    with tempfile.TemporaryDirectory(prefix="disttrain-probe-") as name:
        answer = Path(name) / "answer.json"
        answer.write_text("{}")
        (Path(name) / "request.json").write_text(json.dumps(request))
        path = os.pathsep.join(filter(None, [str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": path, STORE_PREFIX: f"batch-probe-{next(_numbers)}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "disttrain.engine.batch_probe", name],
            env=environment_of_children() | variables, stdout=2,
        )  # fmt: skip

        def state() -> ProbeEnd:
            code = process.poll()
            if code is None and time.time() - answer.stat().st_mtime > timeout_s:
                code = -signal.SIGALRM
            killed = code == -signal.SIGKILL and kills_before is not None
            killed = killed and (count_oom_kills() or 0) > (kills_before or 0)
            return ProbeEnd(code, killed, **json.loads(answer.read_text()))

        try:
            while True:
                heartbeat.progress()
                ends = world.all_gather_object(state())
                if all(end.code == 0 for end in ends):
                    return ends
                if any(end.code for end in ends):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE_S)
                    end = state()
                    if end.killed_for_memory and (folder := os.environ.get(FOLDER_VARIABLE)):
                        with contextlib.suppress(OSError):  # the other ranks wait in a collective
                            record_killed_probe(Path(folder), process.pid)  # the agent counts such kills
                    return world.all_gather_object(end)
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()


def _raise_unless_out_of_memory(ends: list[ProbeEnd]) -> None:
    for rank, end in enumerate(ends):
        if end.code == EXIT_BAD_INPUT and end.refused:
            raise ConfigError(end.refused)
        if end.code == -signal.SIGALRM:
            raise RuntimeError(
                f"rank {rank}: the probe of {end.trying} samples gave no answer within "
                "job.setup_timeout_s; set train.local_batch_size"
            )
    if any(end.code == EXIT_OUT_OF_MEMORY or end.killed_for_memory for end in ends):
        return
    codes = {rank: end.code for rank, end in enumerate(ends) if end.code}
    rank = min(codes, key=lambda rank: codes[rank] > 0)  # after a signal, the peers fail, too
    how = f"ended with code {codes[rank]}; its output is above"
    if codes[rank] == -signal.SIGKILL:
        how = "was ended by SIGKILL, and the kernel counts no kill of its OOM killer"
    raise RuntimeError(f"rank {rank}: the probe of {ends[rank].trying} samples {how}")
