"""TensorBoard sink: event files in one folder of `tensorboard/` per attempt.

The file stays open, and events are appended every `WRITE_EVERY_S` seconds in one call. PyTorch's
`SummaryWriter` opens the file anew for each scalar, which costs a shared file system hundreds of calls a
minute.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping

from disttrain.records.run_directory import Attempt

WRITE_EVERY_S = 10.0
_FORMAT = "brain.Event:2"


def build(attempt: Attempt) -> TensorBoard:
    return TensorBoard(attempt)


class TensorBoard:
    def __init__(self, attempt: Attempt) -> None:
        # slow to import, and only rank 0 needs it
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        attempt.tensorboard.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(attempt.tensorboard / name, "ab", buffering=0)  # noqa: SIM115 -- closed in close()
        self._waiting = io.BytesIO()
        self._records = RecordWriter(self._waiting)
        self._records.write(self._event(wall_time=time.time(), file_version=_FORMAT).SerializeToString())
        self._write()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        named = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=named))
        self._records.write(event.SerializeToString())
        if time.monotonic() - self._written >= WRITE_EVERY_S:
            self._write()

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        self._written = time.monotonic()
        events = self._waiting.getbuffer()
        while events:
            events = events[os.write(self._file.fileno(), events) :]
        del events  # a buffer with a view of it cannot be cut
        self._waiting.seek(0)
        self._waiting.truncate()
