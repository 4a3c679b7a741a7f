"""Former constructor of a `Recorder`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from disttrain.config.config_tree import Config
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.facts import RunFacts
from disttrain.telemetry.recorder import Recorder


class RunTelemetry(Recorder):
    def __init__(
        self,
        output: RunOutput,
        world: World,
        config: Config,
        metrics_fields: dict[str, Any],
        metadata: RunFacts | None = None,
    ) -> None:
        super().__init__(output, world, config, replace(metadata or RunFacts({}), metrics=metrics_fields))

    @property
    def pace(self) -> Any:
        return SimpleNamespace(set=self.set_pace)
