"""The thread that samples the GPUs, processes and links of a node: its files, and what a failure costs."""

import itertools
import os
import socket
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest
import torch

from disttrain.config.sections.telemetry import TelemetryConfig
from disttrain.errors import ConfigError
from disttrain.hardware import node_sampler
from disttrain.hardware.fields import FIELDS, Field, load_field
from disttrain.hardware.node_sampler import GpuId, HardwareSampler, LocalRank, Node, SampleFile
from disttrain.hardware.statistics import gpu_summary
from disttrain.records.hardware import GpuSample, HostSample
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.runtime import log
from disttrain.telemetry import node_sampling, summary
from docs.generate.records import FILES
from tests.support.jobs import WITHIN_S
from tests.support.nvml import LOST, WELL, raising

NO_PID = 2**22 + 1
"""Above the largest process id of Linux."""


def ranks_on(*gpus, node=0):
    return [
        LocalRank(rank, node, os.getpid(), (GpuId(gpu, "0:1"),) if gpu else (), 0.0)
        for rank, gpu in enumerate(gpus)
    ]


def sampled(attempt, ranks, rounds=2, sources=2, **node):
    """A sampler that ended after so many rounds or more, each of which asks for the segment by source."""
    called = threading.Semaphore(0)
    sampler = HardwareSampler(Node(attempt, ranks, 0.001, **node), lambda: called.release() or 0)
    sampler.start()
    for _ in range(rounds * sources + 1):
        assert called.acquire(timeout=WITHIN_S)
    sampler.close()
    return sampler


@pytest.fixture
def attempt(tmp_path):
    return RunDir(tmp_path).attempt(0)


def test_a_lost_gpu_does_not_end_the_other(replay, attempt):
    replay()
    sampler = sampled(attempt, ranks_on(WELL, LOST), rounds=4)
    lines = [GpuSample.model_validate(line) for line in read_jsonl(attempt.gpu_samples(0))]
    assert [line.rank for line in lines[:6]] == [0, 1, 0, 1, 0, 0]
    assert all(a.at_s < b.at_s for a, b in zip(lines, lines[2:], strict=False))
    devices = FILES["gpu-devices"].model_validate(read_json(attempt.gpu_devices(0)))
    assert devices.driver == "550.90.07"
    assert [device.lost for device in devices.gpus] == [None, "GPU is lost"]
    samples = sampler.accumulated()
    usage, _ = gpu_summary(FIELDS, samples.gpus)
    assert (usage.gpus, usage.gpus_lost, usage.xids) == (2, 1, {"94": 1})
    hosts = [HostSample.model_validate(line).rank for line in read_jsonl(attempt.host_samples(0))]
    assert hosts[:8] == [0, 1] * 4
    assert samples.links == [], "no rank has a peer on another node"


def test_a_gpu_counts_once_however_many_ranks_and_nodes_share_it(replay, tmp_path):
    """Two nodes of one machine, of two ranks each, share a GPU."""
    usages = []
    for node in range(2):
        replay()
        attempt = RunDir(tmp_path).attempt(node)
        usages.append(sampled(attempt, ranks_on(WELL, WELL, node=node)).accumulated())
        assert {line["rank"] for line in read_jsonl(attempt.gpu_samples(node))} == {0}
        [device] = read_json(attempt.gpu_devices(node))["gpus"]
        assert device["ranks"] == [0, 1]
    fields, _ = summary.usage(usages)
    assert (fields["gpu"].gpus, fields["processes"].ranks) == (1, 4)
    assert fields["gpu"].samples == usages[0].gpus[0].clock.count
    assert len({rank.devices[0] for rank in ranks_on(WELL, WELL, LOST)}) == 2
    assert len({rank.devices[0] for rank in ranks_on(None, None)}) == 2


def test_live_figures_are_of_the_newest_sample_or_absent(replay, attempt, monkeypatch):
    replay()
    live = (sampler := sampled(attempt, ranks_on(WELL), rounds=4)).live()
    assert (live["gpu_utilization"], live["rss_bytes"] > 0) == (1.0, True), "the fourth reading and later"
    now = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert sampler.live() == {}, "a sampler that hangs shows no old figures"


def test_without_nvml_nothing_is_written_of_gpus(replay, attempt):
    replay(lambda session: session.update(init={"error": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}))
    sampler = sampled(attempt, ranks_on(WELL))
    assert not attempt.gpu_samples(0).exists()
    assert not attempt.gpu_devices(0).exists()
    usage = sampler.accumulated()
    assert (usage.gpus, usage.gpu_reason.split(":")[:2]) == ([], [WELL, " NVMLError_LibraryNotFound"])
    assert not any(name.startswith("gpu") for name in sampler.live())


@pytest.mark.parametrize(
    ("ended", "of", "left"),
    [("gpu_samples", "GPUs", "host_samples"), ("host_samples", "processes", "gpu_samples")],
)
def test_a_file_that_cannot_be_written_ends_its_samples_alone(replay, attempt, monkeypatch, ended, of, left):
    replay()
    errors = []
    monkeypatch.setattr(log, "error", lambda message, **fields: errors.append((message, fields["of"])))
    getattr(attempt, ended)(0).mkdir(parents=True)
    sampled(attempt, ranks_on(WELL), rounds=3, sources=1)
    assert len(read_jsonl(getattr(attempt, left)(0))) >= 3
    assert errors == [("sampling ended", of)]


def test_a_gpu_or_process_that_cannot_be_opened_or_read_costs_the_others_nothing(replay, attempt):
    fake = replay()
    power = fake.nvmlDeviceGetPowerUsage
    odd = raising(TypeError("odd counter"))
    fake.nvmlDeviceGetPowerUsage = lambda gpu: odd() if gpu == LOST else power(gpu)
    [unknown, *others] = ranks_on("GPU-odd", LOST, WELL)
    sampler = sampled(attempt, [LocalRank(0, 0, NO_PID, unknown.gpus, 0.0), *others])
    assert sampler.accumulated().gpu_reason.startswith("GPU-odd: ")
    lines = [(line["rank"], line["power_w"] is None) for line in read_jsonl(attempt.gpu_samples(0))]
    assert lines[:4] == [(1, True), (2, False)] * 2
    devices = read_json(attempt.gpu_devices(0))["gpus"]
    assert [device["errors"].get("power_w") for device in devices] == ["TypeError: odd counter", None]
    assert {line["rank"] for line in read_jsonl(attempt.host_samples(0))} == {1, 2}


def test_text_from_a_row_of_a_user_costs_its_own_figure_alone(replay, attempt):
    replay()
    row = Field("gpu", "state", "", (lambda nvml, gpu: "P0",), {"states": "counts"}, True, live="state")
    fields = (*FIELDS, row)
    sampler = sampled(attempt, ranks_on(WELL), fields=fields)
    assert {line["state"] for line in read_jsonl(attempt.gpu_samples(0))} == {"P0"}
    [device] = read_json(attempt.gpu_devices(0))["gpus"]
    usage, reasons = gpu_summary(fields, sampler.accumulated().gpus)
    assert (usage.states, usage.power_mean_w > 0) == (None, True)
    assert reasons["gpu.states"] == device["errors"]["state"]
    assert {"gpu_power_w", "state"} & sampler.live().keys() == {"gpu_power_w"}


def test_a_driver_that_never_answers_does_not_hold_the_end(replay, attempt, monkeypatch):
    called, answer = threading.Event(), threading.Event()
    replay().nvmlDeviceGetPowerUsage = lambda _: called.set() or answer.wait()
    monkeypatch.setattr(node_sampler, "CLOSE_S", 0.01)
    sampler = HardwareSampler(Node(attempt, ranks_on(WELL), 0.01), lambda: None)
    sampler.start()
    assert called.wait(WITHIN_S)
    sampler.accumulated()  # no lock is held meanwhile
    sampler.close()
    assert not attempt.gpu_samples(0).read_bytes(), "the call is still under way"
    answer.set()


def test_long_runs_write_fewer_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(node_sampler, "LINES_AT_FULL_RATE", 10)
    lines = SampleFile(tmp_path / "x.jsonl", 0.0)
    for index in range(1000):
        lines.add_round([{"rank": index}])
    lines.close()
    ranks = [line["rank"] for line in read_jsonl(tmp_path / "x.jsonl")]
    assert ranks[:12] == [*range(10), 10, 12]
    assert 60 <= len(ranks) <= 80


def test_samples_are_written_at_intervals(tmp_path, monkeypatch):
    now = 1000
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines, sizes = SampleFile(tmp_path / "x.jsonl", 5.0), []
    for index in range(11):
        now = 1000 + index
        lines.add_round([{"rank": index}])
        sizes.append(len(read_jsonl(tmp_path / "x.jsonl")))
    assert sizes == [1] * 5 + [6] * 5 + [11]


def test_links_of_measured_steps_shorter_than_the_interval_are_counted(attempt, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    called, segment = threading.Semaphore(0), None
    node = Node(attempt, ranks_on(None), 60, backend="gloo")
    sampler = HardwareSampler(node, lambda: called.release() or segment)
    sampler.start()
    for _ in range(3):  # GPUs, processes, links
        assert called.acquire(timeout=WITHIN_S)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        for segment in (None, 1, 1, 1, None):  # noqa: B007 -- read by the sampler
            sampler.sample_links()
            sender.sendall(bytes(50_000))
            receiver.recv(50_000, socket.MSG_WAITALL)  # the bytes have then passed the interface
    samples = sampler.accumulated()
    [loopback] = [link for link in samples.links if link.name == "lo"]
    assert loopback.constants["expected"]
    assert 50_000 <= loopback.grown("sent_bytes") < 100_000, "later samples are those of the thread"
    assert loopback.clock.segment_growth > 0
    assert samples.expected_adapters == [], "gloo expects none"
    sampler.close()


def test_measured_steps_begin_and_end_with_a_sample_of_the_links(attempt, monkeypatch):
    segments = []

    class Sampler:
        def __init__(self, node, segment):
            self.segment = segment

        def start(self): ...

        def sample_links(self):
            segments.append(self.segment())

    monkeypatch.setattr(node_sampling, "HardwareSampler", Sampler)
    world = SimpleNamespace(
        rank=0, local_rank=0, local_size=1, nodes=2, size=2, gpus_per_rank=0, backend="gloo",
        device=torch.device("cpu"), all_gather_object=lambda own: [own],
    )  # fmt: skip
    telemetry = node_sampling.NodeTelemetry(attempt, world, TelemetryConfig(gpu_every_s=60))
    is_measured = itertools.chain([False], itertools.repeat(True))
    telemetry.start(lambda: None, lambda: next(is_measured))
    for _ in range(2):
        telemetry.warmed_up()
    with telemetry.outside_steps():
        telemetry.warmed_up()
    assert segments == [None, 0, 0, None, 1]


@pytest.mark.parametrize("name", ["no.such:FAN", f"{__name__}:NONE", f"{__name__}:WITHIN_S", "FAN"])
def test_a_row_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match=r"telemetry\.fields="):
        load_field(name)
