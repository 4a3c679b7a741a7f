"""What samples of GPUs and processes add up to, and how a process is read."""

import os
from types import SimpleNamespace

import psutil
import pytest

from disttrain.hardware import statistics
from disttrain.hardware.fields import FIELDS
from disttrain.hardware.readings import Readings
from disttrain.hardware.statistics import DeviceSamples
from disttrain.records.hardware import GpuDevice, GpuSample, GpuSummary, HostSample, ProcessSummary
from tests.support.nvml import raising

GPU_FIELDS = [row for row in FIELDS if row.of == "gpu"]
PROCESS_FIELDS = [row for row in FIELDS if row.of in ("process", "host")]
KEYS = {"schema_version", "rank", "at_s", "time"}
COUNTS = {"schema_version", "gpus", "gpus_lost", "ranks", "samples", "sampled_s"}


@pytest.mark.parametrize(
    ("fields", "sample", "summary"),
    [(GPU_FIELDS, GpuSample, GpuSummary), (PROCESS_FIELDS, HostSample, ProcessSummary)],
)
def test_the_table_has_every_field_of_the_records_and_no_other(fields, sample, summary):
    figures = [name for each in fields for name in each.figures]
    assert {each.name for each in fields if each.constant} <= set(GpuDevice.model_fields)
    assert {each.name for each in fields if not each.constant} == set(sample.model_fields) - KEYS
    assert sorted(figures) == sorted(set(summary.model_fields) - COUNTS)


class Gpu(DeviceSamples):
    """A GPU of this maximal clock."""

    def __init__(self, mhz=2000.0):
        super().__init__(constants={"sm_clock_max_mhz": mhz})

    def take(self, at_s, segment, **values):
        self.add(GPU_FIELDS, {"at_s": at_s, **values}, segment)


def gpu_summary(gpus):
    return statistics.gpu_summary(FIELDS, gpus)


def process_summary(ranks):
    return statistics.process_summary(FIELDS, ranks)


def test_only_measured_samples_count_and_counters_within_a_stretch():
    tally = Gpu()
    samples = [  # at_s, segment, energy, power, utilization
        (0.0, None, 0.0, 900.0, 0.0),  # warm-up
        (1.0, 0, 100.0, 300.0, 0.8),
        (2.0, 0, 400.0, 500.0, 1.0),
        (3.0, None, 1000.0, 100.0, 0.0),  # a validation
        (4.0, 1, 1100.0, 400.0, 0.9),
        (6.0, 1, 1900.0, 400.0, 0.9),
    ]
    for at_s, segment, energy, power, busy in samples:
        tally.take(at_s, segment, energy_j=energy, power_w=power, utilization=busy)
    usage, reasons = gpu_summary([tally])
    assert usage.energy_j == 300 + 800
    assert usage.sampled_s == 1 + 2
    assert usage.power_mean_w == 400
    assert usage.power_max_w == 500
    assert usage.utilization == pytest.approx(0.9)
    assert reasons["gpu.ecc_corrected"] == "no GPU reports it"
    assert usage.throttled is None


def test_usage_over_gpus():
    one, two = (
        Gpu(),
        Gpu(1000.0),
    )
    for at_s in (0.0, 1.0):
        one.take(at_s, 0, energy_j=at_s * 100, power_w=100, sm_clock_mhz=1500, throttle=["power_cap"])
        two.take(at_s, 0, energy_j=at_s * 300, power_w=300, sm_clock_mhz=1000, throttle=[])
    one.take(2.0, None, ecc_corrected=5, xids=[48, 48], temperature_c=80)
    two.take(2.0, None, ecc_corrected=1)
    two.take(3.0, None, ecc_corrected=4, xids=[])
    usage, _ = gpu_summary([one, two])
    assert (usage.energy_j, usage.power_mean_w, usage.power_max_w) == (400, 200, 300)
    assert (usage.sm_clock_ratio_min, usage.sm_clock_ratio_mean) == (0.75, 0.875)
    assert usage.throttled == {"power_cap": 0.5}
    assert (usage.ecc_corrected, usage.xids, usage.temperature_max_c) == (3, {"48": 2}, 80)
    assert usage.sampled_s == 1.0


def test_figures_without_samples_are_null_with_a_reason():
    tally = Gpu()
    tally.take(0.0, None, energy_j=0.0)
    usage, reasons = gpu_summary([tally])
    assert (usage.energy_j, usage.power_mean_w) == (None, None)
    assert reasons["gpu.power_mean_w"] == "no sample fell into measured steps"
    tally.take(1.0, 0, energy_j=5.0)
    usage, reasons = gpu_summary([tally])
    assert usage.energy_j is None
    assert reasons["gpu.energy_j"] == "a device without two samples in one segment"
    other = Gpu()
    for at_s in (0.0, 1.0):
        other.take(at_s, 0)
    assert gpu_summary([other])[1]["gpu.energy_j"] == "no GPU reports it"
    assert gpu_summary([tally, other])[1]["gpu.energy_j"] == "a device without two samples in one segment"


def process(pid=None):
    own = [row for row in FIELDS if row.of == "process"]
    return Readings(own, psutil, psutil.Process(pid or os.getpid()))


def test_processes_of_the_system():
    reader, host = process(), Readings([row for row in FIELDS if row.of == "host"], psutil, frozenset({0}))
    first, second = reader.read(1.0), reader.read(2.0)
    assert first["cpu_percent"] is None
    assert 0 <= second["cpu_percent"] < 10_000
    assert second["rss_bytes"] > 1e6
    assert second["threads"] >= 1
    values = host.read(1.0)
    assert values["host_memory_total_bytes"] > values["host_memory_used_bytes"] > 0
    assert values["host_cpu_percent"] is None


@pytest.mark.parametrize(("counted", "percent"), [({0, 2}, 150.0), ({0, 1, 2}, 249.0), ({0, 64}, 249.0)])
def test_processors_of_the_job_count_all_processes(monkeypatch, counted, percent):
    """Another job keeps processor 1 busy; processor 64 is hidden."""
    busy = iter([(10.0, 100.0), (11.5, 101.0)])

    def read(percpu):
        assert percpu
        user, at_s = next(busy)
        seconds = (user, 0.99 * at_s, 7.0)
        return [SimpleNamespace(user=each, nice=0.0, system=2.0, idle=500.0) for each in seconds]

    monkeypatch.setattr(psutil, "cpu_times", read)
    host = Readings([row for row in FIELDS if row.name == "host_cpu_percent"], psutil, frozenset(counted))
    values = [host.read(now)["host_cpu_percent"] for now in (100.0, 101.0, 102.0)]
    assert values == [None, percent, None], "at last an error: StopIteration"


def test_a_reading_of_a_process_that_fails_is_null_with_the_reason_and_costs_no_other(monkeypatch):
    monkeypatch.setattr(psutil.Process, "num_threads", raising(ValueError("a line of /proc")))
    reader = process()
    told = [reader.read(now) for now in (1.0, 2.0)][1]
    assert told["threads"] is None
    assert told["rss_bytes"] > 1e6
    assert told["cpu_percent"] is not None
    tally = reader.samples
    tally.add(PROCESS_FIELDS, {"at_s": 0.0, **told}, 0)
    usage, reasons = process_summary([tally])
    assert (usage.threads_max, usage.rss_peak_bytes) == (None, told["rss_bytes"])
    assert reasons["processes.threads_max"] == "ValueError: a line of /proc"
    assert reasons["processes.host_memory_used_peak"] == "the system does not report it"


def test_a_system_that_fails_gives_nulls(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", raising(psutil.AccessDenied()))
    host = Readings([row for row in FIELDS if row.name.startswith("host_memory")], psutil, frozenset({0}))
    assert set(host.read(1.0).values()) == {None}


def test_usage_of_processes():
    tally = DeviceSamples()
    for segment, cpu, rss in ((None, 500.0, 9), (0, 100.0, 5), (0, 300.0, 7)):
        fields = {"cpu_percent": cpu, "rss_bytes": rss, "threads": 3}
        fields |= {"host_memory_used_bytes": 30, "host_memory_total_bytes": 120}
        tally.add(PROCESS_FIELDS, {"at_s": 0.0, **fields}, segment)
    usage, reasons = process_summary([tally])
    assert (usage.samples, usage.cpu_percent, usage.rss_peak_bytes) == (2, 200, 9)
    assert usage.host_memory_used_peak == 0.25
    assert reasons == {}
    assert (
        process_summary([DeviceSamples()])[1]["processes.cpu_percent"] == "no sample fell into measured steps"
    )
