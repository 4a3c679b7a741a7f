"""NVML readings, replayed: each field alone, what is refused, a GPU that is lost; samples, tallies, files."""

import json
import os
import sys
import threading

import pynvml
import pytest
import torch

from disttrain import log
from disttrain.records import FILES
from disttrain.rundir import RunDir, read_json, read_jsonl
from disttrain.samples import GpuSample, HostSample
from disttrain.telemetry import figures, host, node_sampler
from disttrain.telemetry.gpu import GpuId, GpuReader, Nvml, Unavailable, identify, throttle_names
from disttrain.telemetry.node_sampler import LocalRank, NodeSampler
from disttrain.telemetry.usage import GpuTally, HostTally, gpu_usage, process_usage
from tests.support import nvml

WELL, LOST = "GPU-5a2c0b6e-9d1f-4e3a-8b7c-1f2e3d4c5b6a", "GPU-77d1e0aa-0c2b-4f7d-9a55-6b8c9d0e1f2a"
BUS = "00000000:1b:00.0"


@pytest.fixture
def replay(monkeypatch):
    """Puts a session in the place of `pynvml`: called with changes to the recorded one."""

    def put(change=lambda session: None):
        session = nvml.load()
        change(session)
        fake = nvml.module(session)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return put


def read(uuid=WELL, times=(10.0, 11.0, 12.0, 13.0)):
    reader = GpuReader(Nvml(), GpuId(uuid, None), [0])
    return reader, [reader.read(now) for now in times]


def test_each_field_as_the_driver_means_it(replay):
    replay()
    reader, (first, second, third, fourth) = read()
    device = reader.device
    assert (device.name, device.memory_total_bytes) == ("NVIDIA H100 80GB HBM3", 85_520_809_984)
    assert (device.sm_clock_max_mhz, device.power_limit_w) == (1980, 700)
    assert first["utilization"] == 0.35
    assert first["power_w"] == pytest.approx(118.25)
    assert [s["energy_j"] for s in (first, second, fourth)] == [0.0, 512.0, 1839.0]
    assert third["sm_clock_mhz"] == 1485
    assert second["temperature_c"] == 52
    assert [s["ecc_corrected"] for s in (first, fourth)] == [3, 4]
    assert [s["xids"] for s in (first, second, third)] == [[], [], [94]]


def test_throttle_reasons_have_names(replay):
    replay()
    _, samples = read()
    assert [s["throttle"] for s in samples] == [
        ["idle"],
        [],
        ["power_cap"],
        ["power_cap", "hw_slowdown", "sw_thermal"],
    ]
    assert throttle_names(0x1004) == ["power_cap", "0x1000"]


def test_rates_are_growth_over_time_and_null_where_there_is_none(replay):
    replay()
    _, samples = read(times=(10.0, 12.0, 13.0, 14.0))
    assert [s["nvlink_tx_bytes_per_s"] for s in samples] == [None, 512_000_000, 2_048_000_000, 0]
    assert [s["nvlink_rx_bytes_per_s"] for s in samples] == [None, 256_000_000, None, 0]  # began anew


def test_a_refused_field_is_null_with_its_reason_and_is_asked_once(replay):
    fake = replay()
    reader, samples = read()
    assert [s["ecc_uncorrected"] for s in samples] == [None] * 4
    assert reader.device.unsupported == {"ecc_uncorrected": "Insufficient Permissions"}
    assert fake.asked[WELL]["nvmlDeviceGetTotalEccErrors 1 0"] == 1


def test_a_passing_error_costs_one_value(replay):
    replay()
    reader, samples = read()
    assert [s["utilization"] for s in samples] == [0.35, 0.98, None, 1.0]
    assert reader.device.errors == {"utilization": "Unknown Error"}
    assert "utilization" not in reader.device.unsupported


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ValueError("odd")])
def test_what_the_binding_trips_over_costs_that_value_alone(replay, error):
    fake = replay()
    fake.nvmlDeviceGetName = fake.nvmlDeviceGetPowerUsage = fake.nvmlEventSetWait_v2 = raising(error)
    reader, samples = read()
    assert [s["power_w"] for s in samples] == [s["xids"] for s in samples] == [None] * 4
    assert samples[0]["utilization"] == 0.35
    assert (reader.device.name, reader.device.power_limit_w) == (None, 700)
    text = f"{type(error).__name__}: {error}"
    assert {field: reader.device.errors[field] for field in ("name", "power_w", "xids")} == dict.fromkeys(
        ("name", "power_w", "xids"), text
    )
    assert not {"name", "power_w"} & set(reader.device.unsupported)


def raising(error):
    def call(*_):
        raise error

    return call


def test_older_names_of_a_call_are_tried(replay):
    fake = replay()
    reader, _ = read()
    assert fake.asked[WELL]["nvmlDeviceGetCurrentClocksEventReasons"] == 1
    assert fake.asked[WELL]["nvmlDeviceGetCurrentClocksThrottleReasons"] == 4
    del fake.nvmlDeviceGetTemperatureV  # as in an old pynvml
    reader, samples = read()
    assert samples[0]["temperature_c"] is not None
    assert "temperature_c" not in reader.device.unsupported


def test_pcie_is_measured_now_and_then_where_its_counter_has_32_bits(replay):
    fake = replay()
    reader, samples = read(times=range(12))
    assert [s["pcie_tx_bytes_per_s"] for s in samples] == [1_500_000, *[None] * 9, 2_500_000, None]
    assert samples[0]["pcie_rx_bytes_per_s"] == 700_000
    assert reader.device.pcie_method == "20 ms in every 10th sample"
    assert fake.asked[WELL]["nvmlDeviceGetPcieThroughput 0"] == 2
    assert "pcie_tx_bytes_per_s" not in reader.device.unsupported


def test_pcie_from_its_counter_where_there_is_one(replay):
    def counting(session):
        calls = session["gpus"][WELL]["calls"]
        for field in (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES):
            calls[f"nvmlDeviceGetFieldValues {field} 0"] = [{"value": n * 10**9, "type": 3} for n in range(4)]

    replay(counting)
    reader, samples = read()
    assert [s["pcie_rx_bytes_per_s"] for s in samples] == [None, 10**9, 10**9, 10**9]
    assert reader.device.pcie_method == "counter"


def test_a_device_that_tells_nothing_gives_nulls_and_reasons(replay):
    replay(lambda session: session["gpus"][WELL].update(calls={}))
    reader, samples = read()
    assert set(samples[1].values()) == {None}
    assert set(reader.device.unsupported) >= set(samples[1]) - {"xids"}
    assert reader.device.pcie_method is None


def test_a_lost_gpu_ends_its_own_samples_only(replay):
    fake = replay()
    reader, samples = read(LOST)
    assert reader.lost
    assert reader.device.lost == "GPU is lost"
    asked = dict(fake.asked[LOST])
    assert set(reader.read(20.0).values()) == {None}
    assert fake.asked[LOST] == asked
    assert samples[1]["power_w"] == 500


def test_gpus_are_found_by_uuid_or_bus_never_by_index(replay):
    replay().nvmlDeviceGetHandleByIndex = pytest.fail
    assert GpuReader(Nvml(), GpuId("GPU-of-a-slice", BUS), [0]).device.name
    with pytest.raises(Unavailable, match=r"GPU-none: Not Found, 00000000:ff:00\.0: Not Found"):
        Nvml().find(GpuId("GPU-none", "00000000:ff:00.0"))


def test_torch_devices_in_nvmls_spelling(monkeypatch):
    class Known:
        uuid = "5a2c0b6e-9d1f-4e3a-8b7c-1f2e3d4c5b6a"
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x1B, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Known)
    assert identify(torch.device("cuda", 3)) == GpuId(WELL, BUS)
    assert identify(torch.device("cpu")) is None


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_nvml_the_reason_is_one_line(replay, code):
    replay(lambda session: session.update(init={"error": code}))
    with pytest.raises(Unavailable) as caught:
        Nvml()
    assert "\n" not in str(caught.value)


def test_a_recording_replays_to_the_same(replay, monkeypatch):
    recording = nvml.Recording(replay())
    monkeypatch.setitem(sys.modules, "pynvml", recording)
    _, samples = read()
    session = json.loads(json.dumps(recording.session))
    monkeypatch.setitem(sys.modules, "pynvml", nvml.module(session))
    assert read()[1] == samples


# Samples of a node


class Rounds:
    """Lets the sampler's thread take one round at a time."""

    def __init__(self, monkeypatch, ranks, attempt, every_s=1.0):
        self.stretch = 0
        self.sampler = NodeSampler(attempt, ranks, every_s, lambda: self.stretch)
        self.taken = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

        def wait(_):
            self.taken.release()
            self.go.acquire()

        monkeypatch.setattr(self.sampler._asked_to_end, "wait", wait)
        self.sampler.start()
        assert self.taken.acquire(timeout=20)

    def next(self, stretch=0):
        self.stretch = stretch
        self.go.release()
        assert self.taken.acquire(timeout=20)

    def end(self, stretch=0):
        self.stretch = stretch
        self.sampler._asked_to_end.set()
        self.go.release()
        self.sampler.close()
        assert not self.sampler._thread.is_alive()


def ranks_on(*gpus):
    return [LocalRank(i, 0, os.getpid(), gpu, origin_s=0.0) for i, gpu in enumerate(gpus)]


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
    usage, _ = gpu_usage(rounds.sampler.usage().gpus)
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
    assert len(rounds.sampler.usage().gpus) == 1


def test_a_gpu_counts_once_however_many_ranks_and_nodes_share_it(replay, tmp_path, monkeypatch):
    """Two nodes of one machine share a GPU; another one has no UUID, so it is told apart by its node."""
    places = [(0, WELL), (0, WELL), (1, WELL), (0, LOST), (0, None), (1, None)]
    gpus = [LocalRank(i, node, 1, GpuId(uuid, "00:1"), 0.0) for i, (node, uuid) in enumerate(places)]
    assert len({rank.device for rank in gpus}) == 4
    assert len({LocalRank(i, 0, 1, None, 0.0).device for i in range(3)}) == 3

    replay()
    usages = []
    for node in (0, 1):
        rounds = Rounds(monkeypatch, [gpus[2 * node]], RunDir(tmp_path).attempt(node))
        rounds.end()
        usages.append(rounds.sampler.usage())
    fields, _ = figures.usage(usages, 1.0)
    assert fields["gpu"].gpus == 1
    assert fields["gpu"].samples == usages[0].gpus[0].samples
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
    rounds.sampler._asked_to_end.set()
    rounds.go.release()


def test_without_nvml_nothing_is_written_of_gpus(replay, tmp_path, monkeypatch):
    replay(lambda session: session.update(init={"error": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}))
    attempt = RunDir(tmp_path).attempt(0)
    rounds = Rounds(monkeypatch, ranks_on(GpuId(WELL, None)), attempt)
    rounds.end()
    assert not attempt.gpu_samples(0).exists()
    assert not attempt.gpu_devices(0).exists()
    usage = rounds.sampler.usage()
    assert (usage.gpus, usage.gpu_reason) == ([], "NVML: NVML Shared Library Not Found")
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


def test_when_nothing_can_be_sampled_the_thread_ends(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(log, "error", lambda message, **fields: told.append((message, fields["error"])))
    monkeypatch.setattr(node_sampler, "host_memory", lambda: 1 / 0)
    monkeypatch.setattr(node_sampler, "_Gpus", raising(ValueError("odd")))
    sampler = NodeSampler(RunDir(tmp_path).attempt(0), ranks_on(None), 0.01, lambda: None)
    sampler.start()
    sampler._thread.join(20)
    assert not sampler._thread.is_alive()
    assert told == [("sampling ended", "odd"), ("sampling ended", "division by zero")]


def test_a_gpu_that_cannot_be_opened_or_read_costs_the_others_nothing(replay, tmp_path, monkeypatch):
    fake = replay()
    real_read, real_look = GpuReader.read, fake.nvmlDeviceGetHandleByUUID

    def read_or_raise(reader, now):
        return raising(TypeError("odd counter"))() if reader.device.uuid == LOST else real_read(reader, now)

    def look_or_raise(uuid):
        return raising(ValueError("odd name"))() if uuid == "GPU-odd" else real_look(uuid)

    monkeypatch.setattr(GpuReader, "read", read_or_raise)
    fake.nvmlDeviceGetHandleByUUID = look_or_raise
    attempt = RunDir(tmp_path).attempt(0)
    gpus = (GpuId("GPU-odd", None), GpuId(LOST, None), GpuId(WELL, None))
    rounds = Rounds(monkeypatch, ranks_on(*gpus), attempt)
    rounds.end()
    assert rounds.sampler.usage().gpu_reason == "GPU-odd: ValueError: odd name"
    assert [line["rank"] for line in read_jsonl(attempt.gpu_samples(0))] == [2, 2]
    devices = read_json(attempt.gpu_devices(0))["gpus"]
    assert [device["errors"] for device in devices] == [{"sample": "TypeError: odd counter"}, {}]
    assert len(list(read_jsonl(attempt.host_samples(0)))) == 6


def test_a_driver_that_never_answers_does_not_hold_the_end(replay, tmp_path, monkeypatch):
    fake = replay()
    asked, answer = threading.Event(), threading.Event()

    def hang(_):
        asked.set()
        answer.wait()

    fake.nvmlDeviceGetPowerUsage = hang
    monkeypatch.setattr(node_sampler, "CLOSE_S", 0.01)
    sampler = NodeSampler(RunDir(tmp_path).attempt(0), ranks_on(GpuId(WELL, None)), 0.01, lambda: None)
    sampler.start()
    assert asked.wait(20)
    sampler.usage()  # no lock is held meanwhile
    sampler.close()
    assert sampler._thread.is_alive()
    answer.set()
    sampler._thread.join(20)


def test_long_runs_write_ever_fewer_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(node_sampler, "LINES_AT_FULL_RATE", 10)
    lines = node_sampler._Lines(tmp_path / "x.jsonl")
    for index in range(1000):
        lines.add([HostSample.model_construct(rank=index)])
    lines.close()
    kept = [line["rank"] for line in read_jsonl(tmp_path / "x.jsonl")]
    assert kept[:12] == [*range(10), 10, 12]
    assert 60 <= len(kept) <= 80


# Figures


def gpu_sample(at_s, **values):
    empty = dict.fromkeys(GpuSample.model_fields)
    return GpuSample.model_construct(**empty | {"rank": 0, "at_s": at_s, "time": 0.0} | values)


def test_only_measured_samples_count_and_counters_within_a_stretch():
    tally = GpuTally("gpu", 2000.0)
    samples = [  # at_s, stretch, energy, power, utilization
        (0.0, None, 0.0, 900.0, 0.0),  # warm-up
        (1.0, 0, 100.0, 300.0, 0.8),
        (2.0, 0, 400.0, 500.0, 1.0),
        (3.0, None, 1000.0, 100.0, 0.0),  # a validation
        (4.0, 1, 1100.0, 400.0, 0.9),
        (6.0, 1, 1900.0, 400.0, 0.9),
    ]
    for at_s, stretch, energy, power, busy in samples:
        tally.add(gpu_sample(at_s, energy_j=energy, power_w=power, utilization=busy), stretch)
    usage, reasons = gpu_usage([tally])
    assert usage.energy_j == 300 + 800
    assert usage.sampled_s == 1 + 2
    assert usage.power_mean_w == 400
    assert usage.power_max_w == 500
    assert usage.utilization == pytest.approx(0.9)
    assert reasons["gpu.ecc_corrected"] == "no GPU told it"
    assert usage.throttled is None


def test_usage_over_gpus():
    one, two = GpuTally("one", 2000.0), GpuTally("two", 1000.0)
    for at_s in (0.0, 1.0):
        one.add(
            gpu_sample(at_s, energy_j=at_s * 100, power_w=100, sm_clock_mhz=1500, throttle=["power_cap"]), 0
        )
        two.add(gpu_sample(at_s, energy_j=at_s * 300, power_w=300, sm_clock_mhz=1000, throttle=[]), 0)
    one.add(gpu_sample(2.0, ecc_corrected=5, xids=[48, 48], temperature_c=80), None)
    two.add(gpu_sample(2.0, ecc_corrected=1), None)
    two.add(gpu_sample(3.0, ecc_corrected=4, xids=[]), None)
    usage, _ = gpu_usage([one, two])
    assert (usage.energy_j, usage.power_mean_w, usage.power_max_w) == (400, 200, 300)
    assert (usage.sm_clock_ratio_min, usage.sm_clock_ratio_mean) == (0.75, 0.875)
    assert usage.throttled == {"power_cap": 0.5}
    assert (usage.ecc_corrected, usage.xids, usage.temperature_max_c) == (3, {"48": 2}, 80)
    assert usage.sampled_s == 1.0


def test_figures_without_samples_are_null_with_a_reason():
    tally = GpuTally("gpu", 2000.0)
    tally.add(gpu_sample(0.0, energy_j=0.0), None)
    usage, reasons = gpu_usage([tally])
    assert (usage.energy_j, usage.power_mean_w) == (None, None)
    assert reasons["gpu.power_mean_w"] == "no sample fell into measured steps"
    tally.add(gpu_sample(1.0, energy_j=5.0), 0)
    usage, reasons = gpu_usage([tally])
    assert usage.energy_j is None
    assert reasons["gpu.energy_j"] == "a GPU without two samples in one stretch of measured steps"
    other = GpuTally("gpu", 2000.0)
    for at_s in (0.0, 1.0):
        other.add(gpu_sample(at_s), 0)
    assert gpu_usage([other])[1]["gpu.energy_j"] == "a GPU without an energy counter"


def test_processes_of_the_system():
    reader = host.ProcessReader(os.getpid())
    first, second = reader.read(), reader.read()
    assert first["cpu_percent"] is None
    assert second["cpu_percent"] is not None
    assert second["rss_bytes"] > 1e6
    assert second["threads"] >= 1
    assert host.host_memory()["host_memory_total_bytes"] > host.host_memory()["host_memory_used_bytes"]


def test_a_reading_of_a_process_that_fails_is_null_with_the_reason_and_costs_no_other(monkeypatch):
    monkeypatch.setattr(host.psutil.Process, "num_threads", raising(ValueError("a line of /proc")))
    reader = host.ProcessReader(os.getpid())
    told = [reader.read() for _ in range(2)][1]
    assert told["threads"] is None
    assert told["rss_bytes"] > 1e6
    assert told["cpu_percent"] is not None
    tally = HostTally(reader.errors)
    empty = dict.fromkeys(HostSample.model_fields)
    tally.add(HostSample.model_construct(**empty | told), 0)
    usage, reasons = process_usage([tally])
    assert (usage.threads_max, usage.rss_peak_bytes) == (None, told["rss_bytes"])
    assert reasons["processes.threads_max"] == "ValueError: a line of /proc"
    assert reasons["processes.host_memory_used_peak"] == "the system did not tell"


def test_a_process_that_is_gone_or_a_system_that_fails_gives_nulls(monkeypatch):
    assert host.ProcessReader(2**22 + 1).read() == {"cpu_percent": None, "rss_bytes": None, "threads": None}

    def denied():
        raise host.psutil.AccessDenied

    monkeypatch.setattr(host.psutil, "virtual_memory", denied)
    assert set(host.host_memory().values()) == {None}


def test_usage_of_processes():
    tally = HostTally()
    for stretch, cpu, rss in ((None, 500.0, 9), (0, 100.0, 5), (0, 300.0, 7)):
        fields = {"cpu_percent": cpu, "rss_bytes": rss, "threads": 3}
        fields |= {"host_memory_used_bytes": 30, "host_memory_total_bytes": 120}
        tally.add(HostSample.model_construct(rank=0, at_s=0.0, time=0.0, **fields), stretch)
    usage, reasons = process_usage([tally])
    assert (usage.samples, usage.cpu_percent, usage.rss_peak_bytes) == (2, 200, 9)
    assert usage.host_memory_used_peak == 0.25
    assert reasons == {}
    assert process_usage([HostTally()])[1]["processes.cpu_percent"] == "no sample fell into measured steps"
