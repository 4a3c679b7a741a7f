"""The automatic batch size: its search on machines of known memory and speed, and ends of probe processes."""

import dataclasses
import signal
import subprocess
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.engine import auto_batch, batch_probe
from disttrain.engine.batch_probe import Probe, choose, fit_memory, is_out_of_memory, search
from disttrain.records.checkpoint import BatchProbe
from disttrain.records.heartbeat import FOLDER_VARIABLE, count_killed_probes
from disttrain.records.json_files import write_json
from disttrain.runtime import stop_signals
from disttrain.runtime.process_group import open_world
from tests.support.stopping import alone, config


def made(**sections):
    train = {"steps": 1, "local_batch_size": "auto"}
    return config(**{"train": train, "parallel": {"strategy": "single"}, **sections})


def test_stop_signals_are_ignored_before_the_request_is_read(monkeypatch, tmp_path):
    handlers = {}
    monkeypatch.setattr(stop_signals.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(batch_probe, "die_with_parent", lambda: None)
    monkeypatch.setattr(batch_probe.Path, "write_text", lambda *_, **__: None)
    with pytest.raises(FileNotFoundError):
        batch_probe.main(tmp_path)
    assert handlers == dict.fromkeys((signal.SIGINT, *stop_signals.SIGNALS), signal.SIG_IGN)


def test_each_size_of_a_compiled_model_is_within_the_limit_of_graphs():
    compiled = made(compile={"scope": "model", "backend": "eager", "fullgraph": True})
    with torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8), open_world(compiled) as world:
        probe = Probe(compiled, world, lambda size: None)
        torch._dynamo.config.recompile_limit = 1
        sizes = [probe.measure(size).local_batch_size for size in (2, 3)]
    torch._dynamo.reset()
    assert sizes == [2, 3]


def test_a_choice_that_fails_its_verification_is_followed_by_a_smaller_one(monkeypatch):
    def measure(self, size, verify=False):
        peak = 1 << 60 if verify and size > 8 else size
        return BatchProbe(local_batch_size=size, peak_bytes=peak, samples_per_s=size)

    monkeypatch.setattr(Probe, "measure", measure)
    with open_world(made()) as world:
        probe = Probe(made(), world, lambda size: None)
        with pytest.raises(MemoryError, match=r"^40 samples .* in the verification$") as failure:
            probe.run()
        assert is_out_of_memory(failure.value)
        fit = probe.run([40, 10])
    assert (fit.local_batch_size, fit.out_of_memory, fit.bytes_per_sample) == (8, [40, 10], 1.0)
    assert fit.probes[0].local_batch_size == 2, "batch norms of vectors need two samples"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_errors_of_too_little_memory(message, expected):
    assert is_out_of_memory(RuntimeError(message)) is expected


class Machine:
    """Takes `fixed + slope x batch` bytes; its speed saturates at `saturation` samples."""

    def __init__(self, fixed, slope, saturation=10**9):
        self.fixed, self.slope, self.saturation = fixed, slope, saturation
        self.tried = []

    def measure(self, size):
        self.tried.append(size)
        peak = self.fixed + self.slope * size
        return BatchProbe(local_batch_size=size, peak_bytes=peak, samples_per_s=min(size, self.saturation))


def chosen(machine, budget, multiple=None, limit=10**6, smallest=1):
    return choose(search(machine.measure, multiple, limit, budget, smallest), budget)


def test_two_probes_give_both_parts():
    machine = Machine(300, 7)
    assert fit_memory([machine.measure(2), machine.measure(16)]) == (300, 7)


@given(st.integers(1, 500), st.integers(1, 50), st.integers(100, 100_000))
def test_nothing_predicted_beyond_the_budget_is_tried(fixed, slope, budget):
    machine = Machine(fixed, slope)
    probes = search(machine.measure, None, 10**6, budget)
    beyond = [size for size in machine.tried if fixed + slope * size > budget]
    assert beyond in ([], [1], [2]), "of the first two, from which the prediction follows"
    fitting = [probe for probe in probes if probe.peak_bytes <= budget]
    if fitting:  # the largest one is near the bound, and a multiple of 8
        largest = (budget - fixed) // slope
        assert fitting[-1].local_batch_size >= min(largest, max(1, largest - 7))


@pytest.mark.parametrize(
    ("made_with", "budget", "options", "size", "tried"),
    [
        (
            (0, 1, 16),
            10**6,
            {},
            16,
            [1, 2, 4, 8, 16, 32, 64],
        ),  # no gain at two sizes: enough
        ((0, 1), 1000, {"multiple": 96}, 96, None),
        ((0, 1), 95, {"multiple": 96}, 48, None),
        ((0, 1), 30, {"multiple": 96}, 24, None),
        ((0, 1), 10**6, {"limit": 100}, 96, None),
        ((0, 1), 10**6, {"limit": 4, "smallest": 2}, 4, [2, 4]),
        ((2000, 1), 1000, {"limit": 64}, None, [1]),
        ((0, 1), 1000, {"limit": 1, "smallest": 2}, None, []),
    ],
)
def test_the_smallest_of_equally_fast_sizes_that_fit_is_chosen(made_with, budget, options, size, tried):
    machine = Machine(*made_with)
    assert chosen(machine, budget, **options) == size
    assert tried in (None, machine.tried)


def answering(monkeypatch, answers, code=1):
    """Probe processes that write these answers, one after the other, and end with `code`; their requests."""
    remaining, requests = iter(answers), []

    def start(command, env, **_):
        folder = batch_probe.Path(command[-1])
        assert env["NCCL_DEBUG_FILE"].startswith(str(folder)), "it would overwrite the log of the rank"
        requests.append(batch_probe.read_json(folder / "request.json"))
        write_json(folder / "answer.json", next(remaining))
        return Mock(pid=7, poll=lambda: code)

    monkeypatch.setattr(subprocess, "Popen", start)
    return requests


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_probe_that_the_oom_killer_ended_is_recorded_for_the_agent(tmp_path, monkeypatch, by_kernel):
    kills = iter([3])
    monkeypatch.setattr(auto_batch, "count_oom_kills", lambda: next(kills, 3 + by_kernel))
    answering(monkeypatch, [{"trying": 1}], -signal.SIGKILL)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ValueError if by_kernel else RuntimeError, match="memory" if by_kernel else "SIGKILL"):
        auto_batch.search_batch_size(made(), alone())
    assert count_killed_probes(tmp_path) == by_kernel


class TwoRanks(type(alone())):
    """A world whose other rank tried a sample more."""

    def all_gather_object(self, value):
        return [value, dataclasses.replace(value, trying=value.trying + 1)] if value else [value]


def test_the_next_search_stays_below_the_largest_size_that_failed_on_any_rank(monkeypatch):
    requests = answering(monkeypatch, [{"trying": 8, "out_of_memory": True}, {"trying": 4, "refused": "no"}])
    with pytest.raises(ValueError, match=r"^no$"):
        auto_batch.search_batch_size(made(), TwoRanks(**vars(alone())))
    assert [request["failed"] for request in requests] == [[], [9]]


def test_a_silent_probe_ends_after_the_time_of_the_set_up(monkeypatch):
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: process)
    with pytest.raises(RuntimeError, match="rank 0: the probe of 0 samples gave no answer"):
        auto_batch.search_batch_size(made(job={"setup_timeout_s": 0.1}), alone())
    assert process.poll() == -signal.SIGALRM
