"""The verbs of submit.py, in process, on a cluster that takes jobs and does nothing with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain.errors import ConfigError
from disttrain.provenance import code_hash
from disttrain.records import SweepRecord
from disttrain.rundir import RunDir, read_json, write_json
from jobs import ledger
from jobs.cli import cancel, live, place, report, status, watch
from jobs.cluster import Job, Room, SubmitError
from jobs.processes import host, this_process
from jobs.state import RunState, read_runs, read_state
from tests.support.jobs import NoCluster
from tests.support.states import make_run

RUNS = Path("runs")
TINY = """\
model: {kind: mlp}
data: {kind: digits}
train: {steps: 10, local_batch_size: 8}
"""


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NoCluster:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    made = NoCluster()
    for module in (place, cancel):
        monkeypatch.setattr(module, "choose", lambda *_: made)
    return made


def ask(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> str:
    """What a command line prints."""
    assert submit.main(command.split(" ")) == code
    return capsys.readouterr().out


def ask_json(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> Any:
    return json.loads(ask(capsys, f"{command} --json", code))


def states() -> dict[str, str]:
    return {state.name: state.state for state in read_runs(RUNS)}


def test_a_sweep_is_submitted_once(capsys: pytest.CaptureFixture[str], cluster: NoCluster) -> None:
    out = ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert "2 runs: 2 submitted" in out
    assert "submit.py watch tiny" in out
    assert states() == {"n1-single-b8-r0": "queued", "n2-ddp-b8-r0": "queued"}
    SweepRecord.model_validate(read_json(RUNS / "tiny" / "sweep.json"))
    again = ask_json(capsys, "sweep tiny.yaml --nodes 1 2 4")
    assert [(run["run"], run["action"]) for run in again] == [
        ("n1-single-b8-r0", "wait"),
        ("n2-ddp-b8-r0", "wait"),
        ("n4-ddp-b8-r0", "submit"),
    ]
    assert len(cluster.submitted) == 3


def test_what_is_done_is_kept_and_what_failed_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2 4")
    for name, cause in (
        ("n1-single-b8-r0", "finished"),
        ("n2-ddp-b8-r0", "crashed"),
        ("n4-ddp-b8-r0", "refused"),
    ):
        end(RunDir(RUNS / "tiny" / name), cause)
    out = ask_json(capsys, "sweep tiny.yaml --nodes 1 2 4")
    assert [run["action"] for run in out] == ["keep", "retry", "give up"]


def end(run: RunDir, cause: str) -> None:
    """Close the newest submission of a run as its job would have."""
    state = read_state(run)
    assert state.submission is not None
    assert state.code_hash is not None
    process = {"host": host(), "boot": "before", "pid": 1, "start_ticks": 0}
    attempt = ledger.claim(
        run, state.submission, process=process, job_id=state.job_id, code_hash=state.code_hash
    )
    outcome = {"cause": cause, "attempt": attempt, "message": None, "retryable": cause == "crashed"}
    write_json(run.done if cause == "finished" else run.failed, outcome)


def test_waiting_ends_with_the_runs_and_tells_how_they_went(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    end(RunDir(RUNS / "tiny/n1-single-b8-r0"), "finished")
    end(RunDir(RUNS / "tiny/n2-ddp-b8-r0"), "refused")
    assert "tiny/n1-single-b8-r0 done" in ask(capsys, "sweep tiny.yaml --nodes 1 --wait", code=0)
    assert "1 failed, 1 done" in ask(capsys, "sweep tiny.yaml --nodes 1 2 --wait", code=1)
    assert len(cluster.submitted) == 2


def test_what_there_is_no_room_for_is_said(capsys: pytest.CaptureFixture[str], cluster: NoCluster) -> None:
    cluster.has_room = Room(jobs=1, why="the limit of 3 jobs (MaxSubmitJobs of account physics)")
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1", "2", "4"]) == 1
    said = capsys.readouterr()
    assert "3 runs: 1 submitted, 2 left" in said.out
    assert said.err.splitlines()[-1] == (
        "2 runs left: the limit of 3 jobs (MaxSubmitJobs of account physics) is reached; "
        "the same command submits them later"
    )
    assert sorted(states().values()) == ["planned", "planned", "queued"]
    cluster.has_room = Room()
    assert "2 submitted, 1 on its way" in ask(capsys, "sweep tiny.yaml --nodes 1 2 4")


def test_a_report_follows_unless_somebody_waits_or_wants_none(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster
) -> None:
    assert "report" not in ask(capsys, "sweep tiny.yaml --nodes 1 --no-report")
    assert cluster.followed == []
    out = ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert "report: runs/tiny/report/report.html, by job later:1 when these runs have ended" in out
    assert cluster.followed == [("tiny", ["elsewhere:1", "elsewhere:2"])]
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    assert len(cluster.followed) == 1, "it is there"
    end(RunDir(RUNS / "tiny/n1-single-b8-r0"), "crashed")
    ask(capsys, "resume tiny")
    assert cluster.followed[1:] == [("tiny", ["elsewhere:3", "elsewhere:2"])]
    assert cluster.cancelled == ["later:1"]


def test_whoever_stops_waiting_gets_a_report_too(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "follow", stop)
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1", "--wait"]) == 130
    assert cluster.followed == [("tiny", ["elsewhere:1"])]
    assert "by job later:1" in capsys.readouterr().err


def test_a_report_that_cannot_be_had_is_no_failure(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> str:
        raise SubmitError("sbatch refused report-tiny: invalid account")

    monkeypatch.setattr(cluster, "submit_after", refuse)
    out = ask(capsys, "sweep tiny.yaml --nodes 1")
    assert "no job will write the report of tiny: sbatch refused report-tiny: invalid account" in out


def test_the_cluster_is_named_and_what_spoils_figures_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1"]) == 0
    said = capsys.readouterr()
    assert "1 run: 1 submitted (cluster: local)\n" in said.out
    assert said.err.startswith("warning: n1-single-b8-r0: no step will be measured: ")
    assert submit.main(["sweep", "tiny.yaml", "--nodes", "1"]) == 0
    assert capsys.readouterr().err == "", "nothing starts"


def test_following_runs_hashes_the_code_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bool] = []
    for module in (place, watch, status):
        monkeypatch.setattr(module, "code_hash", lambda: hashed.append(True) or "code")
    make_run(RUNS, "tiny/a", "running")

    def three_times(runs: live.Reading, root: Path, *, out: Any = None) -> list[RunState]:
        return [runs.read() for _ in range(3)][-1]

    monkeypatch.setattr(live, "follow", three_times)
    ask(capsys, "watch")
    assert len(hashed) == 1


def test_waiting_ends_when_the_cluster_has_lost_the_job(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.job = Job("gone")
    assert "1 run: 1 lost" in ask(capsys, "sweep tiny.yaml --nodes 1 --wait", code=1)


def test_other_values_of_run_are_runs_of_the_same_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "run tiny.yaml --nodes 2")
    ask(capsys, "run tiny.yaml --set optim.lr=0.5")
    ask(capsys, "sweep tiny.yaml --nodes 2 4")
    assert set(states()) == {"n2-ddp-b8-r0", "n1-single-b8-lr0.5-r0", "n4-ddp-b8-r0"}


def test_what_run_means_does_not_depend_on_what_was_run_before(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY.replace("local_batch_size", "global_batch_size"))
    for nodes in (4, 2):
        ask(capsys, f"run tiny.yaml --nodes {nodes}")
    assert set(states()) == {"n4-ddp-b2-r0", "n2-ddp-b4-r0"}
    ask(capsys, "sweep tiny.yaml --nodes 2")  # its sizes are for its own base of 2 ranks
    assert read_json(RUNS / "tiny/sweep.json")["base"]["sweep"]["base_ranks"] == 2
    ask(capsys, "sweep tiny.yaml --nodes 1")
    ask(capsys, "run tiny.yaml --nodes 1")
    assert set(states()) == {"n4-ddp-b2-r0", "n2-ddp-b4-r0", "n1-single-b4-r0", "n1-single-b8-r0"}
    SweepRecord.model_validate(read_json(RUNS / "tiny" / "sweep.json"))


@pytest.mark.parametrize("broken", ["progress.json", "intent and run.json", "intent"])
def test_a_corrupt_file_does_not_start_a_run_again_under_another_name(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster, broken: str
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1")
    run = RunDir(RUNS / "tiny/n1-single-b8-r0")
    code = read_json(run.run_json)["provenance"]["code"]["hash"]
    ledger.claim(run, 0, process=this_process().as_dict(), job_id=None, code_hash=code)
    intent = ledger.entry(run, 0).path("intent")
    paths = {
        "progress.json": [run.progress],
        "intent": [intent],
        "intent and run.json": [intent, run.run_json],
    }
    for path in paths[broken]:
        path.write_text("{")
    (again,) = ask_json(capsys, "sweep tiny.yaml --nodes 1")
    assert again["run"] == "n1-single-b8-r0"
    if broken == "progress.json":
        assert again["action"] == "wait"
    else:
        assert (again["action"], str(intent) in again["reason"]) == ("give up", True)
    assert len(cluster.submitted) == 1


def test_a_corrupt_run_is_known_by_its_key_in_its_name(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster
) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 2 --set parallel.strategy=auto,ddp")
    (auto,) = (state for state in read_runs(RUNS) if axes_of(state.run)["parallel.strategy"] == "auto")
    for path in (ledger.entry(auto.run, 0).path("intent"), auto.run.run_json):
        path.write_text("{")
    (again,) = ask_json(capsys, "sweep tiny.yaml --nodes 2")
    assert (again["run"], again["action"]) == (auto.name, "give up")
    assert len(cluster.submitted) == 2


def axes_of(run: RunDir) -> dict[str, Any]:
    axes: dict[str, Any] = read_json(run.run_json)["axes"]
    return axes


def test_the_axes_of_a_sweep_file_are_nothing_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(TINY + "sweep: {axes: {resources.nodes: [2, 4]}, repeats: 3}\n")
    ask(capsys, "run tiny.yaml")
    ask(capsys, "sweep tiny.yaml --repeats 1")  # the same base
    assert set(states()) == {"n1-single-b8-r0", "n2-ddp-b8-r0", "n4-ddp-b8-r0"}


def test_secrets_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    with open("tiny.yaml", "a") as file:
        file.write("job: {env: {HF_TOKEN: hunter2}}\n")
    ask(capsys, "sweep tiny.yaml --nodes 1")
    assert "hunter2" not in ask(capsys, "sweep tiny.yaml --nodes 1 --dry-run")
    assert "1 on its way" in ask(capsys, "sweep tiny.yaml --nodes 1")  # the same base still
    assert not [path for path in RUNS.rglob("*") if path.is_file() and "hunter2" in path.read_text()]


def test_a_run_whose_axis_is_another_key_keeps_the_name_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 --set train.seed=0,1")
    again = ask_json(capsys, "sweep tiny.yaml --nodes 1")  # seed 0 is the base's
    assert [(run["run"], run["action"]) for run in again] == [("n1-single-b8-seed0-r0", "wait")]


def test_cancel_and_resume(capsys: pytest.CaptureFixture[str], cluster: NoCluster) -> None:
    ask(capsys, "sweep tiny.yaml --nodes 1 2")
    make_run(RUNS, "other/n1-single-b8-r0")
    elsewhere = read_state(RunDir(RUNS / "tiny/n2-ddp-b8-r0"))
    assert submit.main(["cancel", "tiny"]) == 1  # the cluster of these tests is not this host
    assert "tiny/n2-ddp-b8-r0: runs on elsewhere: cancel it there" in capsys.readouterr().err
    for name in ("n1-single-b8-r0", "n2-ddp-b8-r0"):
        ledger.write_receipt(RunDir(RUNS / "tiny" / name), 0, f"{host()}:5")
    out = ask(capsys, "cancel tiny/n1-single-b8-r0 n2-ddp-b8-r0 other")
    assert "cancelled  tiny/n1-single-b8-r0 (was queued)" in out
    assert "1 more had ended" in out
    assert cluster.cancelled == [f"{host()}:5"] * 2
    assert "nothing to cancel" in ask(capsys, "cancel tiny")
    table = ask(capsys, "status tiny")
    assert "2 runs: 2 cancelled" in table
    out = ask_json(capsys, "resume")
    assert [(run["run"], run["action"], run["state"]) for run in out] == [
        (elsewhere.name.replace("n2-ddp", "n1-single"), "retry", "queued"),
        (elsewhere.name, "retry", "queued"),
    ]
    assert "on its way" in ask(capsys, "resume tiny")
    ask(capsys, "resume n2-ddp-b8-r0")


def test_a_graceful_cancel_asks_by_file_wherever_the_run_is(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster
) -> None:
    run = make_run(RUNS, "tiny/n1-single-b8-r0", "running")
    make_run(RUNS, "tiny/n2-ddp-b8-r0")
    out = ask(capsys, "cancel --graceful tiny")
    assert "stopping  tiny/n1-single-b8-r0: it saves" in out
    assert "1 more had ended" in out
    assert run.stop.exists()
    assert cluster.cancelled == []


def test_run_from_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (made,) = ask_json(capsys, "run tiny.yaml --nodes 1 --from runs/other/checkpoints/step-00000010")
    config = read_json(RUNS / "tiny" / made["run"] / "run.json")["config"]
    assert config["checkpoint"]["start_from"] == str(tmp_path / "runs/other/checkpoints/step-00000010")


def test_cancel_ends_what_it_can_when_a_cluster_does_not_answer(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        make_run(RUNS, f"tiny/{name}", "queued")
    intent = ledger.entry(RunDir(RUNS / "tiny/a"), 0).path("intent")
    write_json(intent, read_json(intent) | {"cluster": "slurm"})

    def choose(name: str) -> NoCluster:
        if name == "slurm":
            raise ConfigError("no Slurm controller answers")
        return cluster

    monkeypatch.setattr(cancel, "choose", choose)
    assert submit.main(["cancel", "tiny"]) == 1
    said = capsys.readouterr()
    assert said.out == "cancelled  tiny/b (was queued)\n"
    assert said.err == "tiny/a: not cancelled: no Slurm controller answers\n"
    assert cluster.cancelled == [f"{host()}:7"]


def by_hand(name: str) -> RunDir:
    """A run that was started by hand, and runs."""
    run = make_run(RUNS, name, "planned")
    run.attempt(0).path.mkdir(parents=True)
    return run


def test_what_was_started_by_hand_is_left_to_who_did(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster
) -> None:
    run = by_hand("by-hand/mine")
    assert submit.main(["cancel", "mine"]) == 1
    assert capsys.readouterr().err == "by-hand/mine: started by hand: end it where it runs\n"
    assert "left   by-hand/mine: it is running; started by hand" in ask(capsys, "clean mine")
    assert "1 on its way" in ask(capsys, "resume mine")
    os.utime(run.attempt(0).path, (1.0, 1.0))
    assert "not submitted by submit.py: started by hand" in ask(capsys, "resume mine")
    assert cluster.submitted == []


def silent(name: str) -> RunDir:
    """A run on another host, without a sign of life for long."""
    run = make_run(RUNS, name, "queued")
    process = this_process().as_dict() | {"host": "far away"}
    ledger.claim(run, 0, process=process, job_id=None, code_hash=code_hash())
    os.utime(run.submissions, (1.0, 1.0))
    return run


def test_a_silent_run_is_said_and_touched_only_by_its_name(
    capsys: pytest.CaptureFixture[str], cluster: NoCluster
) -> None:
    cluster.job = Job("unknown")
    silent("tiny/a")
    assert "  silent for " in ask(capsys, "status")
    for words in ("resume", "resume tiny"):
        assert "1 on its way" in ask(capsys, words)
    assert "left   tiny/a: it is running; silent for " in ask(capsys, "clean tiny")
    assert cluster.submitted == []
    assert "1 submitted again" in ask(capsys, "resume a")
    assert cluster.submitted == [("a", 1)]
    silent("tiny/b")
    assert "moved  tiny/b (running)" in ask(capsys, "clean tiny/b")


def test_resume_with_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1-single-b8-r0")
    assert ask(capsys, "resume").startswith("nothing to resume")
    assert ask_json(capsys, "resume") == []


STATES = ("planned", "queued", "running", "done", "failed", "cancelled", "lost", "corrupt")


def test_status_tells_every_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "status").startswith("no runs in runs yet")
    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "other/old", "done", code="0" * 12)
    out = ask(capsys, "status tiny")
    for state in STATES:
        assert [line.split()[1] for line in out.splitlines() if line.startswith(f"{state} ")] == [state]
    assert "crashed: rank 1: ValueError: no" in out
    assert "8 runs: 1 running, 1 queued, 1 planned, 1 failed, 1 cancelled, 1 lost, 1 corrupt, 1 done" in out
    old = next(line for line in ask(capsys, "status").splitlines() if line.startswith("other/old "))
    assert old.split() == ["other/old", "done", "20/40", "812.5", "2.25", "made", "by", "older", "code"]
    by_name = {run["run"]: run for run in ask_json(capsys, "status")}
    assert by_name["running"]["step"] == 20
    assert by_name["running"]["eta_s"] == 70.0
    assert by_name["old"]["stale"] is True
    assert by_name["cancelled"]["state"] == "cancelled"


def test_clean_moves_and_never_touches_what_is_active(capsys: pytest.CaptureFixture[str]) -> None:
    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    make_run(RUNS, "tiny/old", "done", code="0" * 12)
    before = files()
    dry = ask(capsys, "clean --failed --stale --dry-run")
    assert dry.count("would move") == 5
    assert files() == before
    ask(capsys, "clean --failed")
    assert set(states()) == {"planned", "queued", "running", "done", "old"}
    ask(capsys, "clean tiny --stale")
    ask(capsys, "clean done")
    assert set(states()) == {"planned", "queued", "running"}
    out = ask(capsys, "clean tiny")
    assert "left   tiny/queued: it is queued; cancel it first" in out
    assert "left   tiny/running" in out
    assert set(states()) == {"queued", "running"}
    assert files() == before, "something was lost"


def files() -> list[tuple[str, bytes]]:
    """Name and content of every file of a run, wherever the run lies now."""
    found = [path for path in RUNS.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(("/".join(path.parts[path.parts.index("tiny") :]), path.read_bytes()) for path in found)


def test_a_cleaned_out_sweep_frees_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1", "failed")
    write_json(RUNS / "tiny/sweep.json", {"base": {"optim": {"lr": 5.0}, "sweep": {"base_ranks": 1}}})
    out = ask_json(capsys, "clean tiny")
    assert [run["run"] for run in out] == ["tiny/n1"]
    assert Path(out[0]["to"]).with_name("sweep.json").exists()
    ask(capsys, "sweep tiny.yaml --nodes 1")


def test_show_says_what_a_run_is_and_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
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
    metrics = {"samples_per_s": 1234.5, "eval_history": [{"loss": 1.5, "metrics": {"bits_per_byte": 2.25}}]}
    write_json(run.metrics, metrics)
    out = ask(capsys, "show n1")
    for text in (
        "state    failed: crashed: rank 1: ValueError: no",
        "train.steps                       40",
        "OMP_NUM_THREADS=1  because  derived",
        "0       2026-01-01T00:00:00  crashed",
        "node7: 8 processors, 16 GiB, 2 x NVIDIA H100, driver 560.35, eth0 10 Gbit/s, ib0, mlx5_0 400 Gb/sec",
        "samples/s                 1234.5",
        "validation bits per byte  2.25",
        "logs  runs/tiny/n1/attempts/000",
    ):
        assert text in out
    assert ask_json(capsys, "show tiny/n1")["metrics"] == metrics
    assert ask_json(capsys, "show tiny/n1")["node_records"] == [node]
    write_json(run.metrics, {})
    run.metrics.write_text("{")
    assert "results" not in ask(capsys, "show n1")


def test_logs_choose_the_rank_the_node_and_the_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(RUNS, "tiny/n1", "failed")
    assert submit.main(["logs", "n1"]) == 2
    assert "has no log: it has not started (it is failed)" in capsys.readouterr().err
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
    assert "there are: node-00, rank-00000" in capsys.readouterr().err
    assert submit.main(["logs", "n1", "--attempt", "7"]) == 2
    assert "has attempts 0, 1" in capsys.readouterr().err


def test_the_report_is_of_the_newest_sweep(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import analysis.report

    asked: list[tuple[list[Path], Path, str | None]] = []

    def write(sweeps: list[Path], out: Path, *, base: str | None = None) -> Path:
        asked.append((sweeps, out, base))
        write_json(out / "report.json", {"title": "t"})
        return out / "report.html"

    monkeypatch.setattr(analysis.report, "write", write)
    for when, sweep in enumerate(("b", "c", "a")):
        run = make_run(RUNS, f"{sweep}/n1")
        for path in (run.run_json, ledger.entry(run, 0).path("intent")):
            os.utime(path, (when, when))
    assert report.newest_sweep(RUNS) == "a"
    again = ledger.entry(RunDir(RUNS / "c/n1"), 0).path("intent")
    os.utime(again, (9, 9))
    assert report.newest_sweep(RUNS) == "c", "submitted again, which leaves run.json as it was"
    os.utime(again, (1, 1))
    assert ask(capsys, "report") == "report of a: runs/a/report/report.html\n"
    assert ask_json(capsys, "report b c --out both --base n1") == {"title": "t"}
    assert asked == [([RUNS / "a"], RUNS / "a/report", None), ([RUNS / "b", RUNS / "c"], Path("both"), "n1")]


def test_watch_with_nothing_to_watch(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(RUNS, "tiny/n1")
    assert ask(capsys, "watch").startswith("no run is waiting or running")
    assert "tiny/n1 done  step 20/40" in ask(capsys, "watch tiny")
    assert ask_json(capsys, "watch tiny")[0]["state"] == "done"
