"""Size of the messages of a run, for the all-reduce of the pre-flight, before its model is built.

DDP sends buckets of gradients. FSDP and HSDP gather the parameters of one block and reduce its gradients. The
ranks choose among these with `parallel.strategy: auto` by the memory of their devices, which comes later.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from disttrain.config.auto_strategy import planned_strategy
from disttrain.config.config_tree import Config
from disttrain.data.source import Arrays, Source
from disttrain.engine.build_by_kind import build_model, build_source
from disttrain.errors import in_one_line
from disttrain.models.blocks import model_size
from disttrain.records.dataset import DatasetRecord

DEFAULT_BYTES = 25 * 2**20
"""Bucket size of DDP in PyTorch."""
_SHARDED = ("fsdp", "hsdp")
_HALF = ("bf16", "fp16", "auto")
"""Values of `precision.dtype` with which parameters travel at 16 bits; `auto` is bf16 on recent GPUs."""


class MessageSize(NamedTuple):
    """Bytes of a message, and the reason for this size."""

    bytes: int
    reason: str


class _UnknownSizeError(Exception):
    """The size of the messages cannot be known before the run; the text is the reason."""


def message_size(config: Config) -> MessageSize:
    """The size of the messages of a run; with the reason, that of PyTorch's buckets where it is unknown."""
    if config.command:
        return _default("the messages of a command are not known")
    strategy = planned_strategy(config)
    if strategy == "ddp":
        return _bucket(config)
    if strategy not in (*_SHARDED, "auto"):
        return _default(f"the size of the messages of {strategy} is not known")
    try:
        block = _block(config)
    except _UnknownSizeError as unknown:
        if strategy in _SHARDED:
            return _default(str(unknown))
        bucket = _bucket(config)
        return MessageSize(bucket.bytes, f"{bucket.reason}, as for ddp; auto may choose fsdp, and {unknown}")
    return _larger(_bucket(config), block) if strategy == "auto" else block


def _bucket(config: Config) -> MessageSize:
    bucket_mb = config.parallel.ddp.bucket_mb
    if bucket_mb is None:
        return MessageSize(DEFAULT_BYTES, "bucket size of PyTorch")
    return MessageSize(round(bucket_mb * 2**20), "parallel.ddp.bucket_mb")


def _larger(bucket: MessageSize, block: MessageSize) -> MessageSize:
    """The larger message of ddp and of fsdp, with both reasons."""
    larger = max(bucket, block, key=lambda each: each.bytes)
    return MessageSize(
        larger.bytes,
        f"the larger of ddp ({_with_size(bucket)}) and fsdp ({_with_size(block)}); auto chooses between them",
    )


def _with_size(message: MessageSize) -> str:
    return f"{message.bytes / 2**20:.1f} MiB: {message.reason}"


def _default(reason: str) -> MessageSize:
    return MessageSize(DEFAULT_BYTES, f"bucket size of PyTorch, because {reason}")


def _block(config: Config) -> MessageSize:
    """The size of the largest block. Raises `_UnknownSizeError`."""
    try:
        source = _source(config)
        with torch.device("meta"):
            size = None if source is None else model_size(build_model(config.model, source))
    except Exception as error:  # a model of the user may fail in any way on the meta device
        raise _UnknownSizeError(f"the size of a block is not known: {in_one_line(error)}") from error
    if size is None:
        kind = config.model.kind
        raise _UnknownSizeError(f"the size of a block of model.kind={kind} is known only with its data")
    is_half = config.precision.dtype in _HALF
    each = 2 if is_half else size.parameter_bytes
    count, name = (
        (size.largest_block, "the largest block")
        if size.largest_block
        else (size.parameters, "the model, which has no blocks")
    )
    width = "16" if is_half else f"{8 * each}"
    return MessageSize(count * each, f"{count:,} parameters of {name} at {width} bits")


def _source(config: Config) -> Source | None:
    """A source from which the model can be built at once; None where reading the data may take long.

    The blocks of a GPT do not depend on the vocabulary, so its source may be an empty one.
    """
    if config.data.kind == "synthetic":
        return build_source(config.data)
    if config.model.kind != "gpt":
        return None
    empty = torch.empty(0, 1, dtype=torch.long)
    record = DatasetRecord(name="none", version=None, sha256=None, train_samples=0, valid_samples=0)
    return Source(Arrays(empty, empty), None, "language", (1,), 1, record)
