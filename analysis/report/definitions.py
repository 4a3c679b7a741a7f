"""Definitions of the report's metrics: formula, unit and source; columns and captions link to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One metric; its anchor on the page is `def-` and the id."""

    id: str
    name: str
    formula: str
    text: str
    """Meaning of the symbols, how it is measured, and what it leaves out."""
    source: str = ""
    """Publication or standard of the formula."""


_ALL = (
    Definition(
        "throughput",
        "Throughput X",
        "X = Σ samples / Σ step time",
        "Samples of the measured steps of a run divided by their summed duration: a ratio of sums, not a "
        "mean of rates. Warm-up and profiled steps do not count. Over repeats: geometric mean.",
        "Hoefler and Belli, SC 2015, rules 3 and 4",
    ),
    Definition(
        "step-time",
        "Step time T",
        "T = global batch / X",
        "Mean duration of an optimizer step, from the throughput. Unit: s.",
    ),
    Definition(
        "speed-up",
        "Speed-up S",
        "S(N) = X(N) / X(N₀)",
        "Throughput against that of the base size N₀. The base is always named with its absolute throughput.",
        "Hoefler and Belli, SC 2015, rule 1",
    ),
    Definition(
        "efficiency",
        "Efficiency E",
        "E(N) = S(N) · N₀ / N",
        "Speed-up as a share of the ideal, with N ranks: one formula for weak and strong scaling.",
    ),
    Definition(
        "throughput-ratio",
        "Ratio of throughputs",
        "X / X(base)",
        "Throughput against that of the compared runs of the same number of nodes and ranks.",
    ),
    Definition(
        "verdict",
        "Verdict",
        "equivalent: 1/1.02 < X / X(base) < 1.02",
        "Equivalent: two one-sided t tests on logarithms place the ratio within the margin. Faster, slower: "
        "Welch's t test on logarithms finds a difference. Unsettled: neither, or one repeat, which is not "
        "tested. At most 5 % of the differences that a section finds are false on average; a single one of "
        "them may be.",
        "Schuirmann, J. Pharmacokinetics and Biopharmaceutics 1987; Benjamini and Hochberg, JRSS B 1995",
    ),
    Definition(
        "interval",
        "Interval",
        "exp(mean log X ± t · standard error)",
        "95 % nominal coverage; the repeat of a run is the unit, because the steps of a run are correlated. "
        "Student's t on logarithms; for ratios, Welch's degrees of freedom. One repeat has "
        "none. Means that may be 0, such as those of phases, have Student's t without logarithms; the "
        "interval is cut at 0. The figures of stragglers have an interval 'within the run', on means of up "
        "to 10 batches of its steps. A size with a run "
        "that is not stationary has none; a run that is too short to test has one.",
        "Welch, Biometrika 1947",
    ),
    Definition(
        "stationarity",
        "Stationarity",
        "d* = argmin over d of Σ (x - mean)² / (n - d)² over the means x of 5 steps after d",
        "Medians of nearly independent blocks of steps: each run of blocks against the others, and a "
        "straight line, by Student's t with Bonferroni's correction; changes below 2 % are tolerated. Fewer "
        "than six blocks are too few. Where the first steps differ, MSER-5 proposes a warm-up.",
        "White, Cobb and Spratt, Winter Simulation Conference 2000",
    ),
    Definition(
        "phases",
        "Phases of a step",
        "T = compute + input + waiting + transfer + optimizer + checkpoint + other",
        "Phases have no gap and no overlap. Their shares of a step are ratios of sums over ranks, measured "
        "steps and repeats. Communication hidden under compute is part of compute.",
    ),
    Definition(
        "waterfall",
        "Waterfall",
        "Δₖ = tₖ(N) - w · tₖ(N₀), Σ Δₖ = T(N) - w · T(N₀)",
        "Seconds that phase k adds to the step which the base predicts, with w = samples per device and step "
        "at N / those at the base. The sum is exact. Other units "
        "are Δₖ times one factor. The interval is Student's t over repeats with Welch's degrees of freedom. "
        "Where all ranks have step records, waiting above its noise floor is divided in proportion to the "
        "persistent and the transient loss to stragglers.",
    ),
    Definition(
        "mfu",
        "Model FLOPs utilization (MFU)",
        "MFU = F · b / (P · T)",
        "F: FLOPs of training on one sample, without recomputation; b: samples per device and step; P: peak "
        "dense FLOP/s of the device in the dtype of its matmuls.",
        "Chowdhery et al., PaLM, arXiv 2204.02311",
    ),
    Definition(
        "pop-factors",
        "POP factors",
        "PE = LB persistent · LB transient · host · transfer; E = PE(N) / PE(N₀) · CS",
        "Mean over ranks of useful time (compute and optimizer) / time of the steps, as a product: balance "
        "of the ranks over the run, without the bias of the maximum (as P of the loss to stragglers), "
        "balance within steps, time on the host, transfer. CS: computation "
        "scaling, useful time that the base predicts / useful time. The product is exact. Waiting for late "
        "hosts is part of host, the noise floor part of transfer. Intervals are cut at 100 %.",
        "POP Centre of Excellence, standard metrics",
    ),
    Definition(
        "goodput",
        "Goodput",
        "goodput = training / (end - submission)",
        "Share of all seconds of a run, queue included, spent in steps of the final model. Every second is "
        "in exactly one class. Over repeats: a ratio of sums, with the interval of the mean share.",
    ),
    Definition(
        "gain-ceiling",
        "Ceiling of a gain",
        "s / (1 - s)",
        "Largest gain in throughput if a phase with the share s of the step vanished. It is no forecast: the "
        "time can move to another phase. Of compute and optimizer only the part beyond the base's prediction "
        "counts.",
    ),
    Definition(
        "training-cost",
        "Cost of a training",
        "time = n / X; device-hours = D · n / X / 3600",
        "n samples on D devices at the measured throughput X; start-up, validation, repeated work and queue "
        "are not part. Money: device-hours times the price in the price list.",
    ),
    Definition(
        "energy",
        "Energy per sample",
        "e = power of all GPUs / X",
        "From the GPUs' energy counters over the measured steps, else from samples of their power. GPUs "
        "alone, without hosts, network and cooling. Carbon: e times the carbon intensity of the price list.",
    ),
    Definition(
        "exposed-communication",
        "Exposed communication",
        "exposed = waiting for peers + data transfer",
        "Time in which a rank does nothing but communicate. Recorded waiting is the time beyond that of the "
        "rank which arrived last in the same collective; the rest is transfer. The noise floor of waiting is "
        "moved to transfer: all figures but 'recorded waiting' have waiting above it.",
    ),
    Definition(
        "hidden-communication",
        "Hidden communication",
        "hidden = Σ duration of collectives - exposed part",
        "Time of collectives that overlaps with compute of the same rank; from profiled or timed ones.",
    ),
    Definition(
        "bus-bandwidth",
        "Bus bandwidth",
        "busbw = f · bytes / shortest duration of a rank",
        "f = 2(n - 1)/n for all-reduce, (n - 1)/n for all-gather and reduce-scatter, 1 for broadcast, with n "
        "ranks: the rate that each link must carry, comparable with its line rate. The rank with the "
        "shortest duration arrived last and waited for nobody. Of several collectives: f · bytes of all "
        "over the time in which any of them ran. Of a step in which nothing is hidden, the duration is the "
        "exposed transfer of all measured steps, without the noise floor of waiting. Unit: B/s.",
        "NVIDIA nccl-tests, PERFORMANCE.md",
    ),
    Definition(
        "line-share",
        "Share of the line rate",
        "busbw / rate of the node's fastest network device",
        "By the rate that the drivers report, in one direction, on the slowest node; its ranks share it. "
        "Virtual interfaces report no rate.",
    ),
    Definition(
        "measured-share",
        "Share of the measured rate",
        "busbw / slowest rate between neighbouring nodes in links.json",
        "The rate is that of one message at a time over the run's own process group before its first step: a "
        "measurement, no limit. Several messages at a time can exceed it.",
    ),
    Definition(
        "communication-share",
        "Communication share",
        "exposed communication / T",
        "Share of the step in which ranks only communicate.",
    ),
    Definition(
        "percentiles",
        "Percentiles of step time",
        "p50, p95, p99 of the measured steps",
        "Of the measured steps of rank 0 in each repeat; over repeats: geometric mean, and of the slowest "
        "step the maximum. A single repeat has no interval.",
        "Hoefler and Belli, SC 2015, rule 8",
    ),
    Definition(
        "variation",
        "Variation",
        "standard deviation / mean of step times",
        "Of the measured steps of rank 0: mean standard deviation of the repeats / mean of their means.",
    ),
    Definition(
        "utilization",
        "Utilization",
        "share of sampling periods in which a kernel ran",
        "NVML's utilization: a running kernel that only waits for the network counts as busy, so it is no "
        "efficiency. On a CPU: number of processors that the rank's process kept busy.",
    ),
    Definition(
        "mfu",
        "Model FLOPs utilization (MFU)",
        "FLOPs per sample · X / (peak FLOP/s · devices)",
        "FLOPs that the model needs, recomputation not counted, against the dense peak of the matmul dtype.",
        "Chowdhery et al., PaLM, 2022",
    ),
    Definition(
        "traffic",
        "NVLink and PCIe traffic",
        "bytes / time between samples",
        "NVML's counters over all links of a GPU; PCIe rates are the driver's occasional measurement where "
        "there is no counter.",
    ),
    Definition(
        "link-share",
        "Share of a link",
        "(sent + received) / Σ (sent + received)",
        "Bytes of a link over those of all links of its kind on the node, from counters of the kernel in "
        "measured steps. Any program of the node counts. RDMA ports and interfaces are separate kinds.",
    ),
    Definition(
        "loss",
        "Loss",
        "mean over the global batch, or over the validation samples",
        "Cross-entropy in nats. Bits per byte: the same in bits, per byte of text. The unigram "
        "entropy is the "
        "loss of a model of byte frequencies alone.",
    ),
    Definition(
        "straggler-loss",
        "Loss to stragglers",
        "P = max_r mean_s U - mean U;  Q = mean_s max_r U - max_r mean_s U",
        "P + Q = mean_s (max_r U - mean_r U). "
        "U: seconds of rank r in step s outside communication. P is persistent (one rank is always slow), Q "
        "transient. Half of the steps choose the rank of P and the other half size it, which removes "
        "the bias of "
        "the maximum.",
    ),
    Definition(
        "straggler-excess",
        "Excess of a rank",
        "mean_s (U_r - median of the other ranks' U)",
        "A rank is slow if its excess is above 3.5 robust standard deviations of the others (1.4826 "
        "MAD) and above 3 %, in 60 % of ten windows, and its interval excludes 0. It also has to pass "
        "Student's t on the number of independent steps (at one standard error above their estimated "
        "correlation), and be last more often than by chance; an excess of 12 standard deviations of the "
        "jitter needs neither. A rank is slow in one range of at least 5 steps if 60 % of them "
        "exceed 3 % and their sum exceeds the largest of any range and rank in 98 % of random orders of the "
        "steps. A node: all its ranks. A link: exposed transfer above that at the usual rate, "
        "(1 - rate / usual rate) · transfer; a lower bound of the link's own delay, because transfer "
        "under compute and during the wait for a late rank is not exposed. Interval: 95 %, batch means over "
        "the steps of one run.",
        "Iglewicz and Hoaglin, 1993",
    ),
    Definition(
        "straggler-cost",
        "Cost of a straggler",
        "mean_s (max_r U - max_r U with this rank at the median of the others)",
        "A ceiling of the gain per step. Several slow ranks share their common cost by their blame.",
    ),
    Definition(
        "blame",
        "Blame",
        "during the gap between arrivals i and i + 1 of N: i / (N - i) of the gap for each absent rank",
        "Rank-seconds per step charged to the ranks whose own work ends later. The charges are scaled so "
        "that they sum to the waiting of all ranks above its noise floor, where communication was measured.",
    ),
    Definition(
        "late-share",
        "Last in",
        "share of the steps in which the rank arrives last",
        "Equal ranks are last in 1 / N of the steps. One-sided binomial test of each rank; false discoveries "
        "among the ranks are limited to 5 %.",
        "Benjamini and Hochberg, 1995",
    ),
    Definition(
        "noise-floor",
        "Noise floor of waiting",
        "b = -E[min_r (w_r + e_r)]",
        "Transfer is the minimum over ranks of the time in a collective, so that its noise e shows as "
        "waiting on "
        "every rank, the more the more ranks. w: true waiting, max_r U - U_r; e: resampled differences "
        "between "
        "ranks of own work plus communication in a step, which would be 0 without noise. Where nobody waits, "
        "b is wrong by less than 0.1 standard deviations of normal noise. Right-skewed noise makes it too "
        "large: by up to 0.4 standard deviations for lognormal noise of sigma 1 and Pareto noise of exponent "
        "2.5, by more for stronger skew.",
    ),
    Definition(
        "device-hours",
        "GPU-hours",
        "Σ over attempts: devices · elapsed time",
        "By Slurm's accounting where it was read, else by the attempts' own times. A Slurm job that requests "
        "GPUs holds them, used or not; ranks of other jobs on CPUs count rank-hours.",
    ),
    Definition(
        "peak-memory",
        "Peak memory",
        "max over ranks of the most bytes in use",
        "On a GPU: memory allocated by PyTorch's caching allocator. On a CPU: resident set of the process.",
    ),
)

DEFINITIONS: dict[str, Definition] = {definition.id: definition for definition in _ALL}
"""By id, in the order of the page."""


def anchor(formula_id: str) -> str:
    """Anchor of a definition on the page. Raises `KeyError` for an unknown id."""
    return f"def-{DEFINITIONS[formula_id].id}"
