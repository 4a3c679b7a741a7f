"""The memory limit of a CPU rank: control groups of both versions, the machine, the share of a node."""

from __future__ import annotations

import mmap
import os
import resource

import pytest

from disttrain.engine.host_limit import host_limit, peak_resident_bytes, reset_peak

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
    found = limit(MACHINE)
    assert (found.bytes, found.source) == (RESIDENT + 8000000 * 1024, "MemAvailable")


def test_the_tightest_control_group_above_the_process(limit, tmp_path):
    own = {"proc/self/cgroup": "0::/job/step\n"}
    files = (
        MACHINE | own | group("job/step", "max", 4_000_000) | group("job", 9_000_000, 5_000_000, 1_000_000)
    )
    found = limit(files)
    assert found.bytes == RESIDENT + 5_000_000  # free, with the cache that the kernel can reclaim
    assert found.source == f"memory.max of {tmp_path / GROUPS / 'job'}"


def test_ranks_of_a_node_share_what_is_free(limit):
    files = MACHINE | {"proc/self/cgroup": "0::/job\n"} | group("job", 9_000_000, 1_000_000)
    assert limit(files, ranks=4).bytes == RESIDENT + 2_000_000


def test_version_1(limit):
    folder = f"{GROUPS}/memory/job"
    files = {
        "proc/self/cgroup": "4:memory:/job\n0::/\n",
        f"{folder}/memory.limit_in_bytes": "7000000\n",
        f"{folder}/memory.usage_in_bytes": "3000000\n",
        f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        f"{GROUPS}/memory/memory.usage_in_bytes": "3000000\n",
    }
    assert limit(MACHINE | files).bytes == RESIDENT + 4_000_000


@pytest.mark.parametrize("name", ["RLIMIT_DATA", "RLIMIT_AS"])
def test_a_resource_limit_holds_for_each_process(limit, monkeypatch, name):
    limits = {getattr(resource, name): (5_000_000, 5_000_000)}
    unlimited = (resource.RLIM_INFINITY,) * 2
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits.get(which, unlimited))
    found = limit(MACHINE, ranks=4)
    assert (found.bytes, found.source, found.shared) == (5_000_000, name, False)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no /proc/self/clear_refs")
def test_the_peak_begins_anew():
    with mmap.mmap(-1, 64 << 20) as pages:  # not malloc, which may keep what is freed
        pages.write(b"x" * len(pages))
        high = peak_resident_bytes()
    reset_peak()
    assert peak_resident_bytes() < high - (32 << 20)
