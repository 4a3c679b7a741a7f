"""The verbs that only read, `status`, `show` and `watch`, and their tables."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttrain.records import collect_provenance
from disttrain.records.json_files import write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import follow
from jobs.cli.formatting import duration, number, size, some_of
from jobs.cli.tables import resource_cells, state_note, status_table, step_of, sweep_table, throughput
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import RunState, StateName
from tests.support.states import make_run
from tests.support.verbs import RUNS, STATES, ask, ask_json, refused

pytestmark = pytest.mark.usefixtures("cluster")
RUN = RunState(RunDir(Path("runs/s/a")), "running", step=19, steps=40)
GPU = {"gpu_utilization": 0.874, "gpu_memory_used_bytes": 61.25e9, "gpu_power_w": 412.4}


def names(document: dict[str, Any]) -> list[str]:
    return [run["run"] for run in document["runs"]]


def test_status_prints_every_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalScheduler, "poll", lambda *_: {})  # it has no ticket of the queued run
    assert ask(capsys, "status").startswith("no runs in runs yet")
    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "other/old", "done", code="0" * 12)
    out = ask(capsys, "status tiny")
    assert all(f"\n{state} " in out for state in STATES)
    assert "8 runs: 1 running, 1 failed, 1 lost, 1 corrupt, 1 cancelled, 1 queued, 1 planned, 1 done" in out
    assert "\nSAMPLES/S: " in out
    make_run(RUNS, "none/measured", "planned")
    assert "SAMPLES/S:" not in ask(capsys, "status none")
    by_name = {run["run"]: run for run in ask_json(capsys, "status")["runs"]}
    assert (by_name["running"]["step"], by_name["running"]["eta_s"]) == (20, 70.0)
    assert [by_name[name]["stale"] for name in ("old", "done")] == [True, False]
    assert by_name["cancelled"]["state"] == "cancelled"


def test_state_selects_runs_and_refuses_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("done", "failed", "lost", "cancelled"):
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "other/fine", "done")
    for options, expected in (
        ("--state failed,lost", ["failed", "lost"]),
        ("--state cancelled", ["cancelled"]),
        ("other --state lost", []),
    ):
        assert names(ask_json(capsys, f"status {options}")) == expected
    assert "tiny    1/4  1 failed, 1 lost, 1 cancelled, 1 done  " in ask(capsys, "status --state lost"), (
        "of all"
    )
    assert names(ask_json(capsys, "watch tiny --state lost")) == ["lost"]
    error = refused(capsys, "status --state failed,runing")
    assert error.startswith("error: --state: 'runing' is not one of ")
    assert error.endswith("; did you mean 'running'?\n")


def test_show_prints_config_attempts_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    variable = {"value": "1", "reason": "because", "source": "derived"}
    write_json(run.env_json, {"variables": {"OMP_NUM_THREADS": variable}})
    write_json(run.attempt(0).record, {"attempt": 0, "started": "2026-01-01T00:00:00", "cause": "crashed"})
    node = {"node": 0, "host": "node7", "processors_usable": 8, "memory_bytes": 2**34, "driver": "560.35"}
    node |= {"gpus": [{"name": "NVIDIA H100"}] * 2, "fabrics": [{"name": "mlx5_0", "rate": "400 Gb/sec"}]}
    node |= {"interfaces": [{"name": "eth0", "speed_mbit": 10_000}, {"name": "ib0", "speed_mbit": None}]}
    write_json(run.attempt(0).node_record(0), node)
    metrics = {"schema_version": 1, "composition": {"input_s": 0.9, "comm_wait_s": 0.1, "other_s": None}}
    metrics |= {"measured_steps": 34, "warmup_steps": 3, "sampled_steps": 2, "samples_per_s": 1234.5}
    write_json(run.metrics, metrics)
    out = " ".join(ask(capsys, "show n1").split())
    for text in (
        "state failed: crashed: rank 1: ValueError: no", "OMP_NUM_THREADS=1 because derived",
        "0 2026-01-01T00:00:00 crashed", "samples/s 1234.5", "input 90 %, comm wait 10 %", "train.steps 40",
        "node7: 8 processors, 16 GiB, 2 x NVIDIA H100, driver 560.35, eth0 10 Gbit/s, ib0, mlx5_0 400 Gb/sec",
    ):  # fmt: skip
        assert text in out, out
    every = " ".join(ask(capsys, "show n1 --all").split())
    assert ("train.seed 0" in out, "train.seed 0" in every) == (False, True)
    gpu = {"gpus": 2, "utilization": 0.75, "idle": 0.25, "sampled_s": 240.0, "power_mean_w": 310.4}
    gpu |= {"energy_j": 148992.0, "memory_used_peak_bytes": 2**33}
    processes = {"ranks": 2, "cpu_percent": 150.0, "rss_peak_bytes": 2**30}
    write_json(run.attempt(0).hardware(0), {"gpu": gpu, "processes": processes})
    out = " ".join(ask(capsys, "show n1").split())
    for text in ("gpu_utilization 0.75", "gpu_power_w 310.4", "gpu_idle_s 60", "processors 1.5"):
        assert text in out, out
    shown = ask_json(capsys, "show tiny/n1")
    assert shown["hardware"]["gpus"] == 2
    assert (shown["metrics"], shown["node_records"]) == (metrics, [node])
    run.metrics.write_text("{")
    assert "results" not in ask(capsys, "show n1")


def test_watch_without_active_runs_ends_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1")
    assert ask_json(capsys, "watch")["runs"] == []
    assert [run["state"] for run in ask_json(capsys, "watch tiny")["runs"]] == ["done"]


def test_following_runs_hashes_the_code_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(RUNS, "tiny/a", "running")
    hashed: list[str] = []

    def code_hash() -> str:
        hashed.append("code")
        return "code"

    monkeypatch.setattr(collect_provenance, "code_hash", code_hash)
    monkeypatch.setattr("jobs.cli.selection.code_hash", code_hash)

    def three_times(runs: follow.PolledRuns, root: Path, **_: Any) -> list[RunState]:
        return [runs.read() for _ in range(3)][-1]

    monkeypatch.setattr(follow, "follow", three_times)
    ask(capsys, "watch")
    assert len(hashed) == 1


def test_throughput_is_the_mean_over_the_measured_steps_else_the_live_rate() -> None:
    for mean, live, shown in ((812.5, 790.25, "812.5"), (None, 790.25, "790.2 now"), (None, None, "")):
        state = replace(RUN, samples_per_s=mean, live_samples_per_s=live)
        assert throughput(state) == shown
        assert (" samples/s" in follow.change_line(state)) is bool(shown)
    assert "  790.2 samples/s now" in follow.change_line(replace(RUN, live_samples_per_s=790.25))


def test_cells_of_steps_and_resources() -> None:
    assert [step_of(replace(RUN, steps=steps)) for steps in (40, None)] == ["19/40", "19"]
    cpu = {"cpu_percent": 198.2, "rss_bytes": 379e6}
    for changes, cells in (
        ({}, ("", "", "")),
        (GPU | cpu, ("gpu 87%", "61.2 GB", "412 W")),
        ({"gpu_utilization": 0.5}, ("gpu 50%", "", "")),
        (cpu, ("cpu 198%", "379 MB", "")),
        (GPU | {"state": "done"}, ("", "", "")),
    ):
        state = replace(RUN, **changes)
        assert resource_cells(state) == cells
        assert ("UTIL" in status_table([state])) is bool(cells[0]), "an empty column is left out"
        assert "  ".join(cells).rstrip() in follow.change_line(state)


def test_the_note_of_a_run() -> None:
    failed = replace(RUN, state="failed", cause="crashed", message="rank 1:\n no")
    for state, note in (
        (failed, "crashed: rank 1: no"),
        (replace(failed, attempts=2, emulated=True), "emulated; 2 attempts; crashed: rank 1: no"),
        (replace(failed, cause="stopped"), "rank 1: no"),
        (replace(failed, message="x" * 200), f"crashed: {'x' * 90}…"),
        (replace(RUN, state="done", stale=True, emulated=True, attempts=2), "emulated, made by older code"),
    ):
        assert state_note(state) == note


def test_each_sweep_has_a_line_with_counts_and_newest_activity() -> None:
    def state(sweep: str, name: StateName, ago: float | None) -> RunState:
        changed = None if ago is None else time.time() - ago
        return replace(RUN, run=RunDir(Path(f"runs/{sweep}/a")), state=name, changed=changed)

    states = [state("x", "done", 9e5), state("x", "failed", 40), state("y", "planned", None)]
    head, first, second = sweep_table([*states, state("x", "done", 99)]).splitlines()
    assert head.split() == ["SWEEP", "DONE", "STATES", "CHANGED"]
    assert first.split("  ")[0] == "x"
    assert first.endswith("  2/3  1 failed, 2 done  40 s ago")
    assert second.split() == ["y", "0/1", "1", "planned"]


def test_durations_numbers_and_sizes() -> None:
    seconds = (None, -1, 59.4, 59.6, 187, 3599.4, 3600, 7529, 86369, 86371, 90000, 273600)
    assert [duration(each) for each in seconds] == [
        "", "0 s", "59 s", "1:00 min", "3:07 min", "59:59 min", "1:00 h", "2:05 h", "23:59 h", "1 d 0 h",
        "1 d 1 h", "3 d 4 h",
    ]  # fmt: skip
    assert [number(each) for each in (None, 0.00012345, 812.46, 123456.0, 2e9)] == [
        "",
        "0.0001234",
        "812.5",
        "123,456",
        "2e+09",
    ]
    assert [size(each) for each in (None, 999e6, 1e9)] == ["", "999 MB", "1.0 GB"]
    assert [some_of("abcdefg"[:length]) for length in (4, 5)] == ["a, b, c, d", "a, b, c and 2 more"]
