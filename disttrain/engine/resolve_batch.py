"""Resolution of `train.local_batch_size: auto`: the size of the checkpoint that the run resumes from, or the
result of a search."""

from __future__ import annotations

from pathlib import Path

from disttrain.checkpoint.folder import DamagedCheckpoint, checkpoint_folder, read_manifest
from disttrain.config.config_tree import Config
from disttrain.config.run_key import config_key
from disttrain.engine.batch_fit import divisors
from disttrain.engine.batch_search import search_batch_size
from disttrain.records.batch_fit import BatchFit
from disttrain.records.checkpoint import Checkpoint, committed_paths
from disttrain.runtime import log
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput


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
    found = world.on_all_ranks(lambda: _manifest(config, output) if world.rank == 0 else None)[0]
    if found is not None:
        config = _with_sizes(config, "auto", found.global_batch_size)
        if (kept := _kept_size(found, world.size)) is not None:
            log.info("batch size kept", local=kept, checkpoint_step=found.step)
            return _with_sizes(config, kept, found.global_batch_size), found.batch_fit
    parallel = config.parallel.model_copy(update={"strategy": strategy})
    fit = search_batch_size(config.model_copy(update={"parallel": parallel}), world)
    return _with_sizes(config, fit.local_batch_size, config.train.global_batch_size), fit


def _with_sizes(config: Config, local: int | str, global_: int | None) -> Config:
    sizes = {"local_batch_size": local, "global_batch_size": global_}
    return config.model_copy(update={"train": config.train.model_copy(update=sizes)})


def _manifest(config: Config, output: RunOutput) -> Checkpoint | None:
    """Manifest of the newest readable checkpoint that the run would continue from, if there is one."""
    paths = committed_paths(checkpoint_folder(config.checkpoint, output.run))
    for path in paths:
        try:
            found = read_manifest(path)
        except DamagedCheckpoint:
            continue
        return found if found.config_key == config_key(config) else None
    if config.checkpoint.start_from is None or config.checkpoint.start_with == "model":
        return None
    try:
        return read_manifest(Path(config.checkpoint.start_from).resolve())
    except DamagedCheckpoint:
        return None  # reported where the checkpoint is loaded


def _kept_size(found: Checkpoint, ranks: int) -> int | None:
    """The local batch size of a checkpoint on `ranks` ranks; None if it does not record a search."""
    if found.batch_fit is None or found.global_batch_size % ranks:
        return None
    size = found.batch_fit.local_batch_size
    return max(each for each in divisors(found.global_batch_size // ranks) if each <= size)
