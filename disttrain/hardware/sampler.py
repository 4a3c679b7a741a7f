"""One thread per node that samples the GPUs and processes of the node's ranks beside the training loop.

The thread never delays a step: NVML calls release the interpreter's lock, and the thread shares one number
with the loop. A reading that fails loses its own value, a GPU that cannot be read its own sample. Any other
error ends the samples of the GPUs or those of the processes, never both, and never the training.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from disttrain.hardware.link_counters import LinkReader, LinkSample, expected_adapters
from disttrain.hardware.node_samples import LocalRank, NodeSamples
from disttrain.hardware.sample_readers import GpuSampleReader, ProcessSampleReader, SampleReader
from disttrain.hardware.sampled_fields import GPU_FIELDS, PROCESS_FIELDS
from disttrain.records.hardware import GpuSample, HostSample
from disttrain.records.run_directory import Attempt
from disttrain.runtime import log

T = TypeVar("T")
CLOSE_S = 5.0
"""Seconds that the end of a run waits for a call into the driver: a lost GPU may never answer."""


class HardwareSampler:
    """Samples every `every_s` seconds from `start` to `close`.

    `segment` gives the segment of measured steps that the loop is in
    (`disttrain.hardware.aggregation`). `backend` is that of the processes of several nodes, whose
    links are sampled, too; None: no link is. The files are written every `flush_every_s` seconds.
    """

    def __init__(
        self,
        attempt: Attempt,
        ranks: Sequence[LocalRank],
        every_s: float,
        segment: Callable[[], int | None],
        backend: str | None = None,
        flush_every_s: float = 0.0,
    ) -> None:
        self._attempt = attempt
        self._ranks = ranks
        self._node = ranks[0].node
        self._every_s = every_s
        self._segment = segment
        self._backend = backend
        self._flush_every_s = flush_every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._accumulated = NodeSamples(gpu_reason=None if any(r.gpu for r in ranks) else "no rank has a GPU")
        self._links: LinkReader | None = None
        self._links_lock = threading.Lock()  # held from a reading of the links until it is added
        self._lock = threading.Lock()  # held while accumulators grow, never during a call into the driver
        self._live: dict[str, float] = {}
        self._live_at = 0.0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take a last sample and end. Waits at most `CLOSE_S` seconds."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def sample_links(self) -> None:
        """Sample the links in the caller's thread, where measured steps begin or end, until an interval has
        counted. Without this, a run that is shorter than `every_s` has no interval. Raises nothing."""
        if self._links is not None and not any(link.seconds for link in self._accumulated.links):
            _attempted("links", self._take_links)

    def accumulated(self) -> NodeSamples:
        """A copy of the accumulated samples."""
        with self._lock:
            return copy.deepcopy(self._accumulated)

    def live(self) -> dict[str, float]:
        """Means of the newest samples over the node's GPUs and ranks, by their names in `Progress`; empty
        where the newest samples are old."""
        fresh = time.monotonic() - self._live_at < 5 * self._every_s + CLOSE_S
        return self._live if fresh else {}

    def _run(self) -> None:
        arguments = (self._attempt, self._node, self._ranks, self._accumulated, self._flush_every_s)
        opened: dict[str, SampleReader | None] = {
            "GPUs": _attempted("GPUs", lambda: GpuSampleReader(*arguments, self._every_s)),
            "processes": _attempted("processes", lambda: ProcessSampleReader(*arguments)),
        }
        if self._backend is not None:
            self._links = opened["links"] = _attempted("links", partial(self._open_links, self._backend))
        sources = {name: source for name, source in opened.items() if source}
        due = time.monotonic()
        last = False
        while sources and not last:
            last = self._closing.is_set()
            self._sample(sources)
            due = max(due + self._every_s, time.monotonic())  # a late sample is skipped
            if not last:
                self._closing.wait(due - time.monotonic())
        for name, source in sources.items():
            _attempted(name, source.close)

    def _open_links(self, backend: str) -> LinkReader:
        self._accumulated.expected_adapters = expected_adapters(backend, os.environ)
        return LinkReader(backend, self._accumulated.links)

    def _sample(self, sources: dict[str, SampleReader]) -> None:
        """Take a sample of each source; remove a source that fails."""
        segment = self._segment()
        samples: list[GpuSample | HostSample | LinkSample] = []
        for name, source in list(sources.items()):
            taken = _attempted(name, partial(self._take, source, segment))
            if taken is None:
                _attempted(name, sources.pop(name).close)
            else:
                samples += taken
        self._live = _live(samples)
        self._live_at = time.monotonic()

    def _take_links(self) -> list[GpuSample | HostSample | LinkSample]:
        """Take a sample of the links, in the segment at this time."""
        assert self._links is not None
        with self._links_lock:
            return self._add(self._links, self._segment())

    def _take(self, source: SampleReader, segment: int | None) -> list[GpuSample | HostSample | LinkSample]:
        return self._take_links() if source is self._links else self._add(source, segment)

    def _add(self, source: SampleReader, segment: int | None) -> list[GpuSample | HostSample | LinkSample]:
        found = source.read()
        with self._lock:
            for accumulator, sample in found:
                accumulator.add(sample, segment)
        return [sample for _, sample in found]


def _attempted(source: str, call: Callable[[], T]) -> T | None:
    """The result of `call`. An exception is logged and gives None; the caller then drops `source`."""
    try:
        return call()
    except Exception as error:
        log.error("sampling ended", of=source, kind=type(error).__name__, error=str(error))
        return None


def _live(samples: Sequence[GpuSample | HostSample | LinkSample]) -> dict[str, float]:
    """Means over the samples, by the names in `Progress`; a name without any value is left out."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        for name, live_name in _LIVE.get(type(sample), {}).items():
            if (value := getattr(sample, name)) is not None:
                found.setdefault(live_name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


_LIVE: Mapping[type, dict[str, str]] = {
    sample: {each.name: each.live for each in fields if each.live}
    for sample, fields in ((GpuSample, GPU_FIELDS), (HostSample, PROCESS_FIELDS))
}
"""Names in `Progress` by the name in the sample."""
