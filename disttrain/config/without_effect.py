"""Options that no run of a sweep reads: given for another strategy, optimizer, schedule, model or device.

They are warnings, not refusals: the runs of a sweep over strategies share one section of options for each
strategy. Without torch: the login node prints them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.rules import NO_EFFECT, Rule, is_built_in
from disttrain.errors import either

_NO_BATCH_NORMS = "model.kind=gpt|mlp|emulated"
"""Built-in models without batch norms, and without kernels of convolutions."""
_OF_CONVOLUTIONS = {"channels_last", "group_norm"}
"""Transforms that leave a model without batch norms and convolutions as it is."""


def _unread(option: str, chooser: str, values: str) -> list[Rule]:
    """Rules for an option, or each option of a section, that a run reads with these values of `chooser`."""
    keys = [key for key, _ in config_fields() if key == option or key.startswith(f"{option}.")]
    why = f"it needs {chooser}={either(values.split('|'))}"
    # a schedule from outside may read any option
    also = is_built_in(chooser) if chooser == "optim.schedule" else lambda config: True
    return [Rule(f"{key} {chooser}!={values}", why, also) for key in keys]


def _has_one_micro_step(config: Config) -> bool:
    local, whole = config.train.local_batch_size, config.train.global_batch_size
    return local != "auto" and (local is None or whole is None or whole <= local * config.world_size)


WARNINGS = (
    *_unread("parallel.ddp", "parallel.strategy", "ddp|auto"),
    *_unread("parallel.fsdp", "parallel.strategy", "fsdp|hsdp|auto"),
    *_unread("parallel.hsdp", "parallel.strategy", "hsdp|auto"),
    *_unread("parallel.pipeline", "parallel.strategy", "pipeline"),
    Rule(
        "parallel.options parallel.strategy=any",
        "it needs parallel.strategy=package.module:name",
        is_built_in("parallel.strategy"),
    ),
    Rule(
        "parallel.gradient_communication.options parallel.gradient_communication.scheme=any",
        "it needs parallel.gradient_communication.scheme=package.module:name",
        is_built_in("parallel.gradient_communication.scheme"),
    ),
    Rule(  # ddp on one rank compresses, too
        "parallel.gradient_communication.scheme parallel.strategy!=ddp resources.nodes=1 "
        "resources.gpus_per_node=1",
        "it needs several ranks, or parallel.strategy=ddp",
    ),
    Rule(
        "parallel.gradient_communication.scheme=hierarchical resources.gpus_per_node=1 resources.nodes!=1",
        "it needs several ranks on a node",
    ),
    Rule(
        "parallel.fsdp.accumulation parallel.strategy=fsdp|hsdp train.local_batch_size=any "
        "train.global_batch_size=any",
        "it needs a train.global_batch_size of several micro-steps",
        _has_one_micro_step,
    ),
    Rule(
        f"parallel.ddp.sync_batch_norm parallel.strategy=ddp|auto {_NO_BATCH_NORMS}",
        "it needs a model with batch norms, such as model.kind=resnet",
    ),
    Rule(
        f"model.transforms {_NO_BATCH_NORMS}",
        "it needs a model with convolutions, such as model.kind=resnet",
        lambda c: _OF_CONVOLUTIONS.issuperset(c.model.transforms),
    ),
    *(
        Rule(f"{key} data.{name}=0 data.valid_path=null", f"it needs data.{name} above 0")
        for key in ("train.eval_every", "train.eval_samples")
        for name in ("valid_share", "valid_samples")
    ),
    *_unread("optim.betas", "optim.name", "adamw"),
    *_unread("optim.momentum", "optim.name", "sgd"),
    *_unread("optim.final_lr_ratio", "optim.schedule", "cosine|cosine_restarts|linear"),
    *_unread("optim.step_factor", "optim.schedule", "step"),
    Rule(
        "checkpoint.start_with checkpoint.start_from=null",
        "it needs a checkpoint.start_from",
    ),
    Rule(
        "checkpoint.best checkpoint.every_steps=null checkpoint.every_s=null|0",
        "it needs checkpoint.every_steps or checkpoint.every_s",
    ),
    Rule("resources.share_gpus resources.runs_per_node=1", "it needs resources.runs_per_node above 1"),
    Rule("resources.share_gpus resources.device=cpu|shared", "it needs resources.device=cuda or auto"),
    Rule("data.prefetch data.workers=0", "it needs data.workers of at least 1"),
    Rule("profile.ranks profile.steps=null", "it needs profile.steps"),
    Rule(  # the mode turns CUDA graphs on, and nothing else
        "compile.mode=reduce-overhead resources.device=cpu",
        "it needs resources.device=cuda, auto or shared",
    ),
)


def options_without_effect(configs: Iterable[Config]) -> list[str]:
    """One line for each option that differs from its default, and that no run which has it reads."""
    distinct = {id(config): config for config in configs if not config.command}  # repeats share theirs
    runs = [(config, config.as_dict()) for config in distinct.values()]
    lines = []
    for rule in WARNINGS:
        given = [(config, plain) for config, plain in runs if rule.conditions[0].holds(plain)]
        if given and all(rule.applies(config, plain) for config, plain in given):
            lines.append(replace(rule, verb=NO_EFFECT).message([plain for _, plain in given]))
    return lines
