"""Emulated layers under the real trainer: real buckets, averaged gradients, and delays in their phases."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from disttrain.config.config_tree import Config
from disttrain.data import synthetic
from disttrain.models import emulated
from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.layers import Layers, parse_table
from disttrain.records.metrics import Metrics
from disttrain.records.run_directory import Attempt, RunDir
from disttrain.runtime.process_group import World
from disttrain.telemetry import facts
from jobs.cli.emulate import table_of
from tests.multiprocess.test_train import alone, make_config, train_on
from tests.support.injected_delays import assert_about

pytestmark = pytest.mark.multiprocess

SMALL = {
    "model": {"kind": "emulated", "layers": 4, "layer_mb": 0.25, "forward_s": 0.02, "backward_s": 0.04,
              "optimizer_s": 0.0},
    "data": {"kind": "synthetic", "shape": [8], "classes": 2, "samples": 512, "valid_samples": 4},
    "train": {"steps": 15, "local_batch_size": 4},
    "telemetry": {"warmup_steps": 3, "sinks": [], "profiled_steps": 0},
    "parallel": {"ddp": {"bucket_mb": 0.25}},
}  # fmt: skip


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As every rank has it. With more, each waits for all of them, and that is in no layer's time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def steps(folder: Path, rank: int, name: str) -> float:
    """Median over the measured steps of one class of time."""
    lines = read_jsonl(RunDir(folder).attempt(0).steps(rank))
    return statistics.median(line[name] for line in lines if line["step"] > 3)


def test_buckets_are_real_and_gradients_are_averaged_in_reverse(two_ranks):
    sizes, gradients = zip(*two_ranks.call(reduced), strict=True)
    assert sizes[0] == sizes[1] == [1 << 18] * 4
    assert gradients[0] == gradients[1] == [1.5] * 4


def reduced(world: World) -> tuple[list[int], list[float]]:
    """The buckets that were sent, and the gradients after a backward of `rank + 1` for each weight."""
    source = synthetic.build(shape=(8,), classes=2, samples=8)
    model = emulated.build(source, layers=4, layer_mb=0.25, forward_s=0.001, backward_s=0.001)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.25, gradient_as_bucket_view=True)
    sent: list[int] = []

    def hook(group, bucket):  # torch refuses annotations that are strings
        sent.append(bucket.buffer().nbytes)
        work = dist.all_reduce(bucket.buffer().div_(world.size), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    wrapped.register_comm_hook(None, hook)
    for _ in range(3):  # the buckets are laid out anew after the first pass
        sent.clear()
        model.zero_grad(set_to_none=True)
        (wrapped(torch.zeros(1, 8))[0, 0] * (world.rank + 1)).backward()
    return sent, [layer.weight.grad.mean().item() for layer in model.layers]


def oversubscribed_on(world: World, config: Config, processors: int) -> bool:
    """Whether the ranks count as sharing processors on a machine with so many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "usable_processors", lambda: range(processors))
        return facts.describe_machine(world, config)["oversubscribed"]


@pytest.mark.parametrize(
    ("sections", "processors", "oversubscribed"),
    [
        ({"model": {"kind": "mlp"}}, 3, True),
        ({"model": {"kind": "mlp"}}, 4, False),
        ({"model": {"kind": "mlp"}, "resources": {"threads_per_rank": 2}}, 7, True),
        ({"model": {"kind": "mlp"}, "data": {"workers": 1}}, 7, True),
        ({"data": {"workers": 1}}, 4, False),  # waiting ranks use no processor, their loaders do
        ({"data": {"workers": 1}}, 3, True),
        ({}, 1, False),
    ],
)
def test_more_busy_threads_than_processors_is_oversubscribed(
    four_ranks, sections, processors, oversubscribed
):
    config = make_config(SMALL, 4, **sections)
    resources = config.resources.model_copy(update=sections.get("resources", {}))
    config = config.model_copy(update={"resources": resources})
    found = four_ranks.call(oversubscribed_on, config, processors)
    assert found == [oversubscribed] * 4


def test_an_emulated_run_is_marked(four_ranks, tmp_path):
    metrics: Metrics = four_ranks.call(train_on, make_config(SMALL, 4), tmp_path)[0]
    assert metrics.emulated
    assert not metrics.oversubscribed
    assert metrics.emulation_late_s is not None
    assert read_json(RunDir(tmp_path).metrics)["emulated"] is True
    assert read_json(RunDir(tmp_path).progress)["emulated"] is True


def test_a_slow_rank_is_compute_there_and_waiting_elsewhere(two_ranks, tmp_path):
    config = make_config(SMALL, 2, model={"slow_ranks": [1], "slow_s": 0.06})
    two_ranks.call(train_on, config, tmp_path)
    added_s = steps(tmp_path, 1, "compute_s") - steps(tmp_path, 0, "compute_s")
    assert_about(added_s, 0.06, "compute of the slow rank")
    assert_about(steps(tmp_path, 0, "comm_wait_s"), 0.06, "waiting of its peer")


def test_a_slow_loader_is_input_on_its_rank(two_ranks, tmp_path):
    config = make_config(SMALL, 2, data={"delay_s": 0.05, "delay_ranks": [1]})
    two_ranks.call(train_on, config, tmp_path)
    assert_about(steps(tmp_path, 1, "input_s"), 0.05, "input")
    assert steps(tmp_path, 0, "input_s") < 0.5 * 0.05


def waits_for_input(input_s: float) -> dict:
    """A table of one layer, for 8 samples."""
    layer = {"name": "a", "bytes": 1024, "forward_s": 0.02, "backward_s": 0.04}
    return {"layers": [layer], "samples": 8, "optimizer_s": 0.0, "input_s": input_s}


def test_the_input_of_a_table_is_input_of_each_micro_batch(two_ranks, tmp_path):
    model = {"table": waits_for_input(0.03), "optimizer_s": None}
    config = make_config(SMALL, 2, model=model, train={"global_batch_size": 16})
    assert two_ranks.call(train_on, config, tmp_path)[0].accumulation == 2
    for rank in range(2):  # half as long for half the samples, twice in a step
        assert_about(steps(tmp_path, rank, "input_s"), 0.03, "input")
        assert_about(steps(tmp_path, rank, "compute_s"), 0.06, "compute")


def test_loader_processes_that_are_ahead_do_not_hide_the_input_of_a_table(tmp_path):
    """For it is what was left to wait for."""
    model = {"table": waits_for_input(0.06), "optimizer_s": None}
    train_on(alone(), make_config(SMALL, 1, model=model, data={"workers": 1}), tmp_path)
    assert_about(steps(tmp_path, 0, "input_s"), 0.03, "input")


def test_a_slow_loader_comes_on_top_of_the_input_of_a_table(two_ranks, tmp_path):
    model = {"table": waits_for_input(0.06), "optimizer_s": None}
    config = make_config(SMALL, 2, model=model, data={"delay_s": 0.05, "delay_ranks": [1]})
    two_ranks.call(train_on, config, tmp_path)
    assert_about(steps(tmp_path, 0, "input_s"), 0.03, "input of the table")
    assert_about(steps(tmp_path, 1, "input_s") - steps(tmp_path, 0, "input_s"), 0.05, "delay on top")


def test_an_emulated_optimizer_is_optimizer_time(two_ranks, tmp_path):
    two_ranks.call(train_on, make_config(SMALL, 2, model={"optimizer_s": 0.04}), tmp_path)
    assert_about(steps(tmp_path, 0, "optimizer_s"), 0.04, "optimizer")


def test_a_table_of_a_measured_run_takes_as_long_as_it_did(one_thread, tmp_path):
    real = Config.model_validate(
        {
            "model": {"kind": "gpt", "layers": 2, "width": 128, "heads": 4},
            "data": {
                "kind": "synthetic",
                "task": "language",
                "seq_len": 128,
                "vocab": 64,
                "valid_samples": 8,
            },
            "train": {"steps": 12, "local_batch_size": 8},
            "telemetry": {"warmup_steps": 3, "sinks": [], "profiled_steps": 0, "layer_passes": 4},
            "resources": {"device": "cpu"},
        }
    )
    measured = train_on(alone(), real, tmp_path / "real")
    attempt: Attempt = RunDir(tmp_path / "real").attempt(0)
    layers = Layers.model_validate(read_json(attempt.layers))
    assert sum(layer.bytes for layer in layers.layers) == 4 * measured.parameters
    table = table_of(layers, measured, "real")
    assert parse_table(table.model_dump(mode="json")) == table
    again = make_config(
        SMALL,
        1,
        model={"table": table.model_dump(mode="json"), "optimizer_s": None},
        train={"local_batch_size": 8},
    )
    replayed = train_on(alone(), again, tmp_path / "emulated")
    assert replayed.parameters == measured.parameters
    replayed_s = steps(tmp_path / "emulated", 0, "compute_s")
    assert_about(replayed_s, measured.composition["compute_s"], "compute of the replayed table")
    assert replayed.emulated
    assert not measured.emulated
