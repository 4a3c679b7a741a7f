"""`--json`: the same document from every verb, also for errors, and nothing else on stdout."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import submit
from analysis.report import Written
from disttrain.records.json_files import write_json
from docs.generate import json_output
from docs.generate.files import DOCS
from jobs.cli import command_output, status
from jobs.minicluster import discovery, lifecycle
from jobs.minicluster.config import ClusterFolder, ClusterSpec, Subnet
from jobs.minicluster.lifecycle import Cluster
from tests.support.states import make_run
from tests.support.verbs import RUNS, STATES, parse_document, verbs
from tests.unit.test_layers import LAYERS, measured

pytestmark = pytest.mark.usefixtures("cluster")
WITHOUT_JSON = {"cluster shell", "completion", "open", "tensorboard"}
"""Verbs that another command replaces, that print a script, or that serve a page until Ctrl-C."""
COMMANDS = {
    "sweep": ["sweep tiny.yaml --nodes 1 2", "sweep tiny.yaml --nodes 1 --dry-run --cluster local"],
    "run": ["run tiny.yaml", "run tiny.yaml --dry-run --cluster local"],
    "status": ["status", "status tiny --long"],
    "nodes": ["nodes", "nodes --exclude n1", "nodes --clear-all"],
    "annotate": ["annotate tiny --tag a --note b", "annotate tiny/done"],
    "watch": ["watch over"],
    "show": ["show tiny/done", "show tiny/corrupt"],
    "logs": ["logs tiny/done"],
    "cancel": ["cancel tiny/queued", "cancel tiny/running --graceful", "cancel tiny/done"],
    "resume": ["resume tiny/failed", "resume over"],
    "clean": ["clean over --dry-run", "clean over", "clean --restore", "clean over", "clean --purge"],
    "emulate": ["emulate --from real/n1"],
    "ingest": ["ingest times.csv --sweep others"],
    "bench comm": ["bench comm --nodes 2", "bench comm --dry-run --cluster local"],
    "fabric explain": ["fabric explain"],
    "fabric lint": ["fabric lint nccl.conf"],
    "doctor": ["doctor --cluster local"],
    "fabric ab": ["fabric ab NCCL_ALGO=Ring", "fabric ab NCCL_ALGO=Ring --dry-run --cluster local"],
    "report": ["report tiny"],
    "cluster up": ["cluster up"],
    "cluster status": ["cluster status"],
    "cluster down": ["cluster down"],
}


@pytest.fixture
def every_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs in all states, with a log and measured layers; no report and no cluster is made in earnest."""
    import analysis.report

    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    run = make_run(RUNS, "tiny/done")
    run.attempt(0).path.mkdir(parents=True, exist_ok=True)
    run.attempt(0).rank_log(0).write_text("one\ntwo")
    make_run(RUNS, "over/n1")
    Path("nccl.conf").write_text("NCCL_CROSS_NIC=1\n")
    Path("times.csv").write_text("step,rank,step_s,samples\n1,0,0.5,8\n")
    write_json(measured(tmp_path).attempt(0).layers, LAYERS.model_dump(mode="json"))

    def write(sweeps: list[Path], out: Path, **_: object) -> Written:
        write_json(out / "report.json", {"title": "t"})
        return Written(out / "report.html", [])

    monkeypatch.setattr(analysis.report, "write", write)
    cluster = Cluster("mini", "left over", ClusterFolder(tmp_path / "mini"), ClusterSpec(), Subnet(0))
    monkeypatch.setattr(lifecycle, "up", lambda spec: cluster)
    monkeypatch.setattr(lifecycle, "down", lambda name: None)
    monkeypatch.setattr(lifecycle, "find_cluster", lambda name: cluster)
    monkeypatch.setattr(discovery, "cluster_names", lambda: ["mini"])
    monkeypatch.setattr(discovery, "resolve_name", lambda name: "mini")
    monkeypatch.setattr("os.geteuid", lambda: 0)


def document(out: str) -> dict[str, Any]:
    """The document of a command, after validation against the committed schema."""
    found = parse_document(out)
    schema = json.loads((DOCS / "schemas" / "command-output.json").read_text())
    Draft202012Validator(schema).validate(found)
    return found


@pytest.mark.parametrize("verb", [name for name, _ in verbs() if name not in WITHOUT_JSON])
def test_every_verb_prints_the_document(
    capsys: pytest.CaptureFixture[str], every_state: None, verb: str
) -> None:
    assert verb in COMMANDS, "add a command line of the new verb"
    for command in COMMANDS[verb]:
        code = submit.main([*command.split(), "--json"])
        out, err = capsys.readouterr()
        assert code == 0, err
        found = document(out)
        assert found["verb"] == verb
        assert found["error"] is None
        assert set(found) >= {"schema", "verb", "runs", "warnings", "error"}
        lines = [line.removeprefix("warning: ") for line in err.splitlines() if line.startswith("warning: ")]
        assert found["warnings"] == lines


@pytest.mark.parametrize("verb", [name for name, _ in verbs() if name not in WITHOUT_JSON])
def test_a_refused_argument_is_the_error_of_the_document(
    capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert submit.main([*verb.split(), "--json", "--nonsense"]) == 2
    out, err = capsys.readouterr()
    found = document(out)
    assert found["verb"] == verb
    assert err == f"error: {found['error']['message']}\n"
    assert found["error"]["exit_code"] == 2


def test_the_rest_of_the_verbs_have_no_json() -> None:
    without = {name for name, parser in verbs() if "--json" not in parser._option_string_actions}
    assert without == WITHOUT_JSON


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("statsu --json", 2, "VERB: 'statsu' is not one of "),
        ("--json", 2, "unknown argument '--json'"),
        ("show nowhere --json", 2, "no run 'nowhere' in runs"),
        ("logs tiny/planned --json", 2, "tiny/planned has no log"),
        ("sweep tiny.yaml --nodes 0 --json", 2, "--nodes: resources.nodes=0: input should be greater"),
    ],
)
def test_an_error_is_in_the_document(
    capsys: pytest.CaptureFixture[str], every_state: None, command: str, code: int, message: str
) -> None:
    assert submit.main(command.split()) == code
    out, err = capsys.readouterr()
    error = document(out)["error"]
    assert (error["exit_code"], error["message"][: len(message)]) == (code, message)
    assert err == f"error: {error['message']}\n"


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (RuntimeError("a bug"), 1)])
def test_an_exception_is_in_the_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int
) -> None:
    def fail(args: argparse.Namespace) -> int:
        print("text")
        raise raised

    monkeypatch.setattr(status, "run", fail)
    if code == 1:
        with pytest.raises(RuntimeError):
            submit.main(["status", "--json"])
    else:
        assert submit.main(["status", "--json"]) == code
    out, err = capsys.readouterr()
    message = "interrupted" if code == 130 else "RuntimeError: a bug"
    assert document(out)["error"] == {"message": message, "exit_code": code}
    assert err == "", "text that a verb prints is discarded"


def test_a_run_has_the_documented_keys(capsys: pytest.CaptureFixture[str], every_state: None) -> None:
    assert submit.main(["status", "--json"]) == 0
    runs = document(capsys.readouterr().out)["runs"]
    assert {run["state"] for run in runs} == set(STATES)
    keys = [field.name for field in dataclasses.fields(json_output.RunItem)]
    assert all(list(run) == keys for run in runs)


def test_logs_are_json_lines_that_end_with_the_document(
    capsys: pytest.CaptureFixture[str], every_state: None
) -> None:
    assert submit.main(["logs", "tiny/done", "--json"]) == 0
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert lines == [{"log": "rank-00000", "line": "one"}, {"log": "rank-00000", "line": "two"}]
    assert last["schema"] == command_output.SCHEMA
    assert [run["run"] for run in last["runs"]] == ["done"]


def test_the_schema_refuses_keys_of_other_verbs() -> None:
    validator = Draft202012Validator(json_output.schema())
    Draft202012Validator.check_schema(json_output.schema())
    plain = {"schema": 1, "verb": "status", "runs": [], "warnings": [], "error": None}
    validator.validate(plain | {"usage": []})
    for wrong in ({"surprise": 1}, {"page": "x"}, {"schema": 2}, {"runs": [{}]}, {"error": "no"}):
        assert not validator.is_valid(plain | wrong), wrong
    assert not validator.is_valid(plain | {"verb": None, "usage": []})
    assert not validator.is_valid({"schema": 1})


def test_every_verb_is_a_command() -> None:
    assert set(json_output.verb_keys()) == set(COMMANDS)


def test_the_real_command_prints_one_document() -> None:
    done = subprocess.run(
        [sys.executable, submit.__file__, "status", "nowhere", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert document(done.stdout)["error"]["message"] == done.stderr.removeprefix("error: ").rstrip()
