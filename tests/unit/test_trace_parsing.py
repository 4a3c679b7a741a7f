"""What is read from a profiler's trace, and the figures made of it."""

import gzip
import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config.config_tree import Config
from disttrain.records.communication import CommSample
from disttrain.records.json_files import read_jsonl
from disttrain.records.run_directory import RunDir
from disttrain.runtime.process_group import World
from disttrain.telemetry.profiled import profiled_steps
from disttrain.telemetry.profiled.profiled_steps import (
    bus_factor,
    comm_summary,
    steps_to_profile,
)
from disttrain.telemetry.profiled.step_trace import (
    END,
    MARK,
    comm_sample,
    covered,
    length,
    merged,
)
from disttrain.telemetry.step_clock import COMM, COMPUTE, OPTIMIZER, OTHER, REPLICATE_SYNC, SHARD_SYNC


def annotation(name, begin_ms, ms, **arguments):
    event = {"ph": "X", "cat": "user_annotation", "name": name, "args": arguments}
    return event | {"ts": 5e9 + begin_ms * 1e3, "dur": ms * 1e3}


def kernel(name, begin_ms, ms, **arguments):
    return annotation(name, begin_ms, ms, **arguments) | {"cat": "kernel"}


def operator(name, begin_ms, ms, **thread):
    return annotation(name, begin_ms, ms) | {"cat": "cpu_op"} | thread


def marks(*at):
    return [annotation(f"{MARK}{phase}", begin_ms, 0.01) for phase, begin_ms in at]


BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
HOST = marks((OTHER, 0), (COMPUTE, 10), (COMM, 50), (OPTIMIZER, 70), (END, 80))


def gloo(kind, begin_ms, ms, floats):
    return annotation(f"gloo:{kind}", begin_ms, ms, **{"Input Dims": [[floats]], "Input type": ["float"]})


def test_what_compute_hides_and_what_it_waits_for():
    events = [*HOST, gloo("all_reduce", 45, 20, 500), gloo("all_reduce", 20, 20, 1000)]
    sample = comm_sample(7, {"traceEvents": events, "distributedInfo": {"world_size": 2}})
    assert (sample.step, sample.step_s, sample.compute_s) == pytest.approx((7, 0.08, 0.04))
    assert (sample.total_s, sample.hidden_s, sample.exposed_s) == pytest.approx((0.04, 0.025, 0.015))
    first, second = sample.collectives
    assert (first.bucket, first.bytes, first.exposed_s) == (0, 4000, pytest.approx(0, abs=1e-9))
    assert (second.bucket, second.bytes, second.exposed_s) == (1, 2000, pytest.approx(0.015))


def test_collectives_at_the_same_time_are_merged_not_summed():
    events = [*HOST, gloo("all_reduce", 40, 20, 1), gloo("all_reduce", 45, 20, 1)]
    sample = comm_sample(1, {"traceEvents": events})
    assert sample.total_s == pytest.approx(0.025)
    assert sum(each.duration_s for each in sample.collectives) == pytest.approx(0.04)


def test_a_collective_is_over_when_the_rank_stops_waiting_for_it():
    late = gloo("all_reduce", 45, 27, 1)  # gloo's thread closed it 2 ms after backward() had returned
    after = gloo("all_reduce", 75, 10, 1)  # somebody's own, past the end of the step
    sample = comm_sample(1, {"traceEvents": [*HOST, late, after]})
    assert [each.duration_s for each in sample.collectives] == pytest.approx([0.025, 0.005])
    assert (sample.hidden_s, sample.exposed_s) == pytest.approx((0.005, 0.025))


times = st.floats(0, 100, allow_nan=False)


@given(
    st.lists(times, min_size=5, max_size=5, unique=True),
    st.lists(st.tuples(times, times), max_size=6),
    st.booleans(),
)
def test_no_communication_is_longer_than_its_step_nor_exposed_beyond_itself(at, lasting, on_device):
    phases = (OTHER, COMPUTE, COMM, OPTIMIZER, END)
    kinds = (gloo("all_reduce", 0, 0, 1), kernel("ncclKernel", 0, 0), kernel("gemm", 0, 0))
    found = [
        event | {"ts": 5e9 + begin * 1e3, "dur": ms * 1e3}
        for begin, ms in lasting
        for event in (kinds[1:] if on_device else kinds[:1])
    ]
    events = [*marks(*zip(phases, sorted(at), strict=True)), operator(BACKWARD, 1, 50), *found]
    sample = comm_sample(1, {"traceEvents": events})
    tiny = 1e-9
    assert -tiny <= sample.exposed_s <= sample.total_s + tiny <= sample.step_s + 2 * tiny
    assert sample.hidden_s >= -tiny
    assert sample.hidden_s == pytest.approx(sample.total_s - sample.exposed_s)


def test_a_device_trace_is_about_its_kernels():
    sizes = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 250, "Out msg nelems": 250}
    gathered = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 100}
    events = [
        *HOST,
        annotation(f"{MARK}{COMPUTE}", 12, 30) | {"cat": "gpu_user_annotation"},
        kernel("gemm", 10, 20),
        kernel("gemm", 25, 15),
        annotation("Optimizer.step#AdamW.step", 70, 9) | {"cat": "gpu_user_annotation"},
        kernel("multi_tensor_apply_kernel", 71, 7),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 20, **sizes),
        kernel("ncclDevKernel_AllGather_RING_LL", 60, 5, **gathered, **{"Out msg nelems": 800}),
    ]
    sample = comm_sample(1, {"traceEvents": events})
    assert sample.compute_s == pytest.approx(0.03)
    assert (sample.hidden_s, sample.exposed_s) == pytest.approx((0.01, 0.015))
    assert [(each.kind, each.bytes) for each in sample.collectives] == [
        ("all_reduce", 1000), ("all_gather", 1600),
    ]  # fmt: skip


def test_a_size_the_trace_does_not_tell_is_null():
    events = [*HOST, kernel("ncclDevKernel_SendRecv", 30, 20)]
    [found] = comm_sample(1, {"traceEvents": events}).collectives
    assert found.bytes is None


def test_a_trace_without_marks_is_refused():
    with pytest.raises(ValueError, match="no marks"):
        comm_sample(1, {"traceEvents": [gloo("all_reduce", 0, 1, 1)]})


class RunningAhead:
    """A device and a host that only asks: the profiler of a CUDA rank, with the functions it looks at."""

    def __init__(self) -> None:
        self.host_ms = self.device_ms = 0.0
        self.events: list[dict] = []

    def takes(self, ms: float) -> None:
        self.host_ms += ms

    def launch(self, name: str, ms: float, **arguments) -> None:
        self.takes(1)
        begin_ms = max(self.host_ms, self.device_ms)
        self.device_ms = begin_ms + ms
        self.events.append(kernel(name, begin_ms, ms, **arguments))

    def mark(self, phase: int) -> None:
        self.events += marks((phase, self.host_ms))

    def synchronize(self, device: torch.device) -> None:
        self.host_ms = max(self.host_ms, self.device_ms)

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def export_chrome_trace(self, path: str) -> None:
        with (gzip.open if path.endswith(".gz") else open)(path, "wt") as file:
            json.dump({"traceEvents": self.events}, file)


def test_kernels_that_the_host_ran_ahead_of_stay_in_their_step(monkeypatch, tmp_path):
    device = RunningAhead()
    monkeypatch.setattr(profiled_steps, "_profiler", lambda _: device)
    monkeypatch.setattr(profiled_steps, "mark", device.mark)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    world = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cuda"), backend="nccl")
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    config = Config.model_validate({"profile": {"steps": [2, 3]}, "telemetry": {"warmup_steps": 4}})
    closely = profiled_steps.ProfiledSteps(config, attempt, world, times_collectives=True, steps=24)
    starts: list[float] = []
    clock = SimpleNamespace(start=lambda: starts.append(device.host_ms), switch=lambda phase: None)
    [sampled] = closely.steps - {2, 3}
    device.launch("gemm", 50)  # of the step before, still on its way
    for step in (2, 3, sampled):
        if step == sampled:
            device.events.clear()
        device.takes(5)  # what happens between steps
        began_ms = max(device.host_ms, device.device_ms)
        with closely.take(step, clock):
            clock.switch(COMPUTE)
            device.launch("gemm", 30)
            device.launch("ncclDevKernel_AllReduce", 10)
        assert starts.pop() == began_ms, "the clock's step begins where the trace's does"
        closely.step_done(step)
    [sample] = map(CommSample.model_validate, read_jsonl(attempt.comm(0)))
    assert (sample.step_s, sample.compute_s, sample.total_s) == pytest.approx((0.041, 0.03, 0.01))
    marks = [
        event["name"] for event in json.loads(gzip.decompress(attempt.trace(0).read_bytes()))["traceEvents"]
    ]
    assert marks.count(f"{MARK}{END}") == 2


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
def test_sampled_steps_are_few_and_spread(count, first, more):
    steps = steps_to_profile(count, first - 1, first + more)
    assert len(steps) <= min(count, (more + 1) / 20)
    assert all(first <= step <= first + more for step in steps)
    if more + 1 >= 20 * count:
        assert len(steps) == count


def test_bus_bandwidth_is_nccl_tests():
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1


def sample(wait_ms: float) -> CommSample:
    """A rank that comes `wait_ms` earlier than the last one to a transfer of 10 ms of 1,000 bytes, which gloo
    closes 2 ms late."""
    events = [*HOST, gloo("all_reduce", 60 - wait_ms, 12 + wait_ms, 250)]
    return comm_sample(1, {"traceEvents": events, "distributedInfo": {"world_size": 2}})


def test_waiting_for_peers_does_not_lower_the_bandwidth():
    summary = comm_summary([[sample(0), sample(8)], [sample(4), sample(0)]], ranks=2)
    assert summary.bus_bytes_per_s == pytest.approx(1000 / 0.01)
    [bucket] = summary.collectives
    assert (bucket.transfer_s, bucket.total_s) == pytest.approx((0.01, 0.013))
    assert bucket.bus_bytes_per_s == bucket.algorithm_bytes_per_s == pytest.approx(1000 / 0.01)
    assert (summary.count, summary.bytes, summary.sampled_steps) == (1, 1000, 2)


def test_a_collective_of_a_sharded_model_is_compared_within_its_group():
    """Of four ranks, two share a copy. The first pair takes 10 ms for a gather, and the second 30 ms."""
    parts = marks((OTHER, 0), (SHARD_SYNC, 10), (COMPUTE, 60), (REPLICATE_SYNC, 70), (END, 90))
    calls = {rank: (ms, 10) for rank, ms in enumerate((10, 15, 30, 40))}
    ranks = []
    for gather_ms, reduce_ms in calls.values():
        events = [*parts, gloo("all_gather", 11, gather_ms, 25), gloo("all_reduce", 72, reduce_ms, 50)]
        trace = {"traceEvents": events, "distributedInfo": {"world_size": 4}}
        ranks.append(comm_sample(1, trace, {"shard": 2, "replicate": 2}))
    gather, reduce = comm_summary([ranks], ranks=4).collectives
    assert (gather.dimension, gather.ranks, gather.bytes) == ("shard", 2, 200)
    assert gather.transfer_s == pytest.approx((0.010 + 0.030) / 2)
    assert gather.bus_bytes_per_s == pytest.approx(0.5 * 200 / 0.020)
    assert (reduce.dimension, reduce.ranks) == ("replicate", 2)
    assert reduce.bus_bytes_per_s == reduce.algorithm_bytes_per_s == pytest.approx(200 / 0.010)


def test_nothing_sampled_nothing_said():
    assert comm_summary([], ranks=2) is None
