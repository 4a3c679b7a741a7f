"""The trainer on a real GPU: it runs ahead of the device in every step, and resumes to the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from disttrain.engine.train import batches_of, begin
from disttrain.runtime.process_group import World
from disttrain.runtime.run_output import RunOutput
from disttrain.telemetry.step_clock import make_clock
from disttrain.telemetry.steps import StepResult
from tests.support.step_logs import step_log
from tests.support.stopping import config, train_until

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = torch.device("cuda", 0)
ON_GPU = World(rank=0, size=1, local_rank=0, local_size=1, device=DEVICE, backend=None)


SECTIONS: dict[str, dict[str, Any]] = {
    "single": {"parallel": {"strategy": "single"}},
    "single, compiled": {"parallel": {"strategy": "single"}, "compile": {"scope": "blocks"}},
    "ddp": {"parallel": {"strategy": "ddp"}},
    "fsdp": {"parallel": {"strategy": "fsdp"}},
    "fsdp, no_sync": {"parallel": {"strategy": "fsdp", "fsdp": {"accumulation": "no_sync"}}},
    "fsdp, compiled": {"parallel": {"strategy": "fsdp"}, "compile": {"scope": "blocks"}},
}
"""Each with two micro-steps in a step."""


@pytest.fixture(params=SECTIONS)
def sections(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Those of a config. DDP and FSDP get a group of one rank, whose steps are those of any other rank."""
    if SECTIONS[request.param]["parallel"]["strategy"] != "single":
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=DEVICE)
    yield SECTIONS[request.param]
    if dist.is_initialized():
        dist.destroy_process_group()


def test_no_step_waits_for_the_device(sections, tmp_path):
    made = config(
        train={"steps": 40, "local_batch_size": 4, "global_batch_size": 8, "log_every": 5},
        resources={"device": "cuda"},
        telemetry={"profiled_steps": 0, "gpu_every_s": 0},
        **sections,
    )
    trainer = begin(made, RunOutput.of_job(tmp_path, 0), ON_GPU)
    batches = batches_of(trainer)
    try:
        for step in range(1, 31):
            if step == 16:  # DDP itself waits for its own clock in its first ten steps
                torch.cuda.set_sync_debug_mode("error")
            trainer.step(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.close()
    assert trainer.metrics().measured_steps == 28


def test_nor_does_a_comparison(tmp_path):
    log = step_log(tmp_path / "steps.jsonl", make_clock(DEVICE), ON_GPU)
    log.clock.start()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError):
            torch.tensor([1.0], device=DEVICE)  # what the mode is there to see
        for step in range(1, 3):
            log.record(StepResult(step, torch.zeros((), device=DEVICE), 0.1))
            log.clock.end_step()
            log.reduce()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    log.reduce(wait=True)
    assert len(log.series["step_s"]) == 2


@pytest.mark.parametrize("kept", [True, False], ids=["exact", "without the GPU's random numbers"])
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path, monkeypatch, kept):
    """With dropout; and the second one sees that the state of the GPU's generator is what it takes."""
    made = config(resources={"device": "cuda"}, train={"eval_every": 5})
    whole = train_until(ON_GPU, made, tmp_path / "whole", 0, None)
    if not kept:
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)
    parts = [train_until(ON_GPU, made, tmp_path / "parts", k, stop) for k, stop in enumerate([4, 9, None])]
    assert [part.metrics.steps for part in parts] == [4, 9, 12]
    assert [batch for part in parts for batch in part.inputs] == whole.inputs
    assert (parts[-1].parameters == whole.parameters) is kept
    assert (parts[-1].metrics.loss_history == whole.metrics.loss_history) is kept
