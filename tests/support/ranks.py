"""Long-lived ranks: real processes in a real gloo group, started once and shared by many tests. They compute
on the CPU, or all on one GPU.

Starting ranks costs seconds, calling a function on them microseconds. A function to be called is
importable and takes the `World` first; what it returns comes back pickled, by rank.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from disttrain.config.keys_and_defaults import ResourcesConfig

ANSWER_WITHIN_S = 300.0
NO_ANSWER = (False, f"no answer within {ANSWER_WITHIN_S:g} s")
"""A rank that raises may leave its peers in a collective for ever."""


class RankFailed(AssertionError):
    """A function raised on some rank; the message holds each rank's traceback."""


class Ranks:
    """`size` ranks, standing for `nodes` nodes of equally many. `device` is as in `resources.device`."""

    def __init__(self, size: int, nodes: int, device: str = "cpu") -> None:
        self.size = size
        context = mp.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._pipes: list[Connection] = []
        self._stuck: list[int] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (rank, size, nodes, device, port, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """Call `function(world, *arguments, **options)` on every rank at once; the results by rank."""
        if self._stuck:
            raise RankFailed(f"ranks did not answer an earlier call: {self._stuck}")
        for pipe in self._pipes:
            pipe.send((function, arguments, options))
        deadline = time.monotonic() + ANSWER_WITHIN_S
        answers = [self._answer(pipe, deadline) for pipe in self._pipes]
        failures = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        self._stuck = [rank for rank, answer in enumerate(answers) if answer == NO_ANSWER]
        if failures:
            raise RankFailed("\n".join(failures))
        return [value for _, value in answers]

    @staticmethod
    def _answer(pipe: Connection, deadline: float) -> tuple[bool, Any]:
        return pipe.recv() if pipe.poll(max(0.0, deadline - time.monotonic())) else NO_ANSWER

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=0 if self._stuck else 20)
            process.kill()


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

    resources = ResourcesConfig(nodes=nodes, gpus_per_node=local_size, device=device)
    with open_world(resources) as world:
        while True:
            try:
                function, arguments, options = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((True, function(world, *arguments, **options)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
