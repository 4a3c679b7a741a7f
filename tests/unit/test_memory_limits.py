"""The memory limit of a CPU rank: control groups of both versions, the machine, the share of a node."""

import math
import mmap
import os
import resource

import pytest
import torch

from disttrain.engine.memory_limits import host_limit, total_memory
from disttrain.errors import ConfigError
from disttrain.runtime import device
from disttrain.runtime.device import peak_memory_bytes, reset_peak_memory

RESIDENT = 1000 * 1024
CPU = torch.device("cpu")
MACHINE = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"}
UNLIMITED = (resource.RLIM_INFINITY,) * 2


@pytest.fixture
def root_of(tmp_path, monkeypatch):
    """Writes files of the kernel, and gives the folder of their root."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: UNLIMITED)

    def write(files):
        for name, text in ({"proc/self/status": "VmRSS:\t  1000 kB\n"} | files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write


def group(path, limit, usage, cache=0, version=2):
    limit_file, usage_file = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
    folder = f"sys/fs/cgroup/{path}/memory"
    return {
        f"{folder}.{limit_file}": f"{limit}\n",
        f"{folder}.{usage_file}": f"{usage}\n",
        f"{folder}.stat": f"anon 5\ninactive_file {cache}\n",
    }


def groups(path, *groups, version="0:"):
    files = MACHINE | {"proc/self/cgroup": f"4:cpu:/\n{version}:{path}\n"}
    for each in groups:
        files |= each
    return files


@pytest.mark.parametrize(
    ("files", "ranks", "free", "source"),
    [
        (MACHINE, 1, 8000000 * 1024, "MemAvailable"),
        # the tightest group above the process; the kernel can reclaim the cache
        (groups("/job/step", group("job/step", "max", 4e6), group("job", 9_000_000, 5_000_000, 1_000_000)), 1,
         5_000_000, "memory.max of */job"),
        (groups("/job", group("job", 9_000_000, 1_000_000, 2_000_000)), 4,
         9_000_000 // 4, "memory.max of */job"),
        (groups("/job", group("memory/job", 7_000_000, 3_000_000, version=1),
                group("memory", 2**63 - 4096, 3_000_000, version=1), version="4:memory"), 1,
         4_000_000, "memory.limit_in_bytes of */memory/job"),
    ],
)  # fmt: skip
def test_a_rank_has_its_share_of_free_memory(root_of, files, ranks, free, source):
    root = root_of(files)
    name = source.replace("*", str(root / "sys/fs/cgroup"))
    assert host_limit(ranks, root) == (RESIDENT + free, name)


@pytest.mark.parametrize("name", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_a_resource_limit_holds_for_each_process(root_of, monkeypatch, name):
    limits = {getattr(resource, name): (5_000_000, 5_000_000)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, UNLIMITED))
    assert host_limit(4, root_of(MACHINE)) == (5_000_000, name)


def test_without_a_limit_a_size_is_needed(root_of):
    with pytest.raises(ConfigError, match="give a number"):
        host_limit(1, root_of({}))


def test_total_memory_is_the_share_of_the_smallest_limit(root_of, tmp_path):
    assert total_memory(2, root_of(MACHINE)) == 9000000 * 1024 / 2
    assert total_memory(2, root_of(groups("/job", group("job", 2**20, 2**20)))) == 2**19
    assert total_memory(1, tmp_path / "nowhere") == math.inf


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no /proc/self/clear_refs")
def test_the_peak_begins_anew():
    with mmap.mmap(-1, 64 << 20) as pages:  # not malloc, which may keep what is freed
        pages.write(b"x" * len(pages))
        high = peak_memory_bytes(CPU)
    reset_peak_memory(CPU)
    assert peak_memory_bytes(CPU) < high - (32 << 20)


def test_a_kernel_without_a_peak_in_its_status_has_one_in_the_usage(monkeypatch):
    monkeypatch.setattr(device, "number_after", lambda *_: None)
    assert peak_memory_bytes(CPU) > 10 << 20
