"""`--json`: the same document from every verb, also for errors, and nothing else on stdout."""

from __future__ import annotations

import argparse
import contextlib
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
from disttrain.records.layers import Layers, LayerTime
from disttrain.records.run_directory import RunDir
from docs.generate import json_output
from docs.generate.files import DOCS
from jobs.cli import command_output, status
from jobs.minicluster import discovery, lifecycle
from jobs.minicluster.config import ClusterFolder, ClusterSpec, Subnet
from jobs.minicluster.lifecycle import Cluster
from tests.support.fake_runs import fake_run
from tests.support.states import make_run
from tests.support.verbs import RUNS, STATES, parse_document, verbs

pytestmark = pytest.mark.usefixtures("cluster")
WITHOUT_JSON = {"cluster shell", "completion", "open", "tensorboard"}
"""Verbs that another command replaces, that print a script, or that serve a page until Ctrl-C."""
WITH_JSON = sorted({verb for verb, _ in verbs()} - WITHOUT_JSON)
COMMANDS = """\
init my
sweep tiny.yaml --nodes 1 2
sweep tiny.yaml --nodes 1 --dry-run --cluster local
run tiny.yaml
run tiny.yaml --dry-run --cluster local
status
status tiny --long
nodes
nodes --exclude n1
nodes --clear-all
annotate tiny --tag a --note b
annotate tiny/done
watch over
show tiny/done
show tiny/corrupt
logs tiny/done
cancel tiny/queued
cancel tiny/running --graceful
cancel tiny/done
resume tiny/failed
resume over
clean over --dry-run
clean over
clean --restore
clean over
clean --purge
emulate --from real/n1
ingest times.csv --sweep others
predict real
bench comm --nodes 2
bench comm --dry-run --cluster local
fabric explain
fabric lint nccl.conf
fabric ab NCCL_ALGO=Ring
fabric ab NCCL_ALGO=Ring --dry-run --cluster local
doctor --cluster local
report tiny
cluster up
cluster status
cluster down
"""


@pytest.fixture
def every_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs in all states, with a log and measured layers; no report and no cluster is made in earnest."""
    import analysis.report

    for state in STATES:
        make_run(RUNS, f"tiny/{state}", state)
    attempt = make_run(RUNS, "tiny/done").attempt(0)
    attempt.path.mkdir(parents=True, exist_ok=True)
    attempt.rank_log(0).write_text("one\ntwo")
    make_run(RUNS, "over/n1")
    Path("nccl.conf").write_text("NCCL_CROSS_NIC=1\n")
    Path("times.csv").write_text("step,rank,step_s,samples\n1,0,0.5,8\n")
    fake_run(RUNS / "real" / "n1")
    layer = LayerTime(name="a", bytes=400, forward_s=0.001, backward_s=0.003)
    layers = Layers(
        attempt=0, device="cpu", emulated=False, passes=5, samples=8, dtype_bytes=4, layers=[layer]
    )
    write_json(RunDir(RUNS / "real" / "n1").attempt(0).layers, layers.model_dump(mode="json"))

    def write(sweeps: list[Path], out: Path, **_: object) -> Written:
        write_json(out / "report.json", {"title": "t"})
        return Written(out / "report.html", [])

    monkeypatch.setattr(analysis.report, "write", write)
    cluster = Cluster("mini", "left over", ClusterFolder(tmp_path / "mini"), ClusterSpec(), Subnet(0))
    for name in ("up", "down", "find_cluster"):
        monkeypatch.setattr(lifecycle, name, lambda _: cluster)
    monkeypatch.setattr(discovery, "cluster_names", lambda: ["mini"])
    monkeypatch.setattr(discovery, "resolve_name", lambda name: "mini")
    monkeypatch.setattr("os.geteuid", lambda: 0)


def document(out: str) -> dict[str, Any]:
    """The document of a command, after validation against the committed schema."""
    printed = parse_document(out)
    schema = json.loads((DOCS / "schemas" / "command-output.json").read_text())
    Draft202012Validator(schema).validate(printed)
    return printed


@pytest.mark.parametrize("verb", WITH_JSON)
def test_every_verb_prints_the_document(capsys, every_state, verb):
    commands = [line for line in COMMANDS.splitlines() if f"{line} ".startswith(f"{verb} ")]
    assert commands, "add a command line of the new verb"
    for command in commands:
        assert submit.main([*command.split(), "--json"]) == 0
        out, err = capsys.readouterr()
        printed = document(out)
        assert (printed["verb"], printed["error"]) == (verb, None)
        warnings = [
            line.removeprefix("warning: ") for line in err.splitlines() if line.startswith("warning: ")
        ]
        assert printed["warnings"] == warnings


@pytest.mark.parametrize("verb", WITH_JSON)
def test_a_refused_argument_is_the_error_of_the_document(capsys, verb):
    assert submit.main([*verb.split(), "--json", "--nonsense"]) == 2
    out, err = capsys.readouterr()
    printed = document(out)
    assert (printed["verb"], printed["error"]["exit_code"]) == (verb, 2)
    assert err == f"error: {printed['error']['message']}\n"


@pytest.mark.parametrize(
    "command", ["statsu", "", "show nowhere", "logs tiny/planned", "sweep tiny.yaml --nodes 0"]
)
def test_an_error_is_in_the_document(capsys, every_state, command):
    assert submit.main([*command.split(), "--json"]) == 2
    out, err = capsys.readouterr()
    error = document(out)["error"]
    assert (error["exit_code"], f"error: {error['message']}\n") == (2, err)


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [(KeyboardInterrupt(), 130, "interrupted"), (RuntimeError("a bug"), 1, "RuntimeError: a bug")],
)
def test_an_exception_is_in_the_document(capsys, monkeypatch, raised, code, message):
    def fail(args: argparse.Namespace) -> int:
        print("text")
        raise raised

    monkeypatch.setattr(status, "run", fail)
    with pytest.raises(RuntimeError) if code == 1 else contextlib.nullcontext():
        assert submit.main(["status", "--json"]) == code
    out, err = capsys.readouterr()
    assert document(out)["error"] == {"message": message, "exit_code": code}
    assert err == "", "text that a verb prints is discarded"


def test_a_run_has_the_documented_keys(capsys, every_state):
    assert submit.main(["status", "--json"]) == 0
    runs = document(capsys.readouterr().out)["runs"]
    assert {run["state"] for run in runs} == set(STATES)
    keys = [field.name for field in dataclasses.fields(json_output.RunItem)]
    assert all(list(run) == keys for run in runs)


def test_logs_are_json_lines_that_end_with_the_document(capsys, every_state):
    assert submit.main(["logs", "tiny/done", "--json"]) == 0
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert lines == [{"log": "rank-00000", "line": line} for line in ("one", "two")]
    assert (last["schema"], [run["run"] for run in last["runs"]]) == (command_output.SCHEMA, ["done"])


def test_the_schema_refuses_keys_of_other_verbs():
    validator = Draft202012Validator(json_output.schema())
    Draft202012Validator.check_schema(json_output.schema())
    plain = {"schema": 1, "verb": "status", "runs": [], "warnings": [], "error": None}
    validator.validate(plain | {"usage": []})
    wrong: list[dict[str, Any]] = [
        {"page": "x"}, {"schema": 2}, {"runs": [{}]}, {"error": "no"}, {"verb": None, "usage": []},
    ]  # fmt: skip
    for change in wrong:
        assert not validator.is_valid(plain | change), change
    assert set(json_output.verb_keys()) == set(WITH_JSON)


def test_the_real_command_prints_one_document():
    command = [sys.executable, submit.__file__, "status", "nowhere", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert document(done.stdout)["error"]["message"] == done.stderr.removeprefix("error: ").rstrip()
