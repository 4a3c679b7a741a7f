"""Options that no run of a sweep reads are warnings; what a run reads is recorded while it trains."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch._inductor

from disttrain.config.config_tree import Config
from disttrain.config.parsing import load
from disttrain.config.sections.base import Section, section_of
from disttrain.config.without_effect import WARNINGS, options_without_effect
from sweeps.expand import expand
from tests.support.stopping import alone, config, train_until

PRESETS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.yaml"))
CHANNELS_LAST = "channels_last"


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"strategy": "ddp", "gradient_communication": {"scheme": "topk"}}},
        {
            "parallel": {"strategy": "fsdp", "fsdp": {"accumulation": "no_sync"}},
            "train": {"local_batch_size": "auto", "global_batch_size": 8},
        },
        {
            "parallel": {"strategy": "hsdp", "fsdp": {"accumulation": "no_sync"}},
            "train": {"local_batch_size": 2, "global_batch_size": 8},
            "resources": {"nodes": 2},
        },
        {"model": {"kind": "gpt", "transforms": [CHANNELS_LAST, "own:transform"]}},
        {"train": {"eval_every": 5}, "data": {"kind": "tokens", "valid_share": 0, "valid_path": "valid"}},
        {"parallel": {"strategy": "ddp", "ddp": {"sync_batch_norm": True}}, "model": {"kind": "own:model"}},
        {"memory": {"activation_checkpointing": "every-n", "every_blocks": 9}, "model": {"layers": 2}},
    ],
)
def test_an_option_that_the_run_reads_is_no_warning(sections: dict[str, Any]) -> None:
    """Of more blocks than there are, the first is recomputed."""
    assert options_without_effect([Config.model_validate(sections)]) == []


def of_strategy(name: str, bucket_mb: float | None) -> Config:
    return Config.model_validate({"parallel": {"strategy": name, "ddp": {"bucket_mb": bucket_mb}}})


def test_an_option_that_one_run_of_the_sweep_reads_is_no_warning() -> None:
    runs = [of_strategy(name, 50) for name in ("fsdp", "hsdp", "ddp")]
    assert options_without_effect(runs) == []
    (line,) = options_without_effect(runs[:2])
    assert line.startswith("parallel.ddp.bucket_mb=50 has no effect with parallel.strategy=fsdp or hsdp: ")
    without_it = of_strategy("ddp", None)
    assert len(options_without_effect([*runs[:2], without_it])) == 1, "the run that reads it has the default"


def test_a_command_reads_no_option_of_the_trainer() -> None:
    assert options_without_effect([Config.model_validate({"command": "train.py"})]) == []


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_the_presets_have_no_option_without_effect(preset: Path) -> None:
    plan = expand(load(preset), [], name=preset.stem)
    assert options_without_effect(run.config for run in plan.runs) == []


# --- the table against what runs read ---


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Class of the section and name of each field that the trainer reads from now on; reads of the config
    itself, such as those of its key, do not count."""
    found: set[tuple[str, str]] = set()

    def recorded(self: Section, name: str) -> Any:
        reader = sys._getframe(1).f_globals["__name__"]
        of_config = reader.startswith("disttrain.config.") and not reader.endswith(".schedules")
        if reader.startswith("disttrain.") and not of_config:
            found.add((type(self).__name__, name))
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Section, "__getattribute__", recorded)
    return found


def names(keys: Iterator[str] | list[str]) -> set[tuple[str, str]]:
    """Class and field name of dotted keys."""
    found = set()
    for key in keys:
        section: type[Section] = Config
        *path, leaf = key.split(".")
        for name in path:
            nested = section_of(section.model_fields[name])
            assert nested is not None
            section = nested
        found.add((section.__name__, leaf))
    return found


BESIDE = {
    ("CheckpointConfig", "best"),
    ("ProfileConfig", "ranks"),
    ("DDPConfig", "sync_batch_norm"),
    ("FSDPConfig", "accumulation"),
    ("ModelConfig", "transforms"),
}
"""Read in one expression with the key that decides, as in `best and regular`, or before a model or a step in
which they change nothing."""
CASES: list[dict[str, dict[str, Any]]] = [
    {"parallel": {"strategy": "single"}, "optim": {"schedule": "constant"}},
    {"parallel": {"strategy": "ddp"}, "optim": {"schedule": "step", "step_every": 2}},
    {"parallel": {"strategy": "fsdp"}, "optim": {"name": "sgd", "schedule": "linear"}},
    {"parallel": {"strategy": "hsdp"}, "checkpoint": {"every_steps": 1}, "data": {"workers": 1}},
]


@pytest.mark.usefixtures("leaves_the_group")
@pytest.mark.parametrize("sections", CASES, ids=lambda each: each["parallel"]["strategy"])
def test_a_run_reads_no_option_that_the_table_calls_unread_and_all_others(
    sections: dict[str, dict[str, Any]], read: set[tuple[str, str]], tmp_path: Path
) -> None:
    train = {"train": {"steps": 5, "local_batch_size": 4}}  # the warm-up lasts 3
    made = config(**{**sections, **train})
    whatever = [replace(rule, when=re.sub(r"^\S+", f"{rule.keys[0]}=any", rule.when)) for rule in WARNINGS]
    of_no_reader = [rule.keys[0] for rule in whatever if rule.applies(made, made.as_dict())]
    listed = [rule.keys[0] for rule in WARNINGS]
    read.clear()
    train_until(alone(), made, tmp_path, 0, None)
    assert sorted(read & names(of_no_reader) - BESIDE) == []
    unobserved = {("CompileConfig", "mode"), ("HSDPConfig", "shard_size")}  # scope=none; one rank
    assert names([key for key in listed if key not in of_no_reader]) - unobserved <= read


def test_the_mode_of_the_table_turns_cuda_graphs_on_and_nothing_else() -> None:
    assert torch._inductor.list_mode_options("reduce-overhead") == {"triton.cudagraphs": True}
