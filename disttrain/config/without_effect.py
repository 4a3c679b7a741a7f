"""Options that no run of a sweep reads: given for another strategy, optimizer, schedule, model or device.

They are warnings, not refusals: the runs of a sweep over strategies share one section of options for each
strategy. Without torch: the login node prints them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from disttrain.config.config_tree import Config, config_fields
from disttrain.config.dotted_keys import flat_values
from disttrain.config.rules import ANY, NO_EFFECT, SET, Not, Rule
from disttrain.errors import either

_STRATEGY, _SCHEME = "parallel.strategy", "parallel.gradient_communication.scheme"
_NO_BATCH_NORMS = ("gpt", "mlp", "emulated")
"""Built-in models without batch norms, and without kernels of convolutions."""
_OF_CONVOLUTIONS = {"channels_last", "group_norm"}
"""Transforms that leave a model without batch norms and convolutions as it is."""


def _unread(option: str, chooser: str, *values: str) -> list[Rule]:
    """Rules for an option, or each option of a section, that a run reads with these values of `chooser`."""
    keys = [key for key, _ in config_fields() if key == option or key.startswith(f"{option}.")]
    why = f"it needs {chooser}={either(values)}"
    return [Rule({key: SET, chooser: Not(*values)}, why) for key in keys]


def _has_one_micro_step(config: Config) -> bool:
    local, whole = config.train.local_batch_size, config.train.global_batch_size
    return local != "auto" and (local is None or whole is None or whole <= local * config.world_size)


WARNINGS = (
    *_unread("parallel.ddp", _STRATEGY, "ddp", "auto"),
    *_unread("parallel.fsdp", _STRATEGY, "fsdp", "hsdp", "auto"),
    *_unread("parallel.hsdp", _STRATEGY, "hsdp", "auto"),
    *_unread("parallel.pipeline", _STRATEGY, "pipeline"),
    Rule(
        {"parallel.options": SET, _STRATEGY: ANY},
        f"it needs {_STRATEGY}=package.module:name",
        lambda c: ":" not in c.parallel.strategy,
    ),
    Rule(
        {"parallel.gradient_communication.options": SET, _SCHEME: ANY},
        f"it needs {_SCHEME}=package.module:name",
        lambda c: ":" not in c.parallel.gradient_communication.scheme,
    ),
    Rule(  # ddp on one rank compresses, too
        {_SCHEME: SET, _STRATEGY: Not("ddp"), "resources.nodes": 1, "resources.gpus_per_node": 1},
        "it needs several ranks, or parallel.strategy=ddp",
    ),
    Rule(
        {_SCHEME: "hierarchical", "resources.gpus_per_node": 1, "resources.nodes": Not(1)},
        "it needs several ranks on a node",
    ),
    Rule(
        {
            "parallel.fsdp.accumulation": SET,
            _STRATEGY: ("fsdp", "hsdp"),
            "train.local_batch_size": ANY,
            "train.global_batch_size": ANY,
        },
        "it needs a train.global_batch_size of several micro-steps",
        _has_one_micro_step,
    ),
    Rule(
        {"parallel.ddp.sync_batch_norm": SET, _STRATEGY: ("ddp", "auto"), "model.kind": _NO_BATCH_NORMS},
        "it needs a model with batch norms, such as model.kind=resnet",
    ),
    Rule(
        {"model.transforms": SET, "model.kind": _NO_BATCH_NORMS},
        "it needs a model with convolutions, such as model.kind=resnet",
        lambda c: _OF_CONVOLUTIONS.issuperset(c.model.transforms),
    ),
    *(
        Rule({key: SET, f"data.{name}": 0, "data.valid_path": None}, f"it needs data.{name} above 0")
        for key in ("train.eval_every", "train.eval_samples")
        for name in ("valid_share", "valid_samples")
    ),
    *_unread("optim.betas", "optim.name", "adamw"),
    *_unread("optim.momentum", "optim.name", "sgd"),
    *_unread("optim.final_lr_ratio", "optim.schedule", "cosine", "cosine_restarts", "linear"),
    *_unread("optim.step_factor", "optim.schedule", "step"),
    Rule(
        {"checkpoint.start_with": SET, "checkpoint.start_from": None},
        "it needs a checkpoint.start_from",
    ),
    Rule(
        {"checkpoint.best": SET, "checkpoint.every_steps": None, "checkpoint.every_s": (None, 0)},
        "it needs checkpoint.every_steps or checkpoint.every_s",
    ),
    Rule({"data.prefetch": SET, "data.workers": 0}, "it needs data.workers of at least 1"),
    Rule({"profile.ranks": SET, "profile.steps": None}, "it needs profile.steps"),
    Rule(  # the mode turns CUDA graphs on, and nothing else
        {"compile.mode": "reduce-overhead", "resources.device": "cpu"},
        "it needs resources.device=cuda, auto or shared",
    ),
)


def options_without_effect(configs: Iterable[Config]) -> list[str]:
    """One line for each option that differs from its default, and that no run which has it reads."""
    distinct = {id(config): config for config in configs if not config.command}  # repeats share theirs
    runs = [(config, flat_values(config.as_dict())) for config in distinct.values()]
    lines = []
    for rule in WARNINGS:
        given = [(config, flat) for config, flat in runs if rule.has_option(flat)]
        if given and all(rule.applies(config, flat) for config, flat in given):
            lines.append(replace(rule, verb=NO_EFFECT).message([flat for _, flat in given]))
    return lines
