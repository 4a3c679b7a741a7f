"""What is read from a profiler's trace, and the figures made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records import CommSample
from disttrain.telemetry import trace as traces
from disttrain.telemetry.overlap import compare
from disttrain.telemetry.phases import COMM, COMPUTE, OPTIMIZER, OTHER
from disttrain.telemetry.sampling import describe, sampled_steps, summarise
from disttrain.telemetry.trace import MARK, bus_factor, length, merged, overlap


def annotation(name, begin_ms, ms, **arguments):
    event = {"ph": "X", "cat": "user_annotation", "name": name, "args": arguments}
    return event | {"ts": 5e9 + begin_ms * 1e3, "dur": ms * 1e3}


def kernel(name, begin_ms, ms, **arguments):
    return annotation(name, begin_ms, ms, **arguments) | {"cat": "kernel"}


def marks(*at):
    return [annotation(f"{MARK}{phase}", begin_ms, 0.01) for phase, begin_ms in at]


HOST = marks((OTHER, 0), (COMPUTE, 10), (COMM, 50), (OPTIMIZER, 70), (traces.END, 80))


def gloo(kind, begin_ms, ms, floats):
    return annotation(f"gloo:{kind}", begin_ms, ms, **{"Input Dims": [[floats]], "Input type": ["float"]})


def only(trace):
    [step] = traces.read(trace)
    return step


def test_what_compute_hides_and_what_it_waits_for():
    events = [*HOST, gloo("all_reduce", 45, 20, 500), gloo("all_reduce", 20, 20, 1000)]
    sample = describe(7, only({"traceEvents": events, "distributedInfo": {"world_size": 2}}))
    assert (sample.step, sample.step_s, sample.compute_s) == pytest.approx((7, 0.08, 0.04))
    assert (sample.total_s, sample.hidden_s, sample.exposed_s) == pytest.approx((0.04, 0.025, 0.015))
    first, second = sample.collectives
    assert (first.bucket, first.bytes, first.exposed_s) == (0, 4000, pytest.approx(0, abs=1e-9))
    assert (second.bucket, second.bytes, second.exposed_s) == (1, 2000, pytest.approx(0.015))


def test_collectives_at_the_same_time_are_merged_not_summed():
    events = [*HOST, gloo("all_reduce", 40, 20, 1), gloo("all_reduce", 45, 20, 1)]
    sample = describe(1, only({"traceEvents": events}))
    assert sample.total_s == pytest.approx(0.025)
    assert sum(each.duration_s for each in sample.collectives) == pytest.approx(0.04)


def test_a_device_trace_is_about_its_kernels():
    sizes = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 250, "Out msg nelems": 250}
    gathered = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 100}
    events = [
        *HOST,
        annotation(f"{MARK}{COMPUTE}", 12, 30) | {"cat": "gpu_user_annotation"},
        kernel("gemm", 10, 20),
        kernel("gemm", 25, 15),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 20, **sizes),
        kernel("ncclDevKernel_AllGather_RING_LL", 60, 5, **gathered, **{"Out msg nelems": 800}),
    ]
    sample = describe(1, only({"traceEvents": events}))
    assert sample.compute_s == pytest.approx(0.03)
    assert (sample.hidden_s, sample.exposed_s) == pytest.approx((0.01, 0.015))
    assert [(each.kind, each.bytes) for each in sample.collectives] == [
        ("all_reduce", 1000), ("all_gather", 1600),
    ]  # fmt: skip


def test_a_size_the_trace_does_not_tell_is_null():
    events = [*HOST, kernel("ncclDevKernel_SendRecv", 30, 20)]
    [found] = describe(1, only({"traceEvents": events})).collectives
    assert found.bytes is None


def test_a_trace_without_marks_is_refused():
    with pytest.raises(ValueError, match="no marks"):
        traces.read({"traceEvents": [gloo("all_reduce", 0, 1, 1)]})


def test_several_steps_in_one_trace_each_have_their_own():
    later = [event | {"ts": event["ts"] + 0.1e6} for event in HOST]
    events = [*HOST, gloo("all_reduce", 45, 10, 1), *later, gloo("all_reduce", 160, 5, 1)]
    first, second = traces.read({"traceEvents": events})
    assert [each.interval for each in first.collectives] == [pytest.approx((0.045, 0.055))]
    assert [each.interval for each in second.collectives] == [pytest.approx((0.06, 0.065))]


def test_the_profilers_figures_stand_beside_the_clocks_with_their_difference():
    events = [*HOST, gloo("all_reduce", 45, 20, 500)]
    own = [0.04, 0.0, 0.004, 0.012, 0.01, 0.0, 0.014]
    record = compare(3, [(7, only({"traceEvents": events})), (8, only({"traceEvents": events}))], {7: own})
    first, second = record.steps
    assert (record.rank, first.step, first.profiler.hidden_s) == (3, 7, pytest.approx(0.005))
    assert (first.clock.exposed_s, first.clock.hidden_s) == (pytest.approx(0.016), None)
    assert first.difference.exposed_s == pytest.approx(0.016 - 0.015)
    assert (second.clock, second.difference) == (None, None)


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=12
)


@given(intervals, intervals)
def test_interval_arithmetic_is_that_of_sets(a, b):
    seconds_a, seconds_b = ({s for begin, end in each for s in range(begin, end)} for each in (a, b))
    union_a, union_b = merged(a), merged(b)
    assert length(union_a) == len(seconds_a)
    assert overlap(union_a, union_b) == overlap(union_b, union_a) == len(seconds_a & seconds_b)


@given(st.integers(0, 50), st.integers(1, 300), st.integers(0, 5000))
def test_sampled_steps_are_few_and_spread(count, first, more):
    steps = sampled_steps(count, first - 1, first + more)
    assert len(steps) <= min(count, (more + 1) / 20)
    assert all(first <= step <= first + more for step in steps)
    if more + 1 >= 20 * count:
        assert len(steps) == count


def test_bus_bandwidth_is_nccl_tests():
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1


def sample(wait_ms: float) -> CommSample:
    """A rank that comes `wait_ms` earlier than the last one to a transfer of 10 ms of 1,000 bytes."""
    events = [*HOST, gloo("all_reduce", 60 - wait_ms, 10 + wait_ms, 250)]
    return describe(1, only({"traceEvents": events}))


def test_waiting_for_peers_does_not_lower_the_bandwidth():
    summary = summarise([[sample(0), sample(8)], [sample(4), sample(0)]], ranks=2)
    assert summary.bus_bytes_per_s == pytest.approx(1000 / 0.01)
    [bucket] = summary.collectives
    assert (bucket.transfer_s, bucket.total_s) == pytest.approx((0.01, 0.013))
    assert bucket.bus_bytes_per_s == bucket.algorithm_bytes_per_s == pytest.approx(1000 / 0.01)
    assert (summary.count, summary.bytes, summary.sampled_steps) == (1, 1000, 2)


def test_nothing_sampled_nothing_said():
    assert summarise([], ranks=2) is None
