"""What samples of GPUs and processes add up to, and how a process is read."""

import os
from types import SimpleNamespace

import pytest

from disttrain.hardware import host
from disttrain.hardware.aggregation import (
    GpuAccumulator,
    ProcessAccumulator,
    gpu_summary,
    process_summary,
)
from disttrain.hardware.sampled_fields import GPU_FIELDS, PROCESS_FIELDS
from disttrain.records.hardware import GpuSample, GpuSummary, HostSample, ProcessSummary
from tests.support.nvml import raising

KEYS = {"schema_version", "rank", "at_s", "time"}
COUNTS = {"schema_version", "gpus", "gpus_lost", "ranks", "samples", "sampled_s"}


@pytest.mark.parametrize(
    ("fields", "sample", "summary"),
    [(GPU_FIELDS, GpuSample, GpuSummary), (PROCESS_FIELDS, HostSample, ProcessSummary)],
)
def test_the_table_has_every_field_of_the_records_and_no_other(fields, sample, summary):
    figures = [figure.name for each in fields for figure in each.figures]
    assert {each.name for each in fields} == set(sample.model_fields) - KEYS
    assert sorted(figures) == sorted(set(summary.model_fields) - COUNTS)


def gpu_sample(at_s, **values):
    empty = dict.fromkeys(GpuSample.model_fields)
    return GpuSample.model_construct(**empty | {"rank": 0, "at_s": at_s, "time": 0.0} | values)


def test_only_measured_samples_count_and_counters_within_a_stretch():
    tally = GpuAccumulator({"sm_clock_max_mhz": 2000.0}, device="gpu")
    samples = [  # at_s, segment, energy, power, utilization
        (0.0, None, 0.0, 900.0, 0.0),  # warm-up
        (1.0, 0, 100.0, 300.0, 0.8),
        (2.0, 0, 400.0, 500.0, 1.0),
        (3.0, None, 1000.0, 100.0, 0.0),  # a validation
        (4.0, 1, 1100.0, 400.0, 0.9),
        (6.0, 1, 1900.0, 400.0, 0.9),
    ]
    for at_s, segment, energy, power, busy in samples:
        tally.add(gpu_sample(at_s, energy_j=energy, power_w=power, utilization=busy), segment)
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
        GpuAccumulator({"sm_clock_max_mhz": 2000.0}, device="one"),
        GpuAccumulator({"sm_clock_max_mhz": 1000.0}, device="two"),
    )
    for at_s in (0.0, 1.0):
        one.add(
            gpu_sample(at_s, energy_j=at_s * 100, power_w=100, sm_clock_mhz=1500, throttle=["power_cap"]), 0
        )
        two.add(gpu_sample(at_s, energy_j=at_s * 300, power_w=300, sm_clock_mhz=1000, throttle=[]), 0)
    one.add(gpu_sample(2.0, ecc_corrected=5, xids=[48, 48], temperature_c=80), None)
    two.add(gpu_sample(2.0, ecc_corrected=1), None)
    two.add(gpu_sample(3.0, ecc_corrected=4, xids=[]), None)
    usage, _ = gpu_summary([one, two])
    assert (usage.energy_j, usage.power_mean_w, usage.power_max_w) == (400, 200, 300)
    assert (usage.sm_clock_ratio_min, usage.sm_clock_ratio_mean) == (0.75, 0.875)
    assert usage.throttled == {"power_cap": 0.5}
    assert (usage.ecc_corrected, usage.xids, usage.temperature_max_c) == (3, {"48": 2}, 80)
    assert usage.sampled_s == 1.0


def test_figures_without_samples_are_null_with_a_reason():
    tally = GpuAccumulator({"sm_clock_max_mhz": 2000.0}, device="gpu")
    tally.add(gpu_sample(0.0, energy_j=0.0), None)
    usage, reasons = gpu_summary([tally])
    assert (usage.energy_j, usage.power_mean_w) == (None, None)
    assert reasons["gpu.power_mean_w"] == "no sample fell into measured steps"
    tally.add(gpu_sample(1.0, energy_j=5.0), 0)
    usage, reasons = gpu_summary([tally])
    assert usage.energy_j is None
    assert reasons["gpu.energy_j"] == "a GPU without two samples in one segment of measured steps"
    other = GpuAccumulator({"sm_clock_max_mhz": 2000.0}, device="gpu")
    for at_s in (0.0, 1.0):
        other.add(gpu_sample(at_s), 0)
    assert gpu_summary([other])[1]["gpu.energy_j"] == "a GPU without an energy counter"


def test_processes_of_the_system():
    reader = host.ProcessReader(os.getpid())
    first, second = reader.read(), reader.read()
    assert first["cpu_percent"] is None
    assert second["cpu_percent"] is not None
    assert second["rss_bytes"] > 1e6
    assert second["threads"] >= 1
    assert host.host_memory()["host_memory_total_bytes"] > host.host_memory()["host_memory_used_bytes"]


@pytest.mark.parametrize(("counted", "percent"), [({0, 2}, 150.0), ({0, 1, 2}, 249.0), ({0, 64}, 249.0)])
def test_processors_of_the_job_count_all_processes(monkeypatch, counted, percent):
    """Another job keeps processor 1 busy; processor 64 is hidden."""
    busy = iter([(10.0, 100.0), (11.5, 101.0)])

    def read(percpu):
        assert percpu
        user, at_s = next(busy)
        monkeypatch.setattr(host.time, "monotonic", lambda: at_s)
        seconds = (user, 0.99 * at_s, 7.0)
        return [SimpleNamespace(user=each, nice=0.0, system=2.0, idle=500.0) for each in seconds]

    monkeypatch.setattr(host.psutil, "cpu_times", read)
    processors = host.HostProcessors(counted)
    assert processors.percent() is None
    assert processors.percent() == percent
    assert processors.percent() is None  # an error: StopIteration


def test_a_reading_of_a_process_that_fails_is_null_with_the_reason_and_costs_no_other(monkeypatch):
    monkeypatch.setattr(host.psutil.Process, "num_threads", raising(ValueError("a line of /proc")))
    reader = host.ProcessReader(os.getpid())
    told = [reader.read() for _ in range(2)][1]
    assert told["threads"] is None
    assert told["rss_bytes"] > 1e6
    assert told["cpu_percent"] is not None
    tally = ProcessAccumulator(errors=reader.errors)
    empty = dict.fromkeys(HostSample.model_fields)
    tally.add(HostSample.model_construct(**empty | told), 0)
    usage, reasons = process_summary([tally])
    assert (usage.threads_max, usage.rss_peak_bytes) == (None, told["rss_bytes"])
    assert reasons["processes.threads_max"] == "ValueError: a line of /proc"
    assert reasons["processes.host_memory_used_peak"] == "the system does not report it"


def test_a_process_that_is_gone_or_a_system_that_fails_gives_nulls(monkeypatch):
    assert host.ProcessReader(2**22 + 1).read() == {"cpu_percent": None, "rss_bytes": None, "threads": None}

    def denied():
        raise host.psutil.AccessDenied

    monkeypatch.setattr(host.psutil, "virtual_memory", denied)
    assert set(host.host_memory().values()) == {None}


def test_usage_of_processes():
    tally = ProcessAccumulator()
    for segment, cpu, rss in ((None, 500.0, 9), (0, 100.0, 5), (0, 300.0, 7)):
        fields = {"cpu_percent": cpu, "rss_bytes": rss, "threads": 3}
        fields |= {"host_memory_used_bytes": 30, "host_memory_total_bytes": 120}
        tally.add(HostSample.model_construct(rank=0, at_s=0.0, time=0.0, **fields), segment)
    usage, reasons = process_summary([tally])
    assert (usage.samples, usage.cpu_percent, usage.rss_peak_bytes) == (2, 200, 9)
    assert usage.host_memory_used_peak == 0.25
    assert reasons == {}
    assert (
        process_summary([ProcessAccumulator()])[1]["processes.cpu_percent"]
        == "no sample fell into measured steps"
    )
