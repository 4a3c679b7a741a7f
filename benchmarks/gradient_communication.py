"""Schemes of gradient communication on a slow link between two nodes of two ranks each.

    sudo .venv/bin/python -m benchmarks.gradient_communication --mbit 200 --save gradient-communication

Each node is a network namespace. A veth pair of `--mbit` connects the two; the ranks of a node communicate
without a limit. All schemes take turns in one process of each rank, with the same model. Figures of a scheme:
milliseconds of a step (median of the slowest ranks), megabytes that one node sent over the link in a step
(counter of its interface, headers included), megabytes by the formula, and their milliseconds on the link.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import result_record
from disttrain.config.config_tree import Config
from disttrain.config.sections.job import ResourcesConfig
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.parallel.base import Mesh
from disttrain.parallel.ddp import build
from disttrain.parallel.schemes.powersgd import is_compressed
from disttrain.parallel.schemes.topk import count_of
from disttrain.runtime.process_group import World, open_world

NODES, PER_NODE = 2, 2
INTERFACE = "eth0"
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {},
    "fp16": {},
    "bf16": {},
    "powersgd": {"rank": 4},
    "topk": {"ratio": 0.01},
    "randomk": {"ratio": 0.01},
    "hierarchical": {},
    "local_sgd": {"average_every": 4},
}


def net(width: int, layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def link_bytes(scheme: str, shapes: list[torch.Size]) -> float:
    """Bytes that one node sends over the link in a step, without headers, of gradients of 4 bytes in one
    bucket of a ring in order of nodes; SGD without momentum for local_sgd."""
    ranks, options = NODES * PER_NODE, SCHEMES[scheme]
    size = sum(shape.numel() for shape in shapes)
    dense = 2 * (ranks - 1) / ranks * 4 * size
    if scheme in ("fp16", "bf16"):
        return dense / 2
    if scheme == "powersgd":
        low = [sum(shape) * options["rank"] if is_compressed(shape, options["rank"]) else shape.numel()
               for shape in shapes]  # fmt: skip
        return dense * sum(low) / size
    if scheme == "topk":  # each rank's part crosses each hop of the ring but one
        return (ranks - 1) * 8 * count_of(options["ratio"], size)
    if scheme == "randomk":
        return dense * count_of(options["ratio"], size) / size
    if scheme == "hierarchical":
        return 2 * (NODES - 1) / NODES * 4 * size
    if scheme == "local_sgd":
        return dense / int(options["average_every"])
    return dense


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """For each scheme: medians over its turns, the bound of the link, and the speed-up over `none`."""
    plain = statistics.median(raw["seconds"]["none"])
    found = {}
    for scheme, seconds in raw["seconds"].items():
        step_s, expected = statistics.median(seconds), raw["formula_bytes"][scheme]
        found[scheme] = {
            "step_ms": 1e3 * step_s,
            "link_mb": statistics.median(raw["link_bytes"][scheme]) / 1e6,
            "formula_mb": expected / 1e6,
            "bound_ms": 8e3 * expected / (raw["mbit"] * 1e6),
            "speed_up": plain / step_s,
        }
    return {"schemes": found}


def sent_bytes() -> int:
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text(encoding="utf-8"))


@dataclass
class Turns:
    """One scheme on one rank."""

    scheme: str
    world: World
    width: int
    layers: int
    step: int = 0

    def __post_init__(self) -> None:
        section = {"scheme": self.scheme, **SCHEMES[self.scheme]}
        self.strategy = build(
            ParallelConfig.model_validate({"ddp": {"bucket_mb": 1000}, "gradient_communication": section})
        )
        torch.manual_seed(0)
        self.inputs = torch.randn(4, self.width)
        mesh = Mesh(self.world.rank, self.world.size)
        self.model = self.strategy.apply(net(self.width, self.layers), mesh, self.world)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.model(self.inputs).sum().backward()  # DDP arranges its buckets

    def run(self, steps: int) -> tuple[float, float]:
        """Seconds of a step on the slowest rank, and bytes that the node of rank 0 sent in it."""
        self.world.all_gather_object(None)
        sent, began = sent_bytes(), time.perf_counter()
        for _ in range(steps):
            self.step += 1
            self.strategy.on_step(self.step)
            self.optimizer.zero_grad()
            self.model(self.inputs).pow(2).mean().backward()
            self.optimizer.step()
            if self.strategy.averages_replicas(self.step, last=False):
                self.strategy.average_replicas(self.model, self.optimizer)
        seconds = time.perf_counter() - began
        [slowest] = self.world.all_reduce_max([seconds])
        return slowest / steps, (sent_bytes() - sent) / steps


def measure(world: World, arguments: argparse.Namespace) -> dict[str, Any]:
    """All schemes in turns; the order of each round is random and equal on all ranks."""
    turns = {name: Turns(name, world, arguments.width, arguments.layers) for name in SCHEMES}
    order, chance = list(SCHEMES), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in SCHEMES}
    sent: dict[str, list[float]] = {name: [] for name in SCHEMES}
    for turn in range(arguments.rounds + 1):
        chance.shuffle(order)
        for name in order:
            step_s, step_bytes = turns[name].run(arguments.steps)
            if turn:  # the first one is the warm-up
                seconds[name].append(step_s)
                sent[name].append(step_bytes)
    shapes = [parameter.shape for parameter in net(arguments.width, arguments.layers).parameters()]
    expected = {name: link_bytes(name, shapes) for name in SCHEMES}
    return {"mbit": arguments.mbit, "seconds": seconds, "link_bytes": sent, "formula_bytes": expected}


@contextmanager
def two_nodes(mbit: float) -> Iterator[list[str]]:
    """Two network namespaces with a link of `mbit` in each direction; their names. Needs root."""
    names = [f"disttrain-{os.getpid()}-{node}" for node in range(NODES)]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add {INTERFACE} netns {names[0]} type veth peer name {INTERFACE} netns {names[1]}")
    for node, name in enumerate(names):
        commands += [f"-n {name} address add {address(node)}/24 dev {INTERFACE}",
                     f"-n {name} link set lo up", f"-n {name} link set {INTERFACE} up"]  # fmt: skip
    try:
        for command in commands:
            subprocess.run(["ip", *command.split()], check=True)
        for name in names:
            shape = f"-n {name} qdisc add dev {INTERFACE} root tbf rate {mbit}mbit burst 128kb latency 100ms"
            subprocess.run(["tc", *shape.split()], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def address(node: int) -> str:
    return f"10.213.7.{node + 1}"


def run_ranks(arguments: argparse.Namespace, timeout_s: float = 3600.0) -> dict[str, Any]:
    """`measure` on two nodes of two ranks each. Raises `RuntimeError` with the output of a failed rank."""
    sizes = [
        f"--{name}={getattr(arguments, name)}" for name in ("mbit", "width", "layers", "rounds", "steps")
    ]
    with two_nodes(arguments.mbit) as names, tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "raw.json"
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        processes = []
        for rank in range(NODES * PER_NODE):
            environment = {
                **os.environ,
                "RANK": str(rank), "WORLD_SIZE": str(NODES * PER_NODE),
                "LOCAL_RANK": str(rank % PER_NODE), "LOCAL_WORLD_SIZE": str(PER_NODE),
                "MASTER_ADDR": address(0), "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": INTERFACE,
            }  # fmt: skip
            inside = ["ip", "netns", "exec", names[rank // PER_NODE], sys.executable]
            command = [*inside, "-m", "benchmarks.gradient_communication", *sizes, f"--result={result}"]
            processes.append(_start(command, environment))
        try:
            outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        failed = [out for process, out in zip(processes, outputs, strict=True) if process.returncode]
        if failed:
            raise RuntimeError(failed[0])
        raw: dict[str, Any] = json.loads(result.read_text())
        return raw


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment,
        cwd=result_record.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    made.add_argument("--mbit", type=float, default=200.0, help="rate of the link in Mbit/s")
    made.add_argument("--width", type=int, default=512, help="width of the layers")
    made.add_argument("--layers", type=int, default=8, help="number of layers")
    made.add_argument("--rounds", type=int, default=10, help="turns of each scheme")
    made.add_argument("--steps", type=int, default=4, help="steps of a turn")
    made.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    result_record.add_option(made)
    return made


def main() -> None:
    arguments = parser().parse_args()
    if arguments.result is not None:  # a rank
        shape = ResourcesConfig(nodes=NODES, gpus_per_node=PER_NODE, device="cpu")
        with open_world(Config(resources=shape)) as world:
            raw = measure(world, arguments)
            if world.rank == 0:
                arguments.result.write_text(json.dumps(raw))
        return
    raw = run_ranks(arguments)
    found = figures(raw)
    for scheme, row in found["schemes"].items():
        print(f"{scheme:13}" + "  ".join(f"{name} {value:9.2f}" for name, value in row.items()))
    result_record.save("gradient_communication", arguments.save, found, raw)


if __name__ == "__main__":
    main()
