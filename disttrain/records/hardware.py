"""Records of hardware samples: GPUs through NVML, processes of ranks through the operating system.

Samples and summaries also have the fields of `telemetry.fields`.
"""

from __future__ import annotations

from disttrain.records.base import Record


class GpuDevice(Record, extra="allow"):
    """One GPU of a node, and the fields that it does not report."""

    ranks: list[int]
    """Ranks that use the GPU: several where they share it."""
    uuid: str | None
    pci_bus_id: str | None
    name: str | None = None
    memory_total_bytes: int | None = None
    sm_clock_max_mhz: float | None = None
    power_limit_w: float | None = None
    pcie_method: str | None = None
    """Source of the PCIe rates: `counter`, or the driver's occasional measurement over 20 ms."""
    unsupported: dict[str, str] = {}
    """Fields that are null in every sample, with the reason."""
    errors: dict[str, str] = {}
    """Fields that are null in some samples, with the first error."""
    lost: str | None = None
    """NVML's error when the GPU was lost; its samples end there."""


class NodeGpus(Record):
    """`gpu-nodeNN.json`: the GPUs of this node's ranks; written at the start and the end of sampling."""

    driver: str | None
    every_s: float
    """Seconds between samples."""
    gpus: list[GpuDevice]


class _Sample(Record, extra="allow"):
    """Readings at one instant. Values that the device or the system does not report are null."""

    rank: int
    """The rank of the process, or the first one that uses the GPU; `GpuDevice.ranks` lists all."""
    at_s: float
    """Seconds since that rank's loop began, as `Step.start_s`; monotonic clock."""
    time: float
    """Seconds since the epoch."""


class GpuSample(_Sample):
    """One line of `gpu-nodeNN.jsonl`: one GPU."""

    utilization: float | None
    """Share of the driver's last sampling period (up to 1 s) in which a kernel ran."""
    memory_used_bytes: int | None
    """By all processes."""
    power_w: float | None
    energy_j: float | None
    """Since the first sample of the attempt."""
    sm_clock_mhz: float | None
    throttle: list[str] | None
    """Reasons for lower clocks: `power_cap`, `sw_thermal`, `hw_thermal`, `hw_power_brake`, `hw_slowdown`,
    `application_clocks`, `sync_boost`, `display_clocks`, `idle`."""
    temperature_c: float | None
    ecc_corrected: int | None
    """Memory errors since the driver was loaded."""
    ecc_uncorrected: int | None
    xids: list[int] | None
    """Since the previous sample."""
    nvlink_tx_bytes_per_s: float | None
    """Over all links since the previous sample; null in the first one."""
    nvlink_rx_bytes_per_s: float | None
    pcie_tx_bytes_per_s: float | None
    """By the method in `pcie_method` of the GPU."""
    pcie_rx_bytes_per_s: float | None


class HostSample(_Sample):
    """One line of `host-nodeNN.jsonl`: one rank's process."""

    cpu_percent: float | None
    """Since the previous sample, without loader processes."""
    rss_bytes: int | None
    """Resident memory of the process."""
    threads: int | None
    host_memory_used_bytes: int | None
    """Memory not available to new processes."""
    host_memory_total_bytes: int | None
    host_cpu_percent: float | None = None
    """By all processes on the processors of the job since the previous sample. Older records count all
    processors of the machine."""


class GpuSummary(Record, extra="allow"):
    """Summary of the GPU samples in measured steps of this attempt, unless a field says otherwise."""

    gpus: int
    """Sampled GPUs of all nodes; during the run, of rank 0's node."""
    gpus_lost: int
    """Sampled GPUs that were lost (fell off the bus)."""
    samples: int
    sampled_s: float
    """Seconds covered by the counted samples, mean over GPUs."""
    utilization: float | None
    """Fraction of the time in which a kernel ran: mean over GPUs and samples."""
    idle: float | None = None
    """Fraction of the samples in whose period no kernel ran."""
    memory_used_peak_bytes: int | None
    """Highest used memory of one device, over all processes and the whole attempt."""
    power_mean_w: float | None
    """Power of one GPU: mean over GPUs and samples."""
    power_max_w: float | None
    """Highest sample of any GPU."""
    energy_j: float | None
    """Energy of all GPUs over `sampled_s`, from their energy counters."""
    sm_clock_ratio_min: float | None
    """Lowest SM clock as a fraction of the device's maximum."""
    sm_clock_ratio_mean: float | None
    throttled: dict[str, float] | None
    """Fraction of the samples with reduced clocks, by reason (see `GpuSample.throttle`)."""
    temperature_max_c: float | None
    """Maximum over the whole attempt; the next three cover the whole attempt too."""
    ecc_corrected: int | None
    """Memory errors corrected during the attempt."""
    ecc_uncorrected: int | None
    xids: dict[str, int] | None
    """Number of Xid errors during the attempt, by Xid."""
    nvlink_tx_bytes_per_s: float | None
    """Rate of one GPU: mean over GPUs and samples, as the next three."""
    nvlink_rx_bytes_per_s: float | None
    pcie_tx_bytes_per_s: float | None
    pcie_rx_bytes_per_s: float | None


class ProcessSummary(Record, extra="allow"):
    """Summary of the process samples in measured steps of this attempt."""

    ranks: int
    """Sampled processes of all nodes; during the run, of rank 0's node."""
    samples: int
    cpu_percent: float | None
    """Processor time of one rank's process, in percent of one processor: mean over ranks and samples."""
    rss_peak_bytes: int | None
    """Highest sample of any rank over the whole attempt, as the next two."""
    threads_max: int | None
    host_memory_used_peak: float | None
    """Highest used fraction of a host's memory, over all processes."""


class NodeHardware(Record):
    """`hardware-nodeNN.json`: what the agent of a node measures of a `command`, from the start of its ranks
    on. Absent if a rank samples by itself."""

    gpu: GpuSummary | None
    processes: ProcessSummary | None
    live: dict[str, float]
    """Means of the newest samples over the node's GPUs and ranks, by their names in `Progress`."""
