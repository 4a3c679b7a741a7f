"""The trainer started by hand: torchrun on one machine, torchrun on two, and what bad input says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from disttrain.records.json_files import read_json, read_jsonl
from disttrain.records.metrics import Metrics
from disttrain.records.planned import RunRecord
from disttrain.records.run_directory import RunDir
from jobs.status.run_state import read_state
from tests.support.jobs import WITHIN_S

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
model: {kind: "tests.support.small_models:Net"}
data: {kind: "tests.support.small_models:source"}
train: {steps: 4, local_batch_size: 4}
telemetry: {warmup_steps: 1}
"""


def torchrun(*arguments: str, cwd: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen) -> tuple[int, str]:
    try:
        text, _ = process.communicate(timeout=WITHIN_S)
    finally:
        process.kill()  # its ranks end with it
    return process.returncode, text


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIG)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_one_machine_two_ranks_with_a_flag_over_the_file(config, tmp_path):
    code, text = finish(
        torchrun(
            "--nproc-per-node", "2", f"--master-port={free_port()}",
            "-m", "disttrain", "--config", str(config), "--train.steps", "6", cwd=tmp_path,
        )
    )  # fmt: skip
    assert code == 0, text
    [run] = (tmp_path / "runs" / "by-hand").iterdir()
    metrics = Metrics.model_validate(read_json(run / "metrics.json"))
    assert (metrics.status, metrics.steps, metrics.world_size) == ("completed", 6, 2)
    assert "msg=finished" in text
    assert RunRecord.model_validate(read_json(run / "run.json")).config["train"]["global_batch_size"] == 8
    assert read_state(RunDir(run)).state == "done"


def test_two_machines_without_slurm(config, tmp_path):
    """Two agents, one command line each, as `docs/sweeps.md` says; each writes below its own folder."""
    port = free_port()
    machines = []
    for node in (0, 1):
        home = tmp_path / f"machine{node}"
        home.mkdir()
        machines.append(
            torchrun(
                "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(node),
                "--master-addr", "127.0.0.1", "--master-port", str(port),
                "-m", "disttrain", "--config", str(config), "--run-dir", "run", cwd=home,
            )
        )  # fmt: skip
    for code, text in map(finish, machines):
        assert code == 0, text
    metrics = read_json(tmp_path / "machine0" / "run" / "metrics.json")
    assert (metrics["world_size"], metrics["nodes"]) == (2, 2)
    for node in (0, 1):
        steps = tmp_path / f"machine{node}" / "run" / "attempts" / "000" / f"steps-{node:05d}.jsonl"
        assert len(list(read_jsonl(steps))) == 4


def run_alone(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "disttrain", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=WITHIN_S)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--config FILE or --run-dir DIR is needed"),
        (("--confg", "x.yaml"), "unknown argument '--confg'; did you mean '--config'?"),
        (("--config", "missing.yaml"), "cannot read config 'missing.yaml'"),
        (("--config", "mine.yaml", "--train.step", "5"), "did you mean 'train.steps'?"),
        (("--config", "mine.yaml", "--train.steps"), "--train.steps needs a value"),
        (("--config", "mine.yaml", "--train.steps", "many"), "train.steps='many'"),
        (("--config", "mine.yaml", "--model.hiden", "3"), "did you mean 'hidden'?"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(config, tmp_path, arguments, expected):
    done = run_alone(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_signal_stops_it_in_good_order_and_the_same_command_goes_on(config, tmp_path):
    asking = ("--model.kind", "tests.support.small_models:Asking", "--model.marker", str(tmp_path / "asked"))
    asking += ("--model.call", "2", "--model.signal_number", str(int(signal.SIGUSR1)))
    asking += ("--job.stop_check_s", "0")
    command = ("--config", str(config), "--run-dir", "run", *asking)
    stopped = run_alone(*command, cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    run = RunDir(tmp_path / "run")
    state = read_state(run)
    assert (state.state, state.cause, state.message) == ("failed", "preempted", "at step 2 of 4")
    assert run_alone(*command, cwd=tmp_path).returncode == 0
    assert read_state(run).state == "done"
    metrics = Metrics.model_validate(read_json(run.metrics))
    assert (metrics.attempt, metrics.resumed_step, metrics.steps) == (1, 2, 4)


def test_the_wrong_world_size_is_refused_and_recorded(tmp_path):
    plan = {"config": {**yaml.safe_load(CONFIG), "resources": {"nodes": 2}}}
    (tmp_path / "run.json").write_text(json.dumps(plan))
    done = run_alone("--run-dir", str(tmp_path), "--attempt", "0", cwd=tmp_path)
    assert done.returncode == 2
    error = read_json(tmp_path / "attempts" / "000" / "error-00000.json")
    assert error["cause"] == "refused"
    assert "1 nodes x 1 ranks" in error["message"]


def test_a_crash_leaves_its_cause(config, tmp_path):
    crash = ("--model.kind", "tests.support.small_models:Failing", "--model.message", "boom at three")
    done = run_alone("--config", str(config), "--run-dir", "run", *crash, cwd=tmp_path)
    assert done.returncode == 1
    error = read_json(tmp_path / "run" / "attempts" / "000" / "error-00000.json")
    assert (error["cause"], error["kind"], error["message"]) == ("crashed", "RuntimeError", "boom at three")
    assert "in forward" in error["traceback"]
    state = read_state(RunDir(tmp_path / "run"))
    assert (state.state, state.message) == ("failed", "rank 0: RuntimeError: boom at three")


STUCK_SHUTDOWN = """\
import runpy, threading, torch.distributed as dist
dist.destroy_process_group = lambda *_: threading.Event().wait()
threading.Thread(target=threading.Event().wait).start()
runpy.run_module("disttrain", run_name="__main__")
"""
"""A trainer whose group cannot be destroyed, as with NCCL while peers sit in a collective, with a thread that
never ends, as after a write to a file system that hangs."""


@pytest.mark.slow
def test_a_failed_rank_records_its_cause_and_exits_without_a_shutdown(config, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(STUCK_SHUTDOWN)
    failing = ("--model.kind", "tests.support.small_models:Failing", "--model.rank", "1")
    trainer = torchrun(
        "--nproc-per-node", "2", f"--master-port={free_port()}",
        str(script), "--config", str(config), "--run-dir", "run", *failing, cwd=tmp_path,
    )  # fmt: skip
    code, text = finish(trainer)
    assert code == 1, text
    errors = [read_json(path) for path in RunDir(tmp_path / "run").attempt(0).path.glob("error-*.json")]
    first = min(errors, key=lambda error: error["time"])
    assert (first["rank"], first["kind"], first["message"]) == (1, "RuntimeError", "boom")


ONE_NODE_WITH_A_GPU = """\
import os, runpy, socket, torch
rank = int(os.environ["RANK"])
socket.gethostname = lambda: f"gpu-{rank}"
torch.cuda.device_count = lambda: 2 * (rank == 0)
torch.cuda.set_device = lambda _: None
runpy.run_module("disttrain", run_name="__main__")
"""
"""Rank 0 finds GPUs, rank 1 finds none and would take the CPU."""


@pytest.mark.slow
def test_ranks_with_other_devices_do_not_start_and_name_the_node(config, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(ONE_NODE_WITH_A_GPU)
    plan = {"config": {**yaml.safe_load(CONFIG), "resources": {"gpus_per_node": 2}}}
    (tmp_path / "run.json").write_text(json.dumps(plan))
    arguments = (f"--master-port={free_port()}", str(script), "--run-dir", str(tmp_path), "--attempt", "0")
    code, text = finish(torchrun("--nproc-per-node", "2", *arguments, cwd=tmp_path))
    assert code == 1, text
    errors = [read_json(path) for path in RunDir(tmp_path).attempt(0).path.glob("error-*.json")]
    assert {(error["rank"], error["cause"]) for error in errors} == {(1, "launch_failed")}
    expected = "node gpu-1 would train on cpu with gloo, but node gpu-0 on cuda with nccl"
    assert all(error["message"].startswith(expected) for error in errors)
