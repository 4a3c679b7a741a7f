"""The thread that samples the GPUs and processes of a node: files, what is lost, what never answers."""

import os
import socket
import threading
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
from disttrain.telemetry import node_sampling as node_telemetry
from disttrain.telemetry import summary
from docs.generate.records import FILES
from tests.support.jobs import WITHIN_S
from tests.support.nvml import LOST, WELL, raising

GLOO_WORLD = SimpleNamespace(
    rank=0, local_rank=0, local_size=1, nodes=2, size=2, gpus_per_rank=0, backend="gloo",
    device=torch.device("cpu"), all_gather_object=lambda own: [own],
)  # fmt: skip


class Rounds:
    """Lets the sampler's thread take one round at a time."""

    def __init__(self, monkeypatch, ranks, attempt, every_s=1.0, backend=None):
        self.segment = 0
        node = Node(attempt, ranks, every_s, backend=backend)
        self.sampler = HardwareSampler(node, lambda: self.segment)
        self.taken = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

        def wait(_):
            self.taken.release()
            self.go.acquire()

        monkeypatch.setattr(self.sampler._closing, "wait", wait)
        self.sampler.start()
        assert self.taken.acquire(timeout=WITHIN_S)

    def next(self, segment=0):
        self.segment = segment
        self.go.release()
        assert self.taken.acquire(timeout=WITHIN_S)

    def end(self, segment=0):
        self.segment = segment
        self.sampler._closing.set()
        self.go.release()
        self.sampler.close()
        assert not self.sampler._thread.is_alive()


def ranks_on(*gpus):
    return [LocalRank(i, 0, os.getpid(), (gpu,) if gpu else (), 0.0) for i, gpu in enumerate(gpus)]


def test_a_session_leaves_valid_records_and_a_lost_gpu_does_not_end_the_other(replay, tmp_path, monkeypatch):
    replay()
    attempt = RunDir(tmp_path).attempt(0)
    rounds = Rounds(monkeypatch, ranks_on(GpuId(WELL, None), GpuId(LOST, None)), attempt)
    for _ in range(2):
        rounds.next()
    rounds.end()
    lines = [GpuSample.model_validate(line) for line in read_jsonl(attempt.gpu_samples(0))]
    assert [line.rank for line in lines] == [0, 1, 0, 1, 0, 0]
    assert all(a.at_s < b.at_s for a, b in zip(lines, lines[2:], strict=False))
    devices = FILES["gpu-devices"].model_validate(read_json(attempt.gpu_devices(0)))
    assert devices.driver == "550.90.07"
    assert [device.lost for device in devices.gpus] == [None, "GPU is lost"]
    usage, _ = gpu_summary(FIELDS, rounds.sampler.accumulated().gpus)
    assert (usage.gpus, usage.gpus_lost) == (2, 1)
    assert usage.xids == {"94": 1}
    hosts = [HostSample.model_validate(line) for line in read_jsonl(attempt.host_samples(0))]
    assert [line.rank for line in hosts] == [0, 1] * 4


def test_ranks_that_share_a_gpu_share_its_samples(replay, tmp_path, monkeypatch):
    replay()
    attempt = RunDir(tmp_path).attempt(0)
    rounds = Rounds(monkeypatch, ranks_on(GpuId(WELL, None), GpuId(WELL, None)), attempt)
    rounds.end()
    assert [line["rank"] for line in read_jsonl(attempt.gpu_samples(0))] == [0, 0]
    assert read_json(attempt.gpu_devices(0))["gpus"][0]["ranks"] == [0, 1]
    assert len(rounds.sampler.accumulated().gpus) == 1


def test_a_gpu_counts_once_however_many_ranks_and_nodes_share_it(replay, tmp_path, monkeypatch):
    """Two nodes of one machine share a GPU."""
    places = [(0, WELL), (0, WELL), (1, WELL), (0, LOST)]
    gpus = [
        LocalRank(i, node, os.getpid(), (GpuId(uuid, "0:1"),), 0.0) for i, (node, uuid) in enumerate(places)
    ]
    assert len({rank.devices[0] for rank in gpus}) == 2
    assert len({LocalRank(i, 0, 1, (), 0.0).devices[0] for i in range(3)}) == 3

    replay()
    usages = []
    for node in (0, 1):
        rounds = Rounds(monkeypatch, [gpus[2 * node]], RunDir(tmp_path).attempt(node))
        rounds.end()
        usages.append(rounds.sampler.accumulated())
    fields, _ = summary.usage(usages)
    assert fields["gpu"].gpus == 1
    assert fields["gpu"].samples == usages[0].gpus[0].clock.count
    assert fields["processes"].ranks == 2


def test_live_figures_are_of_the_newest_sample(replay, tmp_path, monkeypatch):
    replay()
    rounds = Rounds(monkeypatch, ranks_on(GpuId(WELL, None)), RunDir(tmp_path).attempt(0))
    rounds.next()
    live = rounds.sampler.live()
    assert (live["gpu_utilization"], live["gpu_power_w"]) == (0.98, 512.4)
    assert live["gpu_memory_used_bytes"] == 62_120_809_984
    assert live["rss_bytes"] > 0
    monkeypatch.setattr(node_sampler.time, "monotonic", lambda: 10**9)
    assert rounds.sampler.live() == {}  # a sampler that hangs shows nothing, not the past
    monkeypatch.undo()
    rounds.sampler._closing.set()
    rounds.go.release()


def test_without_nvml_nothing_is_written_of_gpus(replay, tmp_path, monkeypatch):
    replay(lambda session: session.update(init={"error": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}))
    attempt = RunDir(tmp_path).attempt(0)
    rounds = Rounds(monkeypatch, ranks_on(GpuId(WELL, None)), attempt)
    rounds.end()
    assert not attempt.gpu_samples(0).exists()
    assert not attempt.gpu_devices(0).exists()
    usage = rounds.sampler.accumulated()
    assert usage.gpus == []
    assert usage.gpu_reason == f"{WELL}: NVMLError_LibraryNotFound: NVML Shared Library Not Found"
    assert not {name for name in rounds.sampler.live() if name.startswith("gpu")}


@pytest.mark.parametrize(("part", "left"), [("processes", "gpu_samples"), ("GPUs", "host_samples")])
def test_what_goes_wrong_ends_one_kind_of_samples_and_nothing_else(replay, tmp_path, monkeypatch, part, left):
    replay()
    told = []
    monkeypatch.setattr(log, "error", lambda message, **fields: told.append((message, fields)))
    attempt = RunDir(tmp_path).attempt(0)
    broken = {"processes": attempt.host_samples(0), "GPUs": attempt.gpu_samples(0)}[part]
    broken.mkdir(parents=True)  # cannot be written
    rounds = Rounds(monkeypatch, ranks_on(GpuId(WELL, None)), attempt)
    rounds.next()
    rounds.end()
    assert [(message, fields["of"], fields["kind"]) for message, fields in told] == [
        ("sampling ended", part, "IsADirectoryError")
    ]
    assert len(list(read_jsonl(getattr(attempt, left)(0)))) == 3


def test_a_gpu_that_cannot_be_opened_or_read_costs_the_others_nothing(replay, tmp_path, monkeypatch):
    fake = replay()
    real_look, real_power = fake.nvmlDeviceGetHandleByUUID, fake.nvmlDeviceGetPowerUsage
    handles = {}

    def look_or_raise(uuid):
        handles[uuid] = raising(ValueError("odd name"))() if uuid == "GPU-odd" else real_look(uuid)
        return handles[uuid]

    def power(handle):
        return raising(TypeError("odd counter"))() if handle is handles[LOST] else real_power(handle)

    fake.nvmlDeviceGetHandleByUUID, fake.nvmlDeviceGetPowerUsage = look_or_raise, power
    attempt = RunDir(tmp_path).attempt(0)
    gpus = (GpuId("GPU-odd", None), GpuId(LOST, None), GpuId(WELL, None))
    rounds = Rounds(monkeypatch, ranks_on(*gpus), attempt)
    rounds.end()
    assert rounds.sampler.accumulated().gpu_reason == "GPU-odd: ValueError: odd name"
    lines = [(line["rank"], line["power_w"] is None) for line in read_jsonl(attempt.gpu_samples(0))]
    assert lines == [(1, True), (2, False)] * 2
    devices = read_json(attempt.gpu_devices(0))["gpus"]
    assert [device["errors"] for device in devices] == [{"power_w": "TypeError: odd counter"}, {}]
    assert len(list(read_jsonl(attempt.host_samples(0)))) == 6


def test_the_process_of_one_rank_that_cannot_be_read_costs_the_others_nothing(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(log, "error", lambda message, **fields: told.append((fields["of"], fields["kind"])))
    attempt = RunDir(tmp_path).attempt(0)
    no_pid = 2**22 + 1  # above the largest of Linux
    rounds = Rounds(monkeypatch, [LocalRank(0, 0, no_pid, (), 0.0), *ranks_on(None, None)[1:]], attempt)
    rounds.end()
    assert [line["rank"] for line in read_jsonl(attempt.host_samples(0))] == [1, 1]
    assert told == [("rank 0", "NoSuchProcess")]


def test_text_from_a_row_of_a_user_costs_its_own_figure_alone(replay, tmp_path, monkeypatch):
    replay()
    row = Field("gpu", "state", "", (lambda nvml, gpu: "P0",), {"states": "counts"}, True, live="state")
    attempt = RunDir(tmp_path).attempt(0)
    node = Node(attempt, ranks_on(GpuId(WELL, None)), 1.0, fields=(*FIELDS, row))
    sampler = HardwareSampler(node, lambda: 0)
    sampler._closing.set()
    sampler._run()
    assert [line["state"] for line in read_jsonl(attempt.gpu_samples(0))] == ["P0"]
    (device,) = read_json(attempt.gpu_devices(0))["gpus"]
    assert device["errors"]["state"].startswith("TypeError: ")
    usage, reasons = gpu_summary(node.fields, sampler.accumulated().gpus)
    assert (usage.states, usage.power_mean_w) == (None, pytest.approx(118.25))
    assert reasons["gpu.states"] == device["errors"]["state"]
    assert "gpu_power_w" in sampler.live()
    assert "state" not in sampler.live()


def test_a_driver_that_never_answers_does_not_hold_the_end(replay, tmp_path, monkeypatch):
    fake = replay()
    asked, answer = threading.Event(), threading.Event()

    def hang(_):
        asked.set()
        answer.wait()

    fake.nvmlDeviceGetPowerUsage = hang
    monkeypatch.setattr(node_sampler, "CLOSE_S", 0.01)
    node = Node(RunDir(tmp_path).attempt(0), ranks_on(GpuId(WELL, None)), 0.01)
    sampler = HardwareSampler(node, lambda: None)
    sampler.start()
    assert asked.wait(20)
    sampler.accumulated()  # no lock is held meanwhile
    sampler.close()
    assert sampler._thread.is_alive()
    answer.set()
    sampler._thread.join(20)


def test_long_runs_write_ever_fewer_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(node_sampler, "LINES_AT_FULL_RATE", 10)
    lines = SampleFile(tmp_path / "x.jsonl", 0.0)
    for index in range(1000):
        lines.add_round([{"rank": index}])
    lines.close()
    kept = [line["rank"] for line in read_jsonl(tmp_path / "x.jsonl")]
    assert kept[:12] == [*range(10), 10, 12]
    assert 60 <= len(kept) <= 80


def test_samples_are_written_at_intervals(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(node_sampler.time, "monotonic", lambda: now)
    lines, sizes = SampleFile(tmp_path / "x.jsonl", 5.0), []
    for index in range(11):
        lines.add_round([{"rank": index}])
        sizes.append(len(list(read_jsonl(tmp_path / "x.jsonl"))))
        now += 1
    assert sizes == [1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 11]


def test_links_are_counted_in_measured_steps_where_nodes_communicate(tmp_path, monkeypatch):
    attempt = RunDir(tmp_path).attempt(0)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    rounds = Rounds(monkeypatch, ranks_on(None), attempt, backend="gloo")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(
        server.getsockname()
    ) as sender:  # fmt: skip
        receiver, _ = server.accept()
        with receiver:
            for segment in (None, 0, 0):
                rounds.next(segment)
                sender.sendall(bytes(50_000))
                receiver.recv(50_000, socket.MSG_WAITALL)  # the bytes have then passed the interface
    rounds.end(0)
    (loopback,) = [link for link in rounds.sampler.accumulated().links if link.name == "lo"]
    assert loopback.constants["expected"]
    assert loopback.clock.segment_growth > 0
    assert loopback.grown("sent_bytes") >= 100_000
    alone = Rounds(monkeypatch, ranks_on(None), attempt)
    alone.end()
    assert alone.sampler.accumulated().links == []


def test_links_of_a_run_shorter_than_the_interval_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    rounds = Rounds(monkeypatch, ranks_on(None), RunDir(tmp_path).attempt(0), every_s=60, backend="gloo")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(
        server.getsockname()
    ) as sender:  # fmt: skip
        receiver, _ = server.accept()
        with receiver:
            for segment in (1, 1, 1, None):
                rounds.segment = segment
                rounds.sampler.sample_links()
                sender.sendall(bytes(50_000))
                receiver.recv(50_000, socket.MSG_WAITALL)
    (loopback,) = [each for each in rounds.sampler.accumulated().links if each.name == "lo"]
    assert 50_000 <= loopback.grown("sent_bytes") < 100_000, "later samples are those of the thread"
    assert loopback.clock.segment_growth > 0
    rounds.end(None)
    assert rounds.sampler.accumulated().expected_adapters == [], "gloo expects none"


def test_measured_steps_begin_and_end_with_a_sample_of_the_links(tmp_path, monkeypatch):
    taken = []

    class Sampler:
        def __init__(self, node, segment):
            self.segment = segment

        def start(self): ...

        def sample_links(self):
            taken.append(self.segment())

    monkeypatch.setattr(node_telemetry, "HardwareSampler", Sampler)
    attempt = RunDir(tmp_path).attempt(0)
    telemetry = node_telemetry.NodeTelemetry(attempt, GLOO_WORLD, TelemetryConfig(gpu_every_s=60))
    telemetry.start(lambda: None, lambda: True)
    telemetry.warmed_up()
    with telemetry.outside_steps():
        assert taken == [0, 0]
    assert taken == [0, 0, 1]


@pytest.mark.parametrize("name", ["no.such:FAN", f"{__name__}:NONE", f"{__name__}:WITHIN_S", "FAN"])
def test_a_row_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match=r"telemetry\.fields="):
        load_field(name)
