"""Figures of a run from samples of GPUs and processes, and readings of processes and hosts."""

import os
from types import SimpleNamespace

import psutil
import pytest

from disttrain.hardware.fields import FIELDS
from disttrain.hardware.readings import Readings
from disttrain.hardware.statistics import NOT_IN_MEASURED_STEPS, DeviceSamples, gpu_summary, process_summary
from disttrain.records.hardware import GpuDevice, GpuSample, GpuSummary, HostSample, ProcessSummary
from tests.support.nvml import raising


def rows(*of):
    return [row for row in FIELDS if row.of in of]


@pytest.mark.parametrize(
    ("fields", "sample", "summary"),
    [(rows("gpu"), GpuSample, GpuSummary), (rows("process", "host"), HostSample, ProcessSummary)],
)
def test_the_table_has_every_field_of_the_records_and_no_other(fields, sample, summary):
    keys = {"schema_version", "rank", "at_s", "time"}
    counts = {"schema_version", "gpus", "gpus_lost", "ranks", "samples", "sampled_s"}
    assert {row.name for row in fields if row.constant} <= set(GpuDevice.model_fields)
    assert {row.name for row in fields if not row.constant} == set(sample.model_fields) - keys
    figures = sorted(name for row in fields for name in row.figures)
    assert figures == sorted(set(summary.model_fields) - counts)


NAMES = ("energy_j", "power_w", "sm_clock_mhz", "throttle", "ecc_corrected", "xids")


def gpu(mhz, *samples):
    """A GPU of this maximal clock with samples: time, segment, and values of the first `NAMES`."""
    made = DeviceSamples(constants={"sm_clock_max_mhz": mhz})
    for at_s, segment, *values in samples:
        made.add(rows("gpu"), {"at_s": at_s} | dict(zip(NAMES, values, strict=False)), segment)
    return made


BUSY = gpu(
    2000,
    (0, None, 0, 900, 100, ["idle"], 3),  # warm-up
    (1, 0, 100, 100, 1500, ["power_cap"]),
    (2, 0, 400, 150, 1500, ["power_cap"]),
    (3, None, 1000, 0, 100, ["idle"], 5, [48, 48]),  # a validation
    (4, 1, 1100, 250, 1500, []),
    (6, 1, 1900),
    (7, 1, None),
    (8, 1, 9000),  # no growth is known after a reading that failed
    (9, 1, 10),  # reset
)
CALM = gpu(1000, (0, 0, 0, 300, 1000, []), (1, 0, 300, 300, 1000, [], 1), (2, None, 0, 0, 0, [], 4, []))


def test_measured_samples_count_and_counters_grow_within_a_segment():
    usage, reasons = gpu_summary(FIELDS, [BUSY, CALM])
    assert (usage.energy_j, usage.sampled_s) == (300 + 800 + 300, (1 + 5 + 1) / 2)
    assert (usage.power_mean_w, usage.power_max_w) == (220, 300)
    assert (usage.sm_clock_ratio_min, usage.sm_clock_ratio_mean) == (0.75, 0.85)
    assert (usage.throttled, usage.xids) == ({"power_cap": 0.4}, {"48": 2})
    assert usage.ecc_corrected == 2 + 3, "in the whole attempt"
    assert reasons["gpu.temperature_max_c"] == "no GPU reports it"


def test_idle_is_the_share_of_samples_without_a_kernel():
    made = DeviceSamples()
    for at_s, (segment, busy) in enumerate([(None, 0.0), (0, 0.0), (0, 0.5), (0, None), (0, 0.0), (0, 1.0)]):
        made.add(rows("gpu"), {"at_s": at_s, "utilization": busy}, segment)
    assert gpu_summary(FIELDS, [made])[0].idle == 0.5


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([gpu(1, (0, None, 0))], NOT_IN_MEASURED_STEPS),
        ([gpu(1, (0, None, 0), (1, 0, 5))], "a device without two samples in one segment"),
        ([gpu(1, (0, 0))], "no GPU reports it"),
        ([CALM, gpu(1, (0, 0))], "a device without two samples in one segment"),
    ],
)
def test_a_figure_without_samples_is_null_with_a_reason(devices, reason):
    devices[-1].lost = "GPU is lost"
    usage, reasons = gpu_summary(FIELDS, devices)
    assert (usage.gpus, usage.gpus_lost, usage.energy_j, usage.ecc_uncorrected) == (
        len(devices),
        1,
        None,
        None,
    )
    assert reasons["gpu.energy_j"] == reason


@pytest.mark.parametrize(("counted", "percent"), [({0, 2}, 150.0), ({0, 1, 2}, 249.0), ({0, 64}, 249.0)])
def test_processors_of_the_job_count_all_processes(monkeypatch, counted, percent):
    """Another job keeps processor 1 busy; processor 64 is hidden."""
    seconds = iter([(10.0, 99.0, 7.0), (11.5, 99.99, 7.0)])
    monkeypatch.setattr(
        psutil,
        "cpu_times",
        lambda percpu: [SimpleNamespace(user=user, system=2.0, idle=500.0) for user in next(seconds)],
    )
    host = Readings([row for row in FIELDS if row.name == "host_cpu_percent"], psutil, frozenset(counted))
    values = [host.read(now)["host_cpu_percent"] for now in (100.0, 101.0, 102.0)]
    assert values == [None, percent, None], "at last an error: StopIteration"


def test_a_reading_of_a_process_that_fails_is_null_with_the_reason_and_costs_no_other(monkeypatch):
    monkeypatch.setattr(psutil.Process, "num_threads", raising(ValueError("a line of /proc")))
    host = Readings(rows("host"), psutil, frozenset({0}))
    process = Readings(rows("process"), psutil, psutil.Process(os.getpid()))
    for now, segment in ((1.0, None), (2.0, 0), (3.0, 0)):
        values = host.read(now) | process.read(now) | {"at_s": now}
        process.samples.add(rows("process", "host"), values, segment)
    usage, reasons = process_summary(FIELDS, [process.samples])
    assert (usage.samples, usage.threads_max) == (2, None)
    assert reasons["processes.threads_max"] == "ValueError: a line of /proc"
    assert usage.rss_peak_bytes > 1e6
    assert 0 <= usage.cpu_percent < 10_000
    memory = values["host_memory_used_bytes"] / values["host_memory_total_bytes"]
    assert usage.host_memory_used_peak == pytest.approx(memory, abs=0.2)
    assert 0 < usage.host_memory_used_peak < 1
