"""CPU time of the telemetry on the network: a sample of the links, and the parser of NCCL's log.

    python -m benchmarks.fabric_telemetry [--save LABEL]

A sample of the links is taken once for each `telemetry.gpu_every_s` (1 s) by a thread beside the steps of a
node's first rank, with whose Python code it shares the interpreter lock. The log is read once, after the
warm-up and outside of measured steps. The counters are files of an ordinary file system: the time of an
adapter's driver is not included. The lines of the log are those of a recorded one and then one for each
collective, as rank 0 writes them.

CPU time of the calling thread (`time.thread_time`) does not include waiting, and load on the machine changes
it less than wall time. Measure on an idle machine all the same: caches and clock rates are shared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import result_record
from disttrain.hardware.node_sampler import Links, LocalRank, Node
from disttrain.records.run_directory import Attempt
from disttrain.telemetry.network import parse

LOG = Path(__file__).resolve().parent.parent / "tests/support/nccl_logs/2.27.7-infiniband.log"
EVERY_S = 1.0
_FILES = {
    "state": "4: ACTIVE",
    "rate": "400 Gb/sec (4X NDR)",
    "counters/port_xmit_data": "123456789012",
    "counters/port_rcv_data": "123456789012",
}


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Medians over the repeats; the share is that of one processor at one sample a second."""
    sample_s = statistics.median(raw["sample_s"])
    return {
        "adapters": raw["adapters"],
        "interfaces": raw["interfaces"],
        "lines": raw["lines"],
        "sample_ms": round(1e3 * sample_s, 3),
        "sample_percent": round(100 * sample_s / EVERY_S, 3),
        "log_ms": round(1e3 * statistics.median(raw["log_s"]), 1),
    }


def write_node(root: Path, adapters: int, interfaces: int) -> None:
    """The files of a node with these RDMA ports and network interfaces."""
    for number in range(adapters):
        for name, text in _FILES.items():
            path = root / f"sys/class/infiniband/mlx5_{number}/ports/1" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    lines = [
        f"  eth{number}: 1{number} 1 0 0 0 0 0 0 2{number} 1 0 0 0 0 0 0\n" for number in range(interfaces)
    ]
    path = root / "proc/self/net/dev"
    path.parent.mkdir(parents=True)
    path.write_text("Inter-| Receive | Transmit\n face |bytes\n" + "".join(lines))


def log_lines(count: int) -> list[str]:
    """Lines of NCCL's log: those of a start, then one for each collective."""
    recorded = LOG.read_text().splitlines()
    collective = next(line for line in reversed(recorded) if "Bytes -> Algo" in line)
    return [*recorded, *[collective] * (count - len(recorded))]


def cpu_s(call: Callable[[], object], repeats: int) -> list[float]:
    """CPU seconds of this thread in each call, after one that does not count."""
    call()
    found = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        found.append(time.thread_time() - began)
    return found


def measure(adapters: int, interfaces: int, lines: int, repeats: int) -> dict[str, Any]:
    """CPU seconds of each call."""
    with tempfile.TemporaryDirectory() as folder:
        write_node(Path(folder), adapters, interfaces)
        node = Node(Attempt(Path(folder), 0), [LocalRank(0, 0, 0, (), 0.0)], 1.0, backend="nccl")
        links = Links(node, Path(folder))

        def sample() -> None:
            for device, taken in links.read():
                device.add(links.fields, taken, 0)

        sample_s = cpu_s(sample, repeats)
    text = log_lines(lines)
    log_s = cpu_s(lambda: parse(text), max(3, repeats // 20))
    about = {"adapters": adapters, "interfaces": interfaces, "lines": lines}
    return {**about, "sample_s": sample_s, "log_s": log_s}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = measure(adapters=8, interfaces=10, lines=5000, repeats=200)
    for name, value in figures(raw).items():
        print(f"{name:15} {value}")
    result_record.save("fabric_telemetry", given.save, figures(raw), raw, packages=())


if __name__ == "__main__":
    main()
