"""What is sampled beside the steps: GPUs through NVML, the ranks' processes through the operating system.

`docs/telemetry.md` tells the fields together. Imports without torch.
"""

from __future__ import annotations

from disttrain.records.base import Record


class GpuDevice(Record):
    """One GPU of a node, and what it does not tell."""

    ranks: list[int]
    """The ranks that use it: one, but where several share it."""
    uuid: str | None
    pci_bus_id: str | None
    name: str | None = None
    memory_total_bytes: int | None = None
    sm_clock_max_mhz: float | None = None
    power_limit_w: float | None = None
    pcie_method: str | None = None
    """Where the PCIe rates come from: `counter`, or the driver's own measurement of 20 ms now and then."""
    unsupported: dict[str, str] = {}
    """Fields that are null in every sample, and why."""
    errors: dict[str, str] = {}
    """Fields that are null in some samples: the first error of each; `sample` is of whole ones."""
    lost: str | None = None
    """What NVML said when the GPU was gone; its samples end there."""


class NodeGpus(Record):
    """`gpu-nodeNN.json`: the GPUs that this node's ranks use; written when sampling begins and ends."""

    driver: str | None
    every_s: float
    """Seconds between samples."""
    gpus: list[GpuDevice]


class GpuSample(Record):
    """One line of `gpu-nodeNN.jsonl`: one GPU at one instant. What the device does not tell is null."""

    rank: int
    """The (first) rank that uses the GPU; `GpuDevice.ranks` has the others."""
    at_s: float
    """Since that rank's loop began, monotonic: the origin of its `Step.start_s`."""
    time: float
    """Seconds since the epoch."""
    utilization: float | None
    """Share of the driver's last sampling period (up to a second) in which any kernel ran."""
    memory_used_bytes: int | None
    """Of the device, whoever uses it."""
    power_w: float | None
    energy_j: float | None
    """Since the first sample of this attempt, by the device's energy counter."""
    sm_clock_mhz: float | None
    throttle: list[str] | None
    """Why the clocks are not at their highest: `power_cap`, `sw_thermal`, `hw_thermal`, `hw_power_brake`,
    `hw_slowdown`, `application_clocks`, `sync_boost`, `display_clocks`, `idle`; empty if nothing does."""
    temperature_c: float | None
    ecc_corrected: int | None
    """Memory errors since the driver was loaded."""
    ecc_uncorrected: int | None
    xids: list[int] | None
    """Xid errors since the sample before."""
    nvlink_tx_bytes_per_s: float | None
    """Sent over all links, mean since the sample before; null in the first one."""
    nvlink_rx_bytes_per_s: float | None
    pcie_tx_bytes_per_s: float | None
    """See `GpuDevice.pcie_method`."""
    pcie_rx_bytes_per_s: float | None


class HostSample(Record):
    """One line of `host-nodeNN.jsonl`: one rank's process at one instant. What the system does not tell is
    null."""

    rank: int
    at_s: float
    """Since that rank's loop began, monotonic: the origin of its `Step.start_s`."""
    time: float
    """Seconds since the epoch."""
    cpu_percent: float | None
    """Of the rank's process, without its loader processes, since the sample before; 100 is one processor."""
    rss_bytes: int | None
    """Resident memory of the process."""
    threads: int | None
    host_memory_used_bytes: int | None
    """Of the whole machine: all that is not available to new processes."""
    host_memory_total_bytes: int | None


class GpuSummary(Record):
    """The GPUs over a run: over the samples in measured steps of this attempt, unless said otherwise."""

    gpus: int
    """GPUs sampled, over all nodes; while the run goes on, of rank 0's node."""
    gpus_lost: int
    """Of them, those that fell off the bus."""
    samples: int
    sampled_s: float
    """Time between the samples that count, mean over GPUs."""
    utilization: float | None
    """Share of the time in which a kernel ran: mean over GPUs and samples."""
    memory_used_peak_bytes: int | None
    """Most that was used on one device, by anybody; of the whole attempt."""
    power_mean_w: float | None
    """Of one GPU: mean over GPUs and samples."""
    power_max_w: float | None
    """Highest sample of any GPU."""
    energy_j: float | None
    """Of all GPUs together, from their energy counters, over `sampled_s`."""
    sm_clock_ratio_min: float | None
    """Lowest clock of the multiprocessors as a share of the device's highest."""
    sm_clock_ratio_mean: float | None
    throttled: dict[str, float] | None
    """Share of the samples in which clocks were held down, by reason (see `GpuSample.throttle`)."""
    temperature_max_c: float | None
    """Of the whole attempt, as the next three."""
    ecc_corrected: int | None
    """Memory errors corrected during the attempt."""
    ecc_uncorrected: int | None
    xids: dict[str, int] | None
    """Xid errors during the attempt: how many of each number."""
    nvlink_tx_bytes_per_s: float | None
    """Of one GPU: mean over GPUs and samples, as the next three."""
    nvlink_rx_bytes_per_s: float | None
    pcie_tx_bytes_per_s: float | None
    pcie_rx_bytes_per_s: float | None


class ProcessSummary(Record):
    """The ranks' processes over a run: over the samples taken in measured steps of this attempt."""

    ranks: int
    """Processes sampled, over all nodes; while the run goes on, of rank 0's node."""
    samples: int
    cpu_percent: float | None
    """Processors busy with one rank's process, in percent of one: mean over ranks and samples."""
    rss_peak_bytes: int | None
    """Highest sample of any rank, of the whole attempt, as the next two."""
    threads_max: int | None
    host_memory_used_peak: float | None
    """Highest share of a host's memory that was in use, by anybody."""
