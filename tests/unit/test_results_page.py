"""The page of results: current, complete without results, and with those of a GPU once there are some."""

from __future__ import annotations

import json
import shutil

from analysis import quoted_figures
from benchmarks.result_record import RESULTS
from benchmarks.results_page import PAGE, page


def test_the_committed_page_is_current():
    assert PAGE.read_text() == page()


def test_without_results_every_row_of_ours_is_not_measured(tmp_path):
    text = page(tmp_path)
    assert "**emulated** |" not in text
    assert "| not measured |" in text
    assert text.count("*quoted* |") == sum(len(each.devices) for each in quoted_figures.SCALING) + len(
        [*quoted_figures.STRATEGIES, *quoted_figures.PRECISION, quoted_figures.BUCKETS]
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
    for name, rate in (("fp32", 10.0), ("bf16", 25.0)):
        figures = {"samples_per_s": rate, "peak_memory_bytes": 8e9, "device": "NVIDIA H100"}
        record = {"part": name, "status": "ok", "result": figures}
        (folder / f"{name}.json").write_text(json.dumps(record))
    (folder / "resnet50.json").write_text(
        json.dumps({"part": "resnet50", "status": "failed", "result": None})
    )
    text = page(tmp_path)
    assert "| ours: GPT-2 124M, bf16 | **GPU** | 8.0 GB | 2.50x |" in text
    assert "resnet50, NVIDIA" not in text
