"""The config tree of one run: its sections, the same for the trainer, a sweep and a job.

Imports without torch, because the login node checks a config before a job runs. Options of a model or a
data source belong to the file that builds it. `disttrain.config.options` has them, so a
new option needs no change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from disttrain.config.sections.base import Section, section_of
from disttrain.config.sections.checkpoint import CheckpointConfig
from disttrain.config.sections.compute import CompileConfig, MemoryConfig, PrecisionConfig
from disttrain.config.sections.job import JobConfig, ResourcesConfig, Words
from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.config.sections.optim import OptimConfig
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.config.sections.telemetry import ProfileConfig, TelemetryConfig
from disttrain.config.sections.train import TrainConfig

OF_A_COMMAND = ("command", "resources", "job")
"""Keys and sections that a run with a `command` has; the others configure this project's trainer."""


class Config(Section):
    """Full configuration of one run."""

    command: Words = ()
    """A script of your own and its arguments, in place of this project's trainer: `train.py --lr 3e-4`, `-m
    package.train`, or a list."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
    precision: PrecisionConfig = PrecisionConfig()
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    memory: MemoryConfig = MemoryConfig()
    compile: CompileConfig = CompileConfig()
    resources: ResourcesConfig = ResourcesConfig()
    job: JobConfig = JobConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    profile: ProfileConfig = ProfileConfig()

    @property
    def gpus_per_rank(self) -> int:
        """1, except for strategy dp: one process computes on all GPUs of its node."""
        return self.resources.gpus_per_node if self.parallel.strategy == "dp" else 1

    @property
    def world_size(self) -> int:
        return self.resources.nodes * self.resources.gpus_per_node // self.gpus_per_rank

    @property
    def stages(self) -> int:
        """Pipeline stages; 1 for every other strategy. The stages read the same samples."""
        return self.parallel.pipeline.stages if self.parallel.strategy == "pipeline" else 1

    @property
    def emulated(self) -> bool:
        """Whether compute or data loading is replaced by waits."""
        return self.model.kind == "emulated" or bool((self.data.model_extra or {}).get("delay_s"))

    def with_values(self, section: str, **values: Any) -> Config:
        """A copy with other values in one section; nothing is checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    def as_dict(self) -> dict[str, Any]:
        """The config as plain JSON types: the sections of a `command`, or those of the trainer."""
        plain = self.model_dump(mode="json")
        if self.command:
            return {name: plain[name] for name in OF_A_COMMAND}
        del plain["command"]
        return plain


def config_fields(section: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted key and field of every value in the config tree, nested sections included.

    Options of models and data sources are not among them.
    """
    for name, field in section.model_fields.items():
        nested = section_of(field)
        if nested is None:
            yield f"{prefix}{name}", field
        else:
            yield from config_fields(nested, f"{prefix}{name}.")
