"""The agent of a node samples the GPUs and processes of a `command`, in the files of a rank's samples.

They begin once the ranks have started, and end where a rank samples by itself (`LoopTelemetry`). A failure
ends the samples alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from disttrain.errors import in_one_line
from disttrain.hardware.fields import FIELDS
from disttrain.hardware.node_sampler import GpuId, HardwareSampler, LocalRank, Node
from disttrain.hardware.statistics import Tally, gpu_summary, process_summary
from disttrain.records.hardware import NodeHardware
from disttrain.records.heartbeat import samples_itself
from disttrain.records.run_directory import Attempt
from jobs.core.rank_positions import RankPosition
from jobs.fabric.description import Gpu
from jobs.node import peers
from jobs.node.allocation import log_line
from jobs.node.rank_stacks import save_stacks, with_stacks
from jobs.node.silent_ranks import RankProcess, SilentRanks, rank_processes

if TYPE_CHECKING:
    from jobs.node.torchrun import Torchrun

_EVERY_S = 1.0
_FLUSH_S = 10.0
_LONGEST_WRITE_S = 60.0
"""The record of a node is written after every twentieth of the time so far, at least as often as this."""


class CommandSampler:
    """Call `sample` once a second, and `close` at the end. They raise nothing.

    Parameters
    ----------
    gpus : the GPUs of the run on this node; with several ranks, those of rank r of n are r, r + n, ...
    """

    def __init__(
        self,
        attempt: Attempt,
        node: int,
        memory: Path,
        gpus: Callable[[], Sequence[Gpu]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attempt = attempt
        self._node = node
        self._memory = memory
        self._gpus = gpus
        self._now = now
        self._began = self._next = now()
        self._ranks: Sequence[RankProcess] = ()
        self._sampled: set[RankProcess] = set()
        self._uuids: dict[int, list[str]] = {}
        self._sampler: HardwareSampler | None = None
        self._ended = False

    def sample(self, ranks: Sequence[RankProcess]) -> None:
        """Begin, or begin anew, with ranks that two calls in a row find; else write the record of the node if
        it is time to."""
        if self._ended:
            return
        with self._guarded():
            if samples_itself(self._memory):
                self._stop()
                self._attempt.hardware(self._node).unlink(missing_ok=True)
            elif ranks == self._ranks and not self._sampled.issuperset(ranks):
                self._sampled = set(ranks)
                if self._sampler is not None:
                    self._sampler.close()
                self._sampler = self._start()
            elif self._sampler is not None and self._now() >= self._next:
                self._write()
            self._ranks = ranks

    def close(self) -> None:
        """Take a last sample, and write the record of the node."""
        if self._sampler is not None and not self._ended:
            with self._guarded():
                self._stop()
                self._write()

    def kernels(self) -> Mapping[int, float]:
        """For each rank with a GPU a number that grows while a kernel runs; empty without samples."""
        samples = self._sampler.accumulated().gpus if self._sampler else []
        totals = {gpu.name: gpu.figures.get("utilization", Tally()).total for gpu in samples}
        return {
            rank: sum(totals.get(uuid, 0.0) for uuid in uuids) for rank, uuids in self._uuids.items() if uuids
        }

    def _start(self) -> HardwareSampler:
        gpus, count, ranks = self._gpus(), len(self._ranks), []
        for number, each in enumerate(self._ranks):
            own = gpus[number % len(gpus) :: count] if gpus else ()
            self._uuids[each.rank] = [str(gpu.uuid) for gpu in own]
            ids = tuple(GpuId(str(gpu.uuid), gpu.pci.address) for gpu in own)
            ranks.append(LocalRank(each.rank, self._node, each.pid, ids, time.monotonic()))
        sampler = HardwareSampler(Node(self._attempt, ranks, _EVERY_S, _FLUSH_S), lambda: 0)
        sampler.start()
        return sampler

    def _stop(self) -> None:
        self._ended = True
        if self._sampler is not None:
            self._sampler.close()

    def _write(self) -> None:
        assert self._sampler is not None
        now = self._now()
        self._next = now + min(_LONGEST_WRITE_S, (now - self._began) / 20)
        samples = self._sampler.accumulated()
        record = NodeHardware(
            gpu=gpu_summary(FIELDS, samples.gpus)[0] if samples.gpus else None,
            processes=process_summary(FIELDS, samples.processes)[0] if samples.processes else None,
            live=self._sampler.live(),
        )
        with contextlib.suppress(OSError):  # a full disk
            peers.publish(self._attempt, self._attempt.hardware(self._node), record.model_dump(mode="json"))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._ended = True
            log_line(f"the hardware is not sampled: {in_one_line(error)}")


class CommandWatch:
    """The ranks of a `command` on this node: samples of their hardware, and the search for silent ones."""

    def __init__(self, torchrun: Torchrun) -> None:
        attempt, limit_s = torchrun.attempt, torchrun.idle_limit_s
        self._torchrun = torchrun
        self._sampler = CommandSampler(attempt, torchrun.node.rank, torchrun.memory, torchrun.gpus)
        self._silence = limit_s and SilentRanks(torchrun.node.run, attempt, limit_s, self._sampler.kernels)
        self._ranks: Sequence[RankProcess] = ()

    def sample(self, started: Sequence[int]) -> None:
        """Call once a second, with the processes of the command."""
        self._ranks = rank_processes(started)
        self._sampler.sample(self._ranks)

    def positions(self) -> list[RankPosition]:
        """The positions of the ranks; none without a limit of their silence."""
        return self._silence.positions(self._ranks) if self._silence else []

    def save_stacks(self) -> list[RankPosition]:
        """Save the stacks of the ranks, which may end them; the positions with the lines of the stacks."""
        positions = self.positions()  # before they print
        search_path = self._torchrun.env.get("PATH")
        stacks = save_stacks(self._torchrun.attempt, self._ranks, self._torchrun.memory, search_path)
        return with_stacks(positions, stacks)

    def close(self) -> None:
        """Take a last sample."""
        self._sampler.close()
