"""`fabric ab`: one job for an experiment, and the verdicts of a finished one."""

from __future__ import annotations

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from tests.support.verbs import RUNS, TINY, ask, ask_json, end, states
from tests.unit.test_ab_table import result

pytestmark = pytest.mark.usefixtures("cluster")
RING = RUNS / "ab-NCCL_ALGO-Ring" / "n2"


def config_of(run: RunDir) -> dict:
    return read_json(run.run_json)["config"]


def test_one_job_compares_all_variables(capsys):
    ask(capsys, "fabric ab NCCL_ALGO=Ring NCCL_PROTO=LL --nodes 2 --gpus-per-node 2 --device cpu --minutes 5")
    config = config_of(RunDir(RUNS / "ab-NCCL_ALGO-Ring-NCCL_PROTO-LL" / "n2-g2"))
    assert config["command"][:5] == ["-m", "jobs.arms", "NCCL_ALGO=Ring", "NCCL_PROTO=LL", "--device"]
    assert (config["resources"]["nodes"], config["resources"]["device"]) == (2, "cpu")
    assert config["job"]["time_limit_min"] == 15


def test_without_arguments_the_job_compares_what_detection_derives(capsys):
    ask(capsys, "fabric ab --device cpu")
    words = config_of(RunDir(RUNS / "ab-derived" / "n2"))["command"]
    assert words[:4] == ["-m", "jobs.arms", "--device", "cpu"]


def test_a_finished_experiment_is_printed(capsys):
    ask(capsys, "fabric ab NCCL_ALGO=Ring --device cpu")
    write_json(RunDir(RING).fabric_ab, result().model_dump(mode="json"))
    end(RunDir(RING), "finished")
    out = ask(capsys, "fabric ab NCCL_ALGO=Ring --device cpu")
    assert "1.042  1.036 to 1.050" in out
    assert "to keep, in a site profile:" in out
    found = ask_json(capsys, "fabric ab NCCL_ALGO=Ring --device cpu")
    assert found["kept"]["n2"] == {"NCCL_ALGO": "Ring", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert found["fabric_ab"]["n2"]["backend"] == "nccl"


def test_the_same_command_starts_an_experiment_again_whose_rank_was_killed(capsys):
    ask(capsys, "fabric ab NCCL_ALGO=Ring --device cpu")
    end(RunDir(RING), "killed")
    ask(capsys, "fabric ab NCCL_ALGO=Ring --device cpu")
    assert states() == {"n2": "queued"}


def test_the_step_and_the_shape_of_a_run(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(TINY)
    ask(capsys, f"run '{tmp_path}/tiny.yaml' --nodes 3 --set job.env.NCCL_NET=Socket resources.device=cpu")
    (run,) = [path.parent for path in (RUNS / "tiny").glob("*/run.json")]
    ask(capsys, f"fabric ab NCCL_ALGO=Ring --like tiny/{run.name}")
    config = config_of(RunDir(RUNS / "ab-NCCL_ALGO-Ring" / "n3"))
    assert config["command"][-2:] == ["--like", str(run.resolve())]
    assert config["job"]["env"] == {"NCCL_NET": "Socket"}
    assert config["resources"]["device"] == "cpu"


def test_a_run_whose_steps_differ_cannot_be_repeated(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(TINY)
    ask(capsys, f"run '{tmp_path}/tiny.yaml' --nodes 3 --set resources.device=cpu")
    (run,) = [path.parent for path in (RUNS / "tiny").glob("*/run.json")]
    record = read_json(run / "run.json")
    record["config"]["parallel"]["gradient_communication"] = {"scheme": "local_sgd"}
    write_json(run / "run.json", record)
    ask(capsys, f"fabric ab NCCL_ALGO=Ring --like tiny/{run.name}", code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fabric ab NCCL_ALGO", "not of the form VAR=VALUE"),
        ("fabric ab A=1 --nodes 1", "one rank has no communication"),
        ("fabric ab A=1 --minutes 0", "above 0"),
        ("fabric ab A=1 --like nothing", "no run 'nothing'"),
        ("fabric ab NCCL_ALOG=Ring", "no known library reads 'NCCL_ALOG'; did you mean 'NCCL_ALGO'?"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, message, capsys):
    assert submit.main(words.split()) == 2
    assert message in capsys.readouterr().err
    assert not RUNS.exists()


def test_an_unknown_variable_is_compared_on_request_with_a_warning(capsys):
    assert submit.main(["fabric", "ab", "NCCL_ALOG=Ring", "--allow-unknown", "--device", "cpu"]) == 0
    assert "warning: no known library reads 'NCCL_ALOG'" in capsys.readouterr().err
    words = config_of(RunDir(RUNS / "ab-NCCL_ALOG-Ring" / "n2"))["command"]
    assert "--allow-unknown" in words, "the job checks the names as well"


def test_a_dry_run_writes_nothing(capsys):
    out = ask(capsys, "fabric ab NCCL_ALGO=Ring --dry-run --cluster local")
    assert "-m jobs.arms NCCL_ALGO=Ring" in out
    assert not RUNS.exists()
