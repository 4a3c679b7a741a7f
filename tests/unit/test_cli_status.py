"""The verbs that only read: `status`, `show`, `logs`, `watch`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain.records import collect_provenance
from disttrain.records.json_files import write_json
from jobs.cli import follow
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import RunState
from tests.support.states import make_run
from tests.support.verbs import RUNS, STATES, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")


def test_status_prints_every_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalScheduler, "poll", lambda *_: {})  # it has no ticket of the queued run
    assert ask(capsys, "status").startswith("no runs in runs yet")
    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "other/old", "done", code="0" * 12)
    out = ask(capsys, "status tiny")
    for state in STATES:
        assert [line.split()[1] for line in out.splitlines() if line.startswith(f"{state} ")] == [state]
    assert "crashed: rank 1: ValueError: no" in out
    assert "\nSAMPLES/S: the measured steps after telemetry.warmup_steps. The report also leaves out" in out
    assert "8 runs: 1 running, 1 failed, 1 lost, 1 corrupt, 1 cancelled, 1 queued, 1 planned, 1 done" in out
    make_run(RUNS, "none/measured", "planned")
    assert "SAMPLES/S:" not in ask(capsys, "status none")
    old = next(line for line in ask(capsys, "status").splitlines() if line.startswith("other/old "))
    assert old.split() == ["other/old", "done", "20/40", "812.5", "2.25", "made", "by", "older", "code"]
    by_name = {run["run"]: run for run in ask_json(capsys, "status")["runs"]}
    assert by_name["running"]["step"] == 20
    assert by_name["running"]["eta_s"] == 70.0
    assert by_name["old"]["stale"] is True
    assert by_name["cancelled"]["state"] == "cancelled"


def test_state_selects_runs_and_refuses_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("done", "failed", "lost", "cancelled"):
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "other/fine", "done")
    out = ask(capsys, "status --state failed,lost")
    assert [line.split()[0] for line in out.splitlines() if line] == [
        "SWEEP",
        "tiny",
        "RUN",
        "failed",
        "lost",
        "SAMPLES/S:",
        "2",
    ]
    assert "tiny    1/4  1 failed, 1 lost, 1 cancelled, 1 done  " in out
    assert ask(capsys, "status other --state lost") == "none of 1 run: 1 done\n"
    assert [run["run"] for run in ask_json(capsys, "status --state cancelled")["runs"]] == ["cancelled"]
    assert submit.main(["status", "--state", "failed,runing"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --state: 'runing' is not one of planned, submitting, queued, starting, ")
    assert said.endswith("; did you mean 'running'?\n")
    out = ask(capsys, "watch tiny --state lost")
    assert "tiny/lost lost" in out
    assert "1 run: 1 lost" in out
    assert "tiny/failed" not in out


def test_show_prints_config_attempts_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    write_json(
        run.env_json,
        {"variables": {"OMP_NUM_THREADS": {"value": "1", "reason": "because", "source": "derived"}}},
    )
    write_json(run.attempt(0).record, {"attempt": 0, "started": "2026-01-01T00:00:00", "cause": "crashed"})
    node = {"node": 0, "host": "node7", "processors_usable": 8, "memory_bytes": 2**34, "driver": "560.35"}
    node |= {"gpus": [{"name": "NVIDIA H100"}] * 2, "fabrics": [{"name": "mlx5_0", "rate": "400 Gb/sec"}]}
    node |= {"interfaces": [{"name": "eth0", "speed_mbit": 10_000}, {"name": "ib0", "speed_mbit": None}]}
    write_json(run.attempt(0).node_record(0), node)
    write_json(run.attempt(0).path / "node-01.exit.json", {"code": 1})
    metrics = {"schema_version": 1, "composition": {"input_s": 0.9, "comm_wait_s": 0.1, "other_s": None}}
    metrics |= {"measured_steps": 34, "warmup_steps": 3, "sampled_steps": 2}
    metrics |= {"samples_per_s": 1234.5, "eval_history": [{"loss": 1.5, "metrics": {"bits_per_byte": 2.25}}]}
    write_json(run.metrics, metrics)
    out = ask(capsys, "show n1")
    for text in (
        "state    failed: crashed: rank 1: ValueError: no",
        "OMP_NUM_THREADS=1  because  derived",
        "0       2026-01-01T00:00:00  crashed",
        "node7: 8 processors, 16 GiB, 2 x NVIDIA H100, driver 560.35, eth0 10 Gbit/s, ib0, mlx5_0 400 Gb/sec",
        "samples/s                 1234.5",
        "measured steps            34, without 3 of warm-up and 2 profiled; the report leaves out a longer",
        "step time by phase        input 90 %, comm wait 10 %",
        "validation bits per byte  2.25",
        "logs  runs/tiny/n1/attempts/000",
    ):
        assert text in out, out
    assert re.search(r"^ *train\.steps +40$", out, re.M), out
    assert ask_json(capsys, "show tiny/n1")["metrics"] == metrics
    assert ask_json(capsys, "show tiny/n1")["node_records"] == [node]
    write_json(run.metrics, {})
    run.metrics.write_text("{")
    assert "results" not in ask(capsys, "show n1")


def test_logs_choose_the_rank_the_node_and_the_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    assert submit.main(["logs", "n1"]) == 2
    assert "has no log: it has not started (state: failed)" in capsys.readouterr().err
    for attempt in (run.attempt(0), run.attempt(1)):
        attempt.path.mkdir(parents=True)
        attempt.node_log(0).write_text(f"node 0 attempt {attempt.number}\n")
    assert ask(capsys, "logs n1") == "node 0 attempt 1\n"  # no rank came up: its node says why
    run.attempt(1).rank_log(0).write_text("one\ntwo")
    assert ask(capsys, "logs n1") == "one\ntwo\n"
    assert ask(capsys, "logs n1 --node 0 --attempt 0") == "node 0 attempt 0\n"
    assert ask(capsys, "logs n1 -f") == "one\ntwo\n"  # it has ended: nothing to follow
    assert ask(capsys, "logs n1 --json").splitlines()[0] == '{"log": "rank-00000", "line": "one"}'
    assert submit.main(["logs", "n1", "--rank", "3"]) == 2
    assert "existing logs: node-00, rank-00000" in capsys.readouterr().err
    assert submit.main(["logs", "n1", "--attempt", "7"]) == 2
    assert "has attempts 0, 1" in capsys.readouterr().err


def test_watch_with_nothing_to_watch(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1")
    assert ask(capsys, "watch").startswith("no run is waiting or running")
    assert "tiny/n1 done  step 20/40" in ask(capsys, "watch tiny")
    assert ask_json(capsys, "watch tiny")["runs"][0]["state"] == "done"


def test_following_runs_hashes_the_code_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(RUNS, "tiny/a", "running")
    hashed: list[bool] = []
    monkeypatch.setattr(collect_provenance, "code_hash", lambda: hashed.append(True) or "code")
    monkeypatch.setattr("jobs.cli.selection.code_hash", collect_provenance.code_hash)

    def three_times(runs: follow.PolledRuns, root: Path, **_: Any) -> list[RunState]:
        return [runs.read() for _ in range(3)][-1]

    monkeypatch.setattr(follow, "follow", three_times)
    ask(capsys, "watch")
    assert len(hashed) == 1
