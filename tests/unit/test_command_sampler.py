"""The samples that an agent takes of a command: files, figures, and when they end."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence

import pytest

from disttrain.records import heartbeat
from disttrain.records.hardware import GpuSample, NodeHardware
from disttrain.records.json_files import read_json, read_jsonl, write_json
from disttrain.records.node_hardware import read_hardware
from disttrain.records.run_directory import Attempt, RunDir
from jobs.fabric.description import Gpu, PciDevice
from jobs.node.command_sampler import CommandSampler
from jobs.node.silent_ranks import RankProcess
from tests.support.jobs import wait_until
from tests.support.nvml import LOST, WELL

RANKS = [RankProcess(4, os.getpid()), RankProcess(5, os.getpid())]


def gpus(*uuids: str) -> Callable[[], Sequence[Gpu]]:
    return lambda: [Gpu(PciDevice("0:1", ()), uuid=uuid) for uuid in uuids]


@pytest.fixture
def attempt(tmp_path):
    made = RunDir(tmp_path / "s" / "r").attempt(0)
    made.path.mkdir(parents=True)
    return made


def started(attempt: Attempt, *uuids: str, ranks: Sequence[RankProcess] = RANKS) -> CommandSampler:
    sampler = CommandSampler(attempt, 2, attempt.path.parent, gpus(*uuids))
    sampler.sample([])
    sampler.sample(ranks)
    assert not attempt.host_samples(2).exists(), "more ranks may start"
    sampler.sample(ranks)
    wait_until(lambda: attempt.host_samples(2).exists() and attempt.host_samples(2).stat().st_size)
    return sampler


@pytest.mark.parametrize(
    ("uuids", "ranks", "users"),
    [((WELL, LOST), RANKS, [[4], [5]]), ((WELL,), RANKS, [[4, 5]]), ((WELL, LOST), RANKS[:1], [[4], [4]])],
    ids=["one each", "shared", "both"],
)
def test_each_rank_has_its_gpus_in_the_files_of_a_ranks_samples(replay, attempt, uuids, ranks, users):
    replay()
    sampler = started(attempt, *uuids, ranks=ranks)
    kernels = sampler.kernels()
    assert set(kernels) == {each.rank for each in ranks}
    wait_until(lambda: sampler.kernels()[4] > kernels[4])
    sampler.close()
    GpuSample.model_validate(read_jsonl(attempt.gpu_samples(2))[0])
    devices = read_json(attempt.gpu_devices(2))["gpus"]
    assert [device["ranks"] for device in devices] == users
    record = NodeHardware.model_validate(read_json(attempt.hardware(2)))
    assert record.gpu is not None
    assert record.gpu.gpus == len(uuids)
    assert record.gpu.idle == 0
    assert record.processes is not None
    assert record.processes.ranks == len(ranks)


def test_new_ranks_are_sampled_and_the_end_of_a_rank_changes_nothing(replay, attempt):
    replay()
    sampler = started(attempt, WELL, ranks=RANKS[:1])
    for _ in range(2):
        sampler.sample(RANKS)
    assert set(sampler.kernels()) == {4, 5}
    for _ in range(2):
        sampler.sample(RANKS[:1])
    assert set(sampler.kernels()) == {4, 5}
    sampler.close()


def test_a_rank_that_samples_by_itself_takes_over(replay, attempt, monkeypatch):
    replay()
    monkeypatch.setenv(heartbeat.FOLDER_VARIABLE, str(attempt.path.parent))
    sampler = started(attempt, WELL)
    sampler.sample(RANKS)
    assert attempt.hardware(2).exists()
    heartbeat.take_over_samples(attempt, 2)
    assert not attempt.gpu_samples(2).exists()
    attempt.host_samples(2).write_text("of the rank\n")
    sampler.sample(RANKS)
    heartbeat.take_over_samples(attempt, 2)
    sampler.close()
    assert attempt.host_samples(2).read_text() == "of the rank\n", "a second loop of the rank appends"
    assert not attempt.hardware(2).exists()


def test_a_failure_ends_the_samples_alone(attempt, capsys):
    def fails() -> Sequence[Gpu]:
        raise ValueError("odd driver")

    sampler = CommandSampler(attempt, 0, attempt.path.parent, fails)
    for _ in range(3):
        sampler.sample(RANKS)
    sampler.close()
    [line] = capsys.readouterr().out.splitlines()
    assert line.endswith("the hardware is not sampled: ValueError: odd driver")


def test_the_record_is_written_more_rarely_as_the_run_grows(replay, attempt, monkeypatch):
    replay()
    now = [time.monotonic()]
    sampler = CommandSampler(attempt, 0, attempt.path.parent, gpus(WELL), now=lambda: now[0])
    written = []
    monkeypatch.setattr("jobs.node.peers.publish", lambda *_: written.append(now[0]))
    for _ in range(4000):
        sampler.sample(RANKS)
        now[0] += 1.0
    sampler.close()
    gaps = [after - before for before, after in itertools.pairwise(written)]
    assert gaps[0] == 1
    assert max(gaps) == 60


def test_nodes_are_put_together_by_their_gpus(attempt):
    for node, (count, busy, energy) in enumerate([(3, 0.9, 10.0), (1, 0.5, 5.0)]):
        gpu = {"gpus": count, "utilization": busy, "idle": 1 - busy, "energy_j": energy, "sampled_s": 100.0}
        write_json(attempt.hardware(node), {"gpu": gpu, "processes": {"ranks": 1, "cpu_percent": 150.0}})
    write_json(attempt.hardware(2), {"gpu": None, "processes": None})
    figures = read_hardware(attempt)
    assert figures == pytest.approx(
        {"gpus": 4, "gpu_utilization": 0.8, "gpu_idle": 0.2, "gpu_energy_j": 15.0, "sampled_s": 100.0}
        | {"gpu_idle_s": 20.0, "processors": 1.5}
    )
