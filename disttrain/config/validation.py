"""Validation of plain data by a pydantic model, and the answers to mistakes in keys and values."""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from disttrain.config.dotted_keys import flat_values
from disttrain.config.sections.base import WITHOUT_VALUE
from disttrain.errors import as_text, nearest

M = TypeVar("M", bound=BaseModel)
_MESSAGES = {
    "int_type": "a whole number is needed",
    "float_type": "a number is needed",
    "tuple_type": "a list is needed, in brackets",
    "list_type": "a list is needed, in brackets",
    "dict_type": "a mapping of names to values is needed",
    "string_type": "a text is needed",
    "bool_type": "allowed: true or false",
    "bool_parsing": "allowed: true or false",
    "model_type": "a section with keys of its own is needed",
}
"""Messages by pydantic's type of an error."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMES = {
    "num_workers": "data.workers",
    "prefetch_factor": "data.prefetch",
    "batch_size": "train.local_batch_size (of one rank) or train.global_batch_size",
    "per_device_train_batch_size": "train.local_batch_size",
    "logging_steps": "train.log_every",
    "eval_steps": "train.eval_every",
    "learning_rate": "optim.lr",
    "lr": "optim.lr",
    "optimizer": "optim.name",
    "lr_scheduler": "optim.schedule",
    "scheduler": "optim.schedule",
    "max_grad_norm": "optim.grad_clip",
    "gradient_clip_val": "optim.grad_clip",
    "mixed_precision": "precision.dtype",
    "amp": "precision.dtype",
    "gradient_checkpointing": "memory.activation_checkpointing=full",
    "torch_compile": "compile.scope=blocks",
    "sharding_strategy": "parallel.strategy=fsdp or hsdp",
    "bucket_cap_mb": "parallel.ddp.bucket_mb",
    "frequency": "checkpoint.every_steps or checkpoint.every_s",
    "interval": "checkpoint.every_steps or checkpoint.every_s",
    "save_total_limit": "checkpoint.keep",
    "keep_latest_k": "checkpoint.keep",
    "resume": "checkpoint.start_from",
    "n_layer": "model.layers",
    "n_head": "model.heads",
    "n_embd": "model.width",
    "hidden_size": "model.width",
    "block_size": "data.seq_len",
    "n_nodes": "resources.nodes",
    "nproc_per_node": "resources.gpus_per_node",
    "gradient_accumulation_steps": "train.accumulation",
    "accumulate_grad_batches": "train.accumulation",
    "pin_memory": "batches are in pinned memory wherever the model is on a GPU",
    "persistent_workers": "workers live as long as the run",
}
"""Names that other trainers use, and those here, or what there is in their place."""


def hint(key: str) -> str:
    """`"; here: ..."` for a key whose last part is a name that other trainers use, else empty."""
    instead = _NAMES.get(key.rpartition(".")[2])
    return f"; here: {instead}" if instead else ""


def validated(model: type[M], data: Mapping[str, Any]) -> M:
    """`data` as a `model`, by pydantic's strict rules; but where a whole number is needed, a float without a
    fraction (`100.0`, `1.5e3`) is one. Raises `ValidationError`."""
    text = json.dumps(data, default=str)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        paths = [_path(each) for each in error.errors() if _is_whole(each)]
        if not paths:
            raise
    changed = json.loads(text)
    for *sections, last in paths:
        node = functools.reduce(operator.getitem, sections, changed)
        node[last] = int(node[last])
    return model.model_validate_json(json.dumps(changed), strict=True)


def _is_whole(error: ErrorDetails) -> bool:
    value = error["input"]
    return error["type"] == "int_type" and isinstance(value, float) and value.is_integer()


def describe(errors: Sequence[ErrorDetails]) -> list[tuple[str, str]]:
    """Dotted key of each value that is wrong, and a message that begins with key and value."""
    if errors and errors[0]["type"] == "json_invalid":  # a message without the value, which may be secret
        flat = flat_values(json.loads(errors[0]["input"]))
        texts = {key: json.dumps([key, value], ensure_ascii=False) for key, value in flat.items()}
        keys = [key for key, text in texts.items() if _SURROGATE.search(text)]
        found = [(key, f"{ascii(key)[1:-1]} is not valid text: a lone surrogate") for key in keys]
        return found or [("", f"the config cannot be read: {errors[0]['msg']}")]
    by_key: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for error in errors:
        path = _path(error)
        if error["type"] == "missing" and isinstance(path[-1], int):  # of a list of fixed length
            path = path[:-1]
        by_key.setdefault(path, []).append(error)
    return [(".".join(map(str, path)), _message(path, errors)) for path, errors in by_key.items()]


def _path(error: ErrorDetails) -> tuple[str | int, ...]:
    """The keys to a value, without pydantic's names for the members of a union."""
    unions = ("literal[", "constrained-", "function-", "bool")
    return tuple(part for part in error["loc"] if not (isinstance(part, str) and part.startswith(unions)))


def _message(path: Sequence[str | int], errors: Sequence[ErrorDetails]) -> str:
    first, key = errors[0], ".".join(map(str, path))
    if first["type"] == WITHOUT_VALUE:
        return f"{key} {first['msg']}"
    if first["type"] == "missing" and path != first["loc"]:
        problem = f"{len(first['input']) + len(errors)} values are needed"
    elif first["type"] == "too_long":
        problem = f"at most {first['ctx']['max_length']} values are allowed"
    else:
        words = [each["ctx"]["expected"] for each in errors[1:] if each["type"] == "literal_error"]
        problem = " or ".join([_problem(first), *words])
    value = first["input"]
    return f"{key}={value!r}: {problem}" if isinstance(value, str) else f"{key}={as_text(value)}: {problem}"


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "literal_error":
        expected = str(error["ctx"]["expected"])
        words = expected.replace("'", "").replace(" or ", ", ").split(", ")
        return f"allowed: {expected}{nearest(str(error['input']), words)}"
    message = error["msg"]
    return _MESSAGES.get(error["type"], message[:1].lower() + message[1:])
