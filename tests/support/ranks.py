"""Long-lived ranks: real processes in a real gloo group, started once and shared by many tests. They compute
on the CPU, or all on one GPU.

Starting ranks costs seconds, calling a function on them microseconds. A function to be called is importable
and takes the `World` first; its result comes back pickled, by rank.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from disttrain.config.config_tree import Config

ANSWER_WITHIN_S = 100.0
"""Time limit of a call. It is less than the time limit of a test, so that the error names the ranks."""
AFTER_FAILURE_S = 20.0
"""Time limit of the other ranks once a rank has failed: they may wait for it in a collective for ever."""


ENDED = "the process ended"


class RankFailed(RuntimeError):
    """A function raised or gave no result on some rank; the message holds each rank's traceback."""


class Ranks:
    """`size` ranks, standing for `nodes` nodes of equally many. `device` is as in `resources.device`.

    Ranks that gave no result in time are killed. The next call starts new ones.

    With `forked`, all ranks are forks of one process that has imported torch. They start quickly but have one
    hash seed: an order of sets that differs between ranks shows only without `forked`.
    """

    def __init__(self, size: int, nodes: int, device: str = "cpu", forked: bool = False) -> None:
        self.size = size
        self._nodes, self._device = nodes, device
        self._context = mp.get_context("forkserver" if forked else "spawn")
        if forked:
            self._context.set_forkserver_preload(["disttrain.engine.train"])
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._start()

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(self.size):
            ours, theirs = self._context.Pipe()
            arguments = (rank, self.size, self._nodes, self._device, port, theirs)
            process = self._context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        answer_within_s: float = ANSWER_WITHIN_S,
        **options: Any,
    ) -> list[Any]:
        """Call `function(world, *arguments, **options)` on every rank at once; the results by rank.

        Raises:
            RankFailed: the function raised on a rank, or a rank gave no result within `answer_within_s`, or
                within AFTER_FAILURE_S of another rank's failure.
        """
        if not self._pipes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments, options))
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + answer_within_s
        while len(answers) < self.size:
            waited_for = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waited_for), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                answers[waited_for[pipe]] = answer = _receive(pipe)
                if not answer[0]:
                    deadline = min(deadline, time.monotonic() + AFTER_FAILURE_S)
        failures = [f"rank {rank}:\n{text}" for rank, (ok, text) in sorted(answers.items()) if not ok]
        silent = sorted(set(range(self.size)) - answers.keys())
        if silent or (False, ENDED) in answers.values():
            self.close(join_s=0.0)
        if silent:
            failures.append(f"no result in time from ranks {silent}")
        if failures:
            raise RankFailed("\n".join(failures))
        return [answers[rank][1] for rank in range(self.size)]

    def close(self, join_s: float = 20.0) -> None:
        """End the ranks; kill those that are alive after `join_s` seconds."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=join_s)
            process.kill()
            process.join()
        self._pipes.clear()
        self._processes.clear()


def _receive(pipe: Connection) -> tuple[bool, Any]:
    try:
        return pipe.recv()
    except EOFError:
        return False, ENDED


def _serve(rank: int, size: int, nodes: int, device: str, port: int, pipe: Connection) -> None:
    local_size = size // nodes
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank % local_size),
        LOCAL_WORLD_SIZE=str(local_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    from disttrain.runtime.process_group import open_world

    resources = {"nodes": nodes, "gpus_per_node": local_size, "device": device}
    with open_world(Config.model_validate({"resources": resources})) as world:
        while True:
            try:
                function, arguments, options = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((True, function(world, *arguments, **options)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
