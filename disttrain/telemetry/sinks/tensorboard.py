"""TensorBoard event files, in a folder of `tensorboard/` for each attempt."""

from __future__ import annotations

from collections.abc import Mapping

from disttrain.records.run_directory import Attempt


class Sink:
    def __init__(self, attempt: Attempt) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and needed by rank 0 alone

        self._writer = SummaryWriter(str(attempt.tensorboard))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
