"""Names that other trainers use for config keys, and the names here."""

from __future__ import annotations

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
}
_WITHOUT_KEY = {
    "pin_memory": "batches are in pinned memory wherever the model is on a GPU",
    "persistent_workers": "workers live as long as the run",
    "gradient_accumulation_steps": "train.accumulation",
    "accumulate_grad_batches": "train.accumulation",
}
"""What stands here in place of a key."""


def hint(key: str) -> str:
    """`"; here: ..."` for a key whose last part is such a name, else empty."""
    name = key.rpartition(".")[2]
    instead = _NAMES.get(name) or _WITHOUT_KEY.get(name)
    return f"; here: {instead}" if instead else ""
