"""`make gpu` on a machine without a GPU: each part in a tiny version, time limits, and parts that fail."""

from __future__ import annotations

import gc
import json
import math
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import trainer, trainer_turns
from benchmarks.gpu import __main__ as gpu_parts
from benchmarks.gpu import memory, training
from benchmarks.gpu.__main__ import PARTS, Part, main, run_all, several_gpu_parts
from benchmarks.gpu.matmul import matmul_rates
from disttrain.config.parsing import Draft, check
from disttrain.telemetry.background_writer import BackgroundWriter
from disttrain.telemetry.live_progress import LiveProgress


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "gpu: CUDA finds no GPU on this machine; nothing was run\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", training.RUNS)
def test_each_training_run_works_in_its_tiny_version(name: str, tmp_path: Path) -> None:
    found = training.measure(name, tmp_path, "cpu", tiny=True)
    assert found is not None
    assert found["samples_per_s"] > 0
    assert found["measured_steps"] == (3 if name == "profile" else 4)
    assert found["device"] == "cpu"
    if name == "profile":
        (step,) = found["profile"]["steps"]
        assert 0 < step["idle_s"] < step["step_s"]
        assert step["longest_gaps_s"][0][1] <= step["idle_s"]
        assert found["attention"]["_scaled_dot_product_flash_attention_for_cpu"] == 2
    json.dumps(found)


@pytest.mark.parametrize(
    ("name", "ranks", "gpus", "strategy"),
    [
        *((name, 1, 1, None) for name in training.RUNS),
        ("bf16", 1, 4, "dp"),
        ("bf16", 4, 1, "ddp"),
        ("resnet50", 4, 1, "ddp"),
        ("gpt-1.3b", 4, 1, "fsdp"),
    ],
)
def test_configs_for_gpus_are_valid_and_keep_the_batch_of_a_gpu(
    name: str, ranks: int, gpus: int, strategy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = training.config_of(name, "cuda", tiny=False)
    for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, str(ranks))
    config = training.config_of(name, "cuda", tiny=False, gpus=gpus)
    assert check(Draft(config.as_dict())) == config
    assert strategy in (None, config.parallel.strategy)
    assert (config.resources.gpus_per_node, config.gpus_per_rank) == (ranks * gpus, gpus)
    assert config.train.local_batch_size == gpus * alone.train.local_batch_size


def test_parts_are_those_of_the_machine_and_their_modules_exist(tmp_path: Path) -> None:
    assert several_gpu_parts(1) == ()
    parts = {part.name: part for part in several_gpu_parts(5)}
    assert [name for name in parts if name.endswith("-4-gpus")] == [
        "bf16-on-4-gpus", "resnet50-on-4-gpus", "gpt-1.3b-on-4-gpus", "bf16-dp-on-4-gpus",
    ]  # fmt: skip
    assert not [name for name in parts if "-8-" in name]
    command = " ".join(parts["bf16-dp-on-4-gpus"].command("cuda", False, tmp_path))
    assert "--gpus 4" in command
    assert "torch.distributed.run" not in command
    assert {part.name for part in PARTS if "benchmarks.gpu.training" in part.module} == set(training.RUNS)
    assert all(part.command("cuda", False, tmp_path)[-1] == "cuda" for part in PARTS if part.options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [part.name for part in PARTS]),
        (["--only", "fp32", "bf16-on-2-gpus"], ["fp32", "bf16-on-2-gpus"]),
        (["--limit-s", "3600"], [part.name for part in (*PARTS, *several_gpu_parts(2))]),
    ],
)
def test_parts_on_several_gpus_run_if_named_or_given_time(
    options: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    started: list[str] = []

    def run_part(part: Part, *_: object) -> dict[str, object]:
        started.append(part.name)
        return {"part": part.name, "status": "ok", "seconds": 0.0}

    monkeypatch.setattr(gpu_parts, "run_part", run_part)
    assert main(["--folder", str(tmp_path), *options]) == 0
    assert started == expected


def test_the_part_on_overhead_gives_the_trainer_s_benchmark_options_that_it_has() -> None:
    (part,) = [part for part in PARTS if part.name == "overhead"]
    words = part.command("cpu", True, Path())[3:]
    given = trainer.build_parser().parse_args(words)
    assert (given.cases, given.peers, given.device, given.size) == (["single"], ["bare"], "cpu", "tiny")


def test_the_turns_of_the_trainer_and_a_bare_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[BackgroundWriter] = []
    monkeypatch.setattr(BackgroundWriter, "wait", lambda writer: waits.append(writer))
    found = trainer_turns.launch("single", ["bare"], "tiny", 2, "cpu", seed=1)
    assert found
    assert {name: len(seconds) for name, seconds in found["seconds"].items()} == {"disttrain": 2, "bare": 2}
    assert len(waits) == 3  # no write is left to a turn of the other loop: warm-up and two rounds
    shown = trainer.figures({"cases": {"single": [found, found]}})["single"]
    assert shown["samples_per_s"] > 0
    logs = trainer.log_ratio(found["seconds"], "bare", "disttrain")
    assert shown["bare"]["ratio"] == pytest.approx(math.exp(logs))


def test_turns_of_other_loops_make_no_log_line_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the other loop lasts 100 s by the clock of the machine, one of the trainer 0 s."""
    machine = SimpleNamespace(now=0.0, time=time.time, thread_time=time.thread_time)
    machine.monotonic = machine.perf_counter = lambda: machine.now
    monkeypatch.setattr(trainer_turns, "time", machine)
    monkeypatch.setattr(trainer_turns, "bare", lambda _: lambda _: setattr(machine, "now", machine.now + 100))
    written = []
    monkeypatch.setattr(LiveProgress, "write", lambda *_: written.append("line"))
    found = trainer_turns.launch("single", ["bare"], "tiny", 2, "cpu", seed=0)
    assert found
    assert found["seconds"] == {"disttrain": [0.0, 0.0], "bare": [100.0, 100.0]}
    assert not written


@pytest.mark.parametrize("option", ["channels_last", "gc_every"])
def test_turns_with_and_without_an_option(option: str) -> None:
    found = trainer_turns.launch(option, [], "tiny", 2, "cpu", seed=0)
    assert found
    shown = trainer.figures({"cases": {option: [found, found]}})[option]
    logs = trainer.log_ratio(found["seconds"], "off", "on")
    assert shown["ratio"] == pytest.approx(math.exp(logs))


def test_garbage_is_collected_once_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(trainer_turns.gc, "collect", lambda: events.append(f"collect, {gc.isenabled()}") or 0)
    trainer_turns.collecting_by_hand(lambda steps: events.append(f"{steps} steps, {gc.isenabled()}"))(7)
    assert events[-2:] == ["7 steps, False", "collect, False"]
    assert gc.isenabled()


def test_matmul_rates() -> None:
    found = matmul_rates(torch.device("cpu"), (8, 16), ("float32", "bfloat16"))
    assert found["float32"]["flops_per_s"] > 0
    assert found["float32"]["size"] in (8, 16)
    assert found["bfloat16"]["of_peak"] is None


def test_peak_memory_with_and_without_the_options_of_a_gpu() -> None:
    found = memory.peaks("cpu", tiny=True)
    assert list(found) == list(memory.CASES)
    for case, peak in found.items():
        if "offload" in case:
            assert "needs a GPU" in peak
        else:
            # kernels of bf16 differ between processors, and so does what they allocate
            assert peak["estimate_bytes"] == pytest.approx(peak["peak_bytes"], rel=0.1)
    offloads = memory.config_of_case("fsdp, cpu_offload", "cuda", tiny=False)
    assert offloads.parallel.fsdp.cpu_offload
    assert memory.config_of_case("single, offload_activations", "cuda", False).memory.offload_activations


def script(name: str, limit_s: float, code: str, tmp_path: Path) -> Part:
    path = tmp_path / f"{name}.py"
    path.write_text(code)
    return Part(name, limit_s, shlex.quote(str(path)), options=False)


def test_a_part_that_fails_or_hangs_does_not_affect_the_others(tmp_path: Path) -> None:
    parts = [
        script("fails", 60, "print('before'); raise ValueError('of no use')", tmp_path),
        script("hangs", 1, "import time; time.sleep(600)", tmp_path),
        script("works", 60, "print('a line'); print('{\"mfu\": 0.5}')", tmp_path),
    ]
    records = run_all(parts, tmp_path / "out", "cpu", True, 300)
    assert [record["status"] for record in records] == ["failed", "timeout", "ok"]
    assert records[0]["last_lines"][-1] == "ValueError: of no use"
    assert records[1]["limit_s"] == 1
    assert records[2]["result"] == {"mfu": 0.5}
    records += run_all([script("late", 20, "", tmp_path)], tmp_path / "out", "cpu", True, 1)
    assert records[3]["status"] == "not started"
    names = ("fails", "hangs", "works", "late")
    assert [json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in names] == records
