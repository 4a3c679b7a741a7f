"""The memory limit of a CPU rank: control groups of both versions, the machine, the share of a node."""

from __future__ import annotations

import math
import mmap
import os
import resource

import pytest

from disttrain.engine import memory_limits
from disttrain.engine.memory_limits import host_limit, peak_resident_bytes, reset_peak, total_memory
from disttrain.errors import ConfigError

GROUPS = "sys/fs/cgroup"
STATUS = {"proc/self/status": "VmHWM:\t  9000 kB\nVmRSS:\t  1000 kB\n"}
RESIDENT = 1000 * 1024
MACHINE = {"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"}


@pytest.fixture
def limit(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)

    def of(files, ranks=1):
        for name, text in (STATUS | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return host_limit(ranks, tmp_path)

    return of


def group(path, limit, usage, cache=0):
    folder = f"{GROUPS}/{path}"
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


def test_the_free_memory_of_the_machine(limit):
    assert limit(MACHINE) == (RESIDENT + 8000000 * 1024, "MemAvailable")


def test_the_tightest_control_group_above_the_process(limit, tmp_path):
    own = {"proc/self/cgroup": "0::/job/step\n"}
    files = (
        MACHINE | own | group("job/step", "max", 4_000_000) | group("job", 9_000_000, 5_000_000, 1_000_000)
    )
    # free, with the cache that the kernel can reclaim
    assert limit(files) == (RESIDENT + 5_000_000, f"memory.max of {tmp_path / GROUPS / 'job'}")


def test_ranks_of_a_node_share_what_is_free(limit):
    files = MACHINE | {"proc/self/cgroup": "0::/job\n"} | group("job", 9_000_000, 1_000_000)
    assert limit(files, ranks=4)[0] == RESIDENT + 2_000_000


def test_version_1(limit):
    folder = f"{GROUPS}/memory/job"
    files = {
        "proc/self/cgroup": "4:memory:/job\n0::/\n",
        f"{folder}/memory.limit_in_bytes": "7000000\n",
        f"{folder}/memory.usage_in_bytes": "3000000\n",
        f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{GROUPS}/memory/memory.usage_in_bytes": "3000000\n",
    }
    assert limit(MACHINE | files)[0] == RESIDENT + 4_000_000


@pytest.mark.parametrize("name", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_a_resource_limit_holds_for_each_process(limit, monkeypatch, name):
    limits = {getattr(resource, name): (5_000_000, 5_000_000)}
    unlimited = (resource.RLIM_INFINITY,) * 2
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, unlimited))
    assert limit(MACHINE, ranks=4) == (5_000_000, name)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no /proc/self/clear_refs")
def test_the_peak_begins_anew():
    with mmap.mmap(-1, 64 << 20) as pages:  # not malloc, which may keep what is freed
        pages.write(b"x" * len(pages))
        high = peak_resident_bytes()
    reset_peak()
    assert peak_resident_bytes() < high - (32 << 20)


def test_total_memory_is_the_share_of_the_smallest_limit(tmp_path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4096 kB\nMemAvailable: 8 kB\n")
    assert total_memory(2, tmp_path) == 2 * 2**20
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    for name in ("max", "current"):
        (tmp_path / f"sys/fs/cgroup/job/memory.{name}").write_text(f"{2**20}\n")
    assert total_memory(2, tmp_path) == 2**19
    assert total_memory(1, tmp_path / "nowhere") == math.inf


def test_without_a_limit_the_size_is_to_be_given(limit):
    with pytest.raises(ConfigError, match=r"no memory limit can be read .*; give a number$"):
        limit({})


def test_a_kernel_without_a_peak_in_its_status_has_one_in_the_usage(monkeypatch):
    monkeypatch.setattr(memory_limits, "_stat", lambda *_: None)
    assert peak_resident_bytes() > 10 << 20
