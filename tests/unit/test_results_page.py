"""The page of results: current, complete without results, and with those of a GPU once there are some."""

from __future__ import annotations

import json
import shutil

from benchmarks import comm_bench, quoted, trainer
from benchmarks.result_record import RESULTS
from benchmarks.results_page import PAGE, page
from benchmarks.results_text import NONE
from tests.support.comm_bench import result


def test_the_committed_page_is_current():
    assert PAGE.read_text() == page()


def test_without_results_every_row_of_ours_is_not_measured(tmp_path):
    text = page(tmp_path)
    assert "**emulated** |" not in text
    assert "| not measured |" in text
    assert text.count("*quoted* |") == sum(len(each.devices) for each in quoted.SCALING) + len(
        [*quoted.STRATEGIES, *quoted.PRECISION, quoted.BUCKETS]
    )


def test_the_newest_record_of_a_label_counts(tmp_path):
    name = "gradient_communication.jsonl"
    shutil.copy(RESULTS / name, tmp_path / name)
    newest = json.loads((tmp_path / name).read_text().splitlines()[-1])
    newest["figures"]["schemes"]["topk"]["step_ms"] = 12345.0
    with open(tmp_path / name, "a") as file:
        file.write(json.dumps(newest) + "\n")
    (row,) = [line for line in page(tmp_path).splitlines() if line.startswith("| topk ")]
    assert row.startswith("| topk | **CPU** | 12345 |")
    assert row.endswith("| 118.5 | 4.7 | 9.6x |")


def test_parts_of_make_gpu_replace_what_is_not_measured(tmp_path):
    folder = tmp_path / "gpu" / "20260101T000000Z"
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text("{}")
    for name, rate in (("fp32", 10.0), ("bf16", 25.0), ("ddp-shared", 20.0)):
        figures = {"samples_per_s": rate, "peak_memory_bytes": 8e9, "device": "NVIDIA H100", "world_size": 2}
        record = {"part": name, "status": "ok", "result": figures}
        (folder / f"{name}.json").write_text(json.dumps(record))
    (folder / "resnet50.json").write_text(
        json.dumps({"part": "resnet50", "status": "failed", "result": None})
    )
    text = page(tmp_path)
    assert "| ours: GPT-2 124M, bf16 | **GPU** | 8.0 GB | 2.50x |" in text
    assert "| ours: GPT-2 124M, ddp, 2 ranks on one NVIDIA H100 | **GPU** | 1 | 20 | 8.0 GB |" in text
    assert "resnet50, NVIDIA" not in text


def test_runs_on_several_gpus_fill_the_rows_that_were_not_measured(tmp_path):
    """Made-up figures: no machine with several GPUs has measured any."""
    phases = {"compute_s": 0.09, "comm_wait_s": 0.002, "comm_transfer_s": 0.008, "checkpoint_s": None}
    figures = {
        "resnet50": (2000, "single"), "resnet50-on-4-gpus": (7200, "ddp"),
        "gpt-1.3b-on-8-gpus": (40, "fsdp"),
        "bf16": (100, "single"), "bf16-dp-on-4-gpus": (300, "dp"), "bf16-on-4-gpus": (390, "ddp"),
    }  # fmt: skip
    folder = tmp_path / "gpu" / "20260101T000000Z"
    folder.mkdir(parents=True)
    for name, (rate, strategy) in figures.items():
        result = {"samples_per_s": rate, "tokens_per_s": 2048 * rate, "strategy": strategy}
        result |= {"peak_memory_bytes": 8e9, "device": "NVIDIA X", "composition": phases}
        (folder / f"{name}.json").write_text(json.dumps({"part": name, "status": "ok", "result": result}))
    text = page(tmp_path)
    for row in (
        "| ours: resnet50, NVIDIA X | **GPU** | 1 | 2,000 images/s | 1x | 100 % | 0 % |",
        "| ours: resnet50, ddp, NVIDIA X | **GPU** | 4 | 7,200 images/s | 3.6x | 90 % | 10.0 % |",
        f"| ours: gpt-1.3b, fsdp, NVIDIA X | **GPU** | 8 | 81,920 tokens/s | {NONE} | {NONE} | 10.0 % |",
        "| ours: GPT-2 124M, bf16, single | **GPU** | 1 | 100 | 8.0 GB |",
        "| ours: GPT-2 124M, bf16, DataParallel | **GPU** | 4 | 300 | 8.0 GB |",
        "| ours: GPT-2 124M, bf16, DDP | **GPU** | 4 | 390 | 8.0 GB |",
    ):
        assert row in text
    assert "| ResNet-50, DDP, more than 4 GPUs | not measured |" in text
    assert "1 to 64 GPUs" not in text
    assert "| ours: single, DataParallel, DDP on four GPUs | not measured |" not in text
    assert "| GPT of 1.3 B, FSDP, more than 8 GPUs | not measured |" in text


def trainer_record(device, label, ranks=4):
    """A record of `benchmarks.trainer` with two launches; `ddp` is 3.6 times as fast as `single`."""
    launches = {
        name: [{"seconds": {"disttrain": [seconds], "bare": [seconds]}, "samples_per_round": samples}] * 2
        for name, seconds, samples in (("single", 1.0, 1200), ("ddp", 1.0, 4320))
    }
    raw = {"device": device, "ranks": ranks, "strategies": launches}
    machine = {"processor": "AMD EPYC", "cpu_count": 2, "load_at_start": 0.1}
    record = {"label": label, "date": "2026-01-01T00:00", "command": "c", "commit": None, "machine": machine}
    return json.dumps(record | {"figures": trainer.figures(raw), "raw": raw}) + "\n"


def test_strategies_come_from_records_of_the_trainer(tmp_path):
    (tmp_path / "trainer.jsonl").write_text(trainer_record("cpu", "two-cores", 2))
    text = page(tmp_path)
    assert (
        f"| ours: GPT of record two-cores, single (ranks on a CPU) | **CPU** | 1 | 1,200 | {NONE} |" in text
    )
    assert f"| ours: GPT of record two-cores, ddp (ranks on a CPU) | **CPU** | 2 | 4,320 | {NONE} |" in text
    assert "ddp | **GPU**" not in text  # two ranks on a CPU are no curve over devices
    (tmp_path / "trainer.jsonl").write_text(trainer_record("cuda", "four-gpus"))
    text = page(tmp_path)
    assert f"| ours: GPT of record four-gpus, ddp (GPUs) | **GPU** | 4 | 4,320 | {NONE} |" in text
    assert (
        f"| ours: GPT of record four-gpus, single | **GPU** | 1 | 1,200 samples/s | 1.00x | 100 % | {NONE} |"
        in text
    )
    assert (
        f"| ours: GPT of record four-gpus, ddp | **GPU** | 4 | 4,320 samples/s | 3.60x | 90 % | {NONE} |"
        in text
    )


def test_rows_of_two_models_of_the_trainer_have_different_names():
    rows = [
        line for line in page().splitlines() if line.startswith("| ours: GPT") and "ranks on a CPU" in line
    ]
    names = [row.split("|")[1].strip() for row in rows]
    assert "ours: GPT of 4 layers of width 256, ddp (ranks on a CPU)" in names
    assert len(names) == len(set(names)) > 0


def test_a_saved_communication_benchmark_has_a_table(tmp_path):
    found = result()
    (largest,) = found.collectives
    small = largest.model_copy(update={"bytes": 2**18, "bus_bytes_per_s": 9e8})  # a burst of the link
    found = found.model_copy(update={"collectives": [small, largest, small]})
    raw = {"link_mbit": 1000.0, "result": found.model_dump(mode="json")}
    machine = {"processor": "AMD EPYC", "cpu_count": 2, "load_at_start": 0.1}
    record = {"label": "gbit", "date": "2026-01-01T00:00", "command": "c", "commit": None, "machine": machine}
    record |= {"figures": comm_bench.figures(raw), "raw": raw}
    (tmp_path / "comm_bench.jsonl").write_text(json.dumps(record) + "\n")
    text = page(tmp_path)
    assert "| topk | **CPU** | 10.0 | 0.8 | 2.50x | 2.40 to 2.60 | 118.5 | 4.7 | 9.6x |" in text
    assert "2 nodes x 2 ranks, all on one machine, links of 1000 Mbit/s" in text
    assert "Bus bandwidth of the largest message: all-reduce 150 MB/s at 1 MiB." in " ".join(text.split())
    assert "No result is saved yet." in page(tmp_path / "none")
