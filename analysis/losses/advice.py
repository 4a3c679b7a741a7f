"""One line of advice on each bottleneck, with the config options to try."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.losses.compute_loss import CauseName

_GRADIENTS = (
    "Send fewer or smaller messages: parallel.ddp.bucket_mb; parallel.gradient_communication.scheme "
    "(fp16, bf16, powersgd, hierarchical); or a larger train.global_batch_size by accumulation."
)
_SHARDS = (
    "Gather less or earlier: parallel.fsdp.reshard_after_forward=false, parallel.fsdp.forward_prefetch, "
    "parallel.fsdp.reduce_dtype=bf16; or parallel.strategy=hsdp, which gathers within a node."
)
_BUBBLE = (
    "Make the bubble of the pipeline smaller: more micro-batches by a larger train.global_batch_size, or "
    "fewer parallel.pipeline.stages."
)
_TRANSFER = {"ddp": _GRADIENTS, "fsdp": _SHARDS, "hsdp": _SHARDS, "pipeline": _BUBBLE}
_PHASES = {
    "input_s": "Load data in processes of its own: data.workers and data.prefetch.",
    "comm_wait_s": "Look for the rank or node that arrives last, and leave it out of the next job. "
    "Waiting for changing ranks falls with a longer step: train.local_batch_size.",
    "optimizer_s": "Use the fused kernel, optim.fused=true, or divide the update among ranks, "
    "parallel.strategy=fsdp.",
    "checkpoint_s": "Save less often, checkpoint.every_steps or checkpoint.every_s, or in the background, "
    "checkpoint.asynchronous=true.",
    "other_s": "Reduce work on the host: compile.scope=blocks, train.gc_every, train.log_every; a trace by "
    "profile.steps shows where it is.",
}
_CAUSES: dict[CauseName, str] = {
    "shared_processors": "Give each rank processors of its own: more resources.nodes with fewer "
    "resources.gpus_per_node, or resources.threads_per_rank=1.",
    "smaller_batch": "Keep the kernels large: a larger train.local_batch_size, or weak scaling.",
    "slow_ranks": "Leave the slow rank's node out of the next job.",
    "lower_clocks": "Look for the reason of the lower clocks: power limit, cooling, or another job.",
    "unknown": "Record a trace at both sizes, profile.steps, and compare the kernels.",
}


def advice(phase: str, strategy: str | None, causes: Sequence[CauseName] = ()) -> str:
    """Advice on lost time in a phase.

    Args:
        phase: of `records.steps.PHASES`.
        strategy: `Metrics.strategy`.
        causes: of lost compute time, the largest first (`analysis.losses.compute_loss`).
    """
    if phase == "compute_s":
        return _CAUSES[causes[0] if causes else "unknown"]
    if phase == "comm_transfer_s":
        return _TRANSFER.get(strategy or "", _GRADIENTS)
    if phase == "comm_wait_s" and strategy == "pipeline":
        return _BUBBLE
    return _PHASES[phase]
