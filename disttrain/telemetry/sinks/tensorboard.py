"""TensorBoard sink: event files in one folder of `tensorboard/` per attempt."""

from __future__ import annotations

from collections.abc import Mapping

from disttrain.records.run_directory import Attempt


class Sink:
    def __init__(self, attempt: Attempt) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only rank 0 needs it

        self._writer = SummaryWriter(str(attempt.tensorboard))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
