"""Profiled steps: their selection, what is read from a trace, and the figures over steps and ranks."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from disttrain.config.config_tree import Config
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from disttrain.telemetry.facts import Communication, RunFacts
from disttrain.telemetry.profiled import profiled_steps
from disttrain.telemetry.profiled.profiled_steps import (
    ProfiledSteps,
    bus_factor,
    comm_summary,
    steps_to_profile,
)
from disttrain.telemetry.profiled.step_trace import (
    END,
    MARK,
    comm_sample,
    covered,
    decode_trace,
    length,
    merged,
)
from disttrain.telemetry.step_clock import COMM, COMPUTE, OPTIMIZER, OTHER, REPLICATE_SYNC, SHARD_SYNC


def event(name, begin_ms, ms, category="user_annotation", **arguments):
    times = {"ts": 5e9 + begin_ms * 1e3, "dur": ms * 1e3}
    return {"ph": "X", "cat": category, "name": name, "args": arguments, **times}


def kernel(name, begin_ms, ms, **arguments):
    return event(name, begin_ms, ms, "kernel", **arguments)


def marks(*at):
    return [event(f"{MARK}{phase}", begin_ms, 0.01) for phase, begin_ms in at]


HOST = marks((OTHER, 0), (COMPUTE, 10), (COMM, 50), (OPTIMIZER, 70), (END, 80))


def gloo(kind, begin_ms, ms, floats=1):
    return event(f"gloo:{kind}", begin_ms, ms, **{"Input Dims": [[floats]], "Input type": ["float"]})


def sample_of(*events, ranks=2, **options):
    return comm_sample(7, {"traceEvents": events, "distributedInfo": {"world_size": ranks}}, **options)


@pytest.mark.parametrize(
    ("calls", "durations_ms", "exposed_ms", "total_ms", "hidden_ms"),
    [
        ([(45, 20), (20, 20)], [20, 20], [0, 15], 40, 25),
        ([(40, 20), (45, 20)], [20, 20], [10, 15], 25, 10),  # at the same time: not summed
        ([(45, 27), (75, 10)], [25, 5], [20, 5], 30, 5),  # over when the rank stops waiting, or the step ends
        ([(-5, 4), (85, 10)], [], [], 0, 0),  # before and after the step
    ],
)
def test_collectives_of_a_host_are_hidden_by_its_compute(
    calls, durations_ms, exposed_ms, total_ms, hidden_ms
):
    sample = sample_of(*HOST, *(gloo("all_reduce", begin, ms, 1000) for begin, ms in calls))
    found = [sample.step, sample.step_s, sample.compute_s, sample.total_s, sample.hidden_s, sample.exposed_s]
    expected_ms = [80, 40, total_ms, hidden_ms, total_ms - hidden_ms]
    assert found == pytest.approx([7, *(ms / 1e3 for ms in expected_ms)])
    seconds = [(each.duration_s * 1e3, each.exposed_s * 1e3) for each in sample.collectives]
    assert seconds == [pytest.approx(pair, abs=1e-6) for pair in zip(durations_ms, exposed_ms, strict=True)]
    assert [(each.bucket, each.bytes) for each in sample.collectives] == [(0, 4000), (1, 4000)][
        : len(seconds)
    ]


def test_a_device_trace_is_read_by_its_kernels():
    sizes = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 250, "Out msg nelems": 250}
    gathered = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 100}
    sample = sample_of(
        *HOST,
        event(f"{MARK}{COMPUTE}", 12, 30, "gpu_user_annotation"),
        kernel("gemm", 10, 20),
        kernel("gemm", 25, 15),
        event("Optimizer.step#AdamW.step", 70, 9, "gpu_user_annotation"),
        kernel("multi_tensor_apply_kernel", 71, 7),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 20, **sizes),
        kernel("ncclDevKernel_AllGather_RING_LL", 60, 5, **gathered, **{"Out msg nelems": 800}),
        kernel("ncclDevKernel_SendRecv", 66, 1),
    )
    assert (sample.compute_s, sample.hidden_s, sample.exposed_s) == pytest.approx((0.03, 0.01, 0.016))
    found = [(each.kind, each.bytes) for each in sample.collectives]
    assert found == [("all_reduce", 1000), ("all_gather", 1600), ("nccl", None)]


def test_a_trace_without_marks_is_refused():
    with pytest.raises(ValueError, match="no marks"):
        sample_of(gloo("all_reduce", 0, 1))


def test_a_file_is_decoded_without_operators(tmp_path):
    model, path = torch.nn.Linear(8, 1), tmp_path / "trace.json"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        profiled_steps.mark(COMPUTE)
        model(torch.ones(4, 8)).sum().backward()
        profiled_steps.mark(END)
    profiler.export_chrome_trace(str(path))
    whole, part = json.loads(path.read_text()), decode_trace(path.read_text())
    operators = [each for each in whole["traceEvents"] if each.get("cat") in ("cpu_op", "fwdbwd")]
    assert operators
    assert part == whole | {"traceEvents": [each for each in whole["traceEvents"] if each not in operators]}
    assert decode_trace(json.dumps(whole, indent=4)) == whole, "a layout that Kineto does not write"
    kinds = ["cpu_op", "kernel", "cuda_runtime", "gpu_user_annotation", "ac2g", "gpu_memcpy"]
    events = [
        f'\n  {{\n    "ph": "X",\n    "cat": "{kind}",\n    "name": "{kind} of a kernel"\n  }}'
        for kind in kinds
    ]
    decoded = decode_trace(f'{{"traceEvents": [{",".join(events)}],"traceName": "x"}}')
    assert [each["cat"] for each in decoded["traceEvents"]] == ["kernel", "gpu_user_annotation", "gpu_memcpy"]


class RunningAhead:
    """A device and a host that launches kernels ahead of it: the profiler of a CUDA rank."""

    def __init__(self):
        self.host_ms = self.device_ms = 0.0
        self.events = []

    def launch(self, name, ms):
        self.host_ms += 1
        begin_ms = max(self.host_ms, self.device_ms)
        self.device_ms = begin_ms + ms
        self.events.append(kernel(name, begin_ms, ms))

    def mark(self, phase):
        self.events += marks((phase, self.host_ms))

    def synchronize(self, device):
        self.host_ms = max(self.host_ms, self.device_ms)

    def start(self): ...
    def stop(self): ...

    def export_chrome_trace(self, path):
        with (gzip.open if path.endswith(".gz") else open)(path, "wt") as file:
            json.dump({"traceEvents": self.events}, file)


class Ranks(World):
    """A world whose other rank sends `theirs`, or the same value."""

    theirs = "same"

    def all_gather_object(self, value):
        return [value, value if self.theirs == "same" else self.theirs]


def test_kernels_of_a_host_that_runs_ahead_stay_in_their_step(monkeypatch, tmp_path):
    device = RunningAhead()
    monkeypatch.setattr(profiled_steps, "_profiler", lambda _: device)
    monkeypatch.setattr(profiled_steps, "mark", device.mark)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    world = Ranks(0, 2, 0, 2, device=torch.device("cuda"), backend="nccl")
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    config = Config.model_validate({"profile": {"steps": [2, 3]}, "telemetry": {"warmup_steps": 4}})
    facts = RunFacts({"steps_total": 44}, Communication(profiles_collectives=True))
    selected = ProfiledSteps(config, attempt, world, facts)
    starts = []
    clock = SimpleNamespace(start=lambda: starts.append(device.host_ms), switch=lambda phase: None)
    first, second = sorted(selected.steps - {2, 3})
    device.launch("gemm", 50)  # of the step before, still on its way
    for step, theirs in ((2, "same"), (3, "same"), (first, "same"), (second, None)):
        if step > 3:
            device.events.clear()
        Ranks.theirs = theirs
        device.host_ms += 5  # between steps
        began_ms = max(device.host_ms, device.device_ms)
        with selected.take(step, clock):
            clock.switch(COMPUTE)
            device.launch("gemm", 30)
            device.launch("ncclDevKernel_AllReduce", 10)
        assert starts.pop() == began_ms, "the clock's step begins where the trace's does"
        selected.step_done(step)
    for line in read_jsonl(attempt.comm(0)):
        sample = CommSample.model_validate(line)
        assert (sample.step_s, sample.compute_s, sample.total_s) == pytest.approx((0.041, 0.03, 0.01))
    names = [
        each["name"] for each in json.loads(gzip.decompress(attempt.trace(0).read_bytes()))["traceEvents"]
    ]
    assert names.count(f"{MARK}{END}") == 2
    assert selected.summary().sampled_steps == 1, "a rank lost its record of the second one"


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=12
)


@given(intervals, intervals)
def test_interval_arithmetic_is_that_of_sets(a, b):
    seconds_a, seconds_b = ({s for begin, end in each for s in range(begin, end)} for each in (a, b))
    union_a, union_b = merged(a), merged(b)
    assert length(union_a) == len(seconds_a)
    assert sum(covered(union_a, union_b)) == sum(covered(union_b, union_a)) == len(seconds_a & seconds_b)


@given(st.integers(0, 50), st.integers(1, 300), st.integers(0, 5000))
def test_profiled_steps_are_few_and_spread(count, first, more):
    steps = steps_to_profile(count, first - 1, first + more)
    assert len(steps) == min(count, (more + 1) // 20)
    assert all(first <= step <= first + more for step in steps)


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(kind, factor):
    assert bus_factor(kind, 4) == factor


def waiting(ms):
    """A rank that arrives so much earlier than the last one for a transfer of 10 ms, closed 2 ms late."""
    return sample_of(*HOST, gloo("all_reduce", 60 - ms, 12 + ms, 250))


def test_waiting_for_peers_does_not_lower_the_bandwidth():
    summary = comm_summary([[waiting(0), waiting(8)], [waiting(4), waiting(0)]], ranks=2)
    [bucket] = summary.collectives
    assert (bucket.transfer_s, bucket.total_s) == pytest.approx((0.01, 0.013))
    rates = (summary.bus_bytes_per_s, bucket.bus_bytes_per_s, bucket.algorithm_bytes_per_s)
    assert rates == pytest.approx((1e5, 1e5, 1e5))
    assert (summary.count, summary.bytes, summary.sampled_steps) == (1, 1000, 2)
    assert comm_summary([], ranks=2) is None


def test_a_collective_of_a_sharded_model_is_compared_within_its_group():
    """Of four ranks, two share a copy. The first pair takes 10 ms for a gather, and the second 30 ms."""
    phases = marks((OTHER, 0), (SHARD_SYNC, 10), (COMPUTE, 60), (REPLICATE_SYNC, 70), (END, 90))
    samples = [
        sample_of(
            *phases, gloo("all_gather", 11, ms, 25), gloo("all_reduce", 72, 10, 50),
            ranks=4, sizes={"shard": 2, "replicate": 2},
        )
        for ms in (10, 15, 30, 40)
    ]  # fmt: skip
    gather, reduce = comm_summary([samples], ranks=4).collectives
    assert (gather.dimension, gather.ranks, gather.bytes) == ("shard", 2, 200)
    assert (gather.transfer_s, gather.bus_bytes_per_s) == pytest.approx((0.020, 0.5 * 200 / 0.020))
    assert (reduce.dimension, reduce.ranks, reduce.bus_bytes_per_s) == ("replicate", 2, pytest.approx(20_000))
