"""Connections of ranks, seen from outside. A mapped file of its name stands in for PyTorch's library."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.core.processes import children_of
from jobs.node import hang
from jobs.node.hang import UnconnectedRanks

LAUNCHER = ["sh", "-c", '"$@"; :', "sh", sys.executable, "-c"]
RANK = """\
import mmap, socket, subprocess, sys
if sys.argv[1] != "no-torch":
    library = open(sys.argv[2], "rb")
    mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
if sys.argv[1] == "connected":
    outside = socket.create_connection(("127.0.0.1", int(sys.argv[3])))
if sys.argv[1] == "within":
    server = socket.create_server(("127.0.0.1", 0))
    inside = socket.create_connection(server.getsockname())
    accepted = server.accept()
print("ready", flush=True)
sys.stdin.read()
"""


def verdict(kind: str, folder: Path, *, nodes: int = 2, samples: int = 2) -> int | None:
    """The verdict on one rank of this kind on this node, after samples 60 s apart."""
    library = folder / "libtorch_cpu.so"
    library.write_bytes(b"x")
    clock = itertools.count(step=60)
    watch = UnconnectedRanks(nodes, now=lambda: next(clock))
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = [kind, str(library), str(server.getsockname()[1])]
        with subprocess.Popen(
            [*LAUNCHER, RANK, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as launcher:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == b"ready\n"
            for _ in range(samples):
                watch.sample(children_of(launcher.pid))
            launcher.communicate()
            watch.sample(children_of(launcher.pid))  # its ranks have ended, and the verdict stays
    return watch.ranks


@pytest.mark.parametrize(
    ("kind", "nodes", "samples", "expected"),
    [
        ("alone", 2, 2, 1),
        ("within", 2, 2, 1),  # a data loader's server, say
        ("connected", 2, 2, None),
        ("no-torch", 2, 2, None),
        ("alone", 2, 1, None),  # too early
        ("alone", 1, 2, None),  # the only rank of its job
    ],
)
def test_a_verdict_needs_ranks_of_pytorch_without_any_connection(kind, nodes, samples, expected, tmp_path):
    assert verdict(kind, tmp_path, nodes=nodes, samples=samples) == expected


def test_a_connection_to_a_port_of_root_leads_to_no_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(hang, "_FIRST_UNPRIVILEGED_PORT", 1 << 16)
    assert verdict("connected", tmp_path) == 1


def test_processes_of_another_user_get_no_verdict(tmp_path, monkeypatch):
    def refuse(path: str) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(hang.os, "listdir", refuse)
    assert verdict("alone", tmp_path) is None
