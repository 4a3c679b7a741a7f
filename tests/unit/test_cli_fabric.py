"""`fabric explain`, `lint` and `ab`, and the check of `job.env` at a submission."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import submit
from disttrain.records.json_files import read_json, write_json
from disttrain.records.run_directory import RunDir
from jobs.cli import fabric_checks
from jobs.fabric.detect import detect
from tests.support.fabric_trees import KINDS
from tests.support.golden import golden
from tests.support.verbs import RUNS, ask, ask_json, end, states
from tests.unit.test_ab_table import result

pytestmark = pytest.mark.usefixtures("cluster")
Trees = Callable[[str], Path]
Captured = pytest.CaptureFixture[str]


def test_every_tree(shared_tree, capsys):
    """Text and JSON of each tree, and the findings of one script on it."""
    Path("job.sh").write_text("NCCL_IB_HCA=mlx5_9 NCCL_NET=IB GLOO_SOCKET_IFNAME=eth7 NCCL_ALGO=Tree\n")
    parts = []
    for kind in KINDS:
        root = shared_tree(kind)
        document = ask_json(capsys, f"fabric explain --root '{root}'")
        digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        parts += [f"# {kind}, JSON {digest}", ask(capsys, f"fabric explain --root '{root}' --nodes 4")]
        found = ask_json(capsys, f"fabric lint job.sh --nodes 2 --root '{root}'", code=1)["findings"]
        parts += [json.dumps(each) for each in found]
    golden("fabric-trees.txt", "\n".join(parts) + "\n")


@pytest.fixture
def copied(shared_tree: Trees, tmp_path: Path) -> Callable[[str], Path]:
    return lambda kind: Path(shutil.copytree(shared_tree(kind), tmp_path / "root", symlinks=True))


def test_the_environment_of_this_machine_wins(shared_tree, monkeypatch, capsys):
    fabric = detect(shared_tree("ndr"))
    monkeypatch.setattr(fabric_checks, "detect_here", lambda: replace(fabric, gpus=fabric.gpus[:1]))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    text = ask(capsys, "fabric explain --gpus-per-node 8")
    derived, _, given = text.partition("\nvariables that are already set, and win\n")
    assert "GLOO_SOCKET_IFNAME" not in derived
    assert "this node has 1 GPU; the nodes of the job may differ" in derived
    assert "  GLOO_SOCKET_IFNAME=eth9\n    set by environment\n    error [conflict]: " in given
    document = ask_json(capsys, "fabric explain --gpus-per-node 1")
    (found,) = (each for each in document["given"] if each["value"] == "eth9")
    assert (found["origin"], len(found["findings"])) == ("environment", 1)
    assert "this node has" not in ask(capsys, "fabric explain --gpus-per-node 1")


def test_a_given_interface_beside_the_derived_one(copied, capsys):
    root = copied("hdr_mixed")
    (root / "etc/nccl.conf").write_text("NCCL_SOCKET_IFNAME==ib99\n")
    given = ask(capsys, f"fabric explain --root '{root}'").partition("\nvariables that are already set")[2]
    assert "  NCCL_SOCKET_IFNAME==ib99\n    set by /etc/nccl.conf\n    error [conflict]: it selects" in given
    assert "    without it: =enp226s0 (the interface of gloo" in given
    rows = ask_json(capsys, f"fabric explain --root '{root}'")["variables"]
    assert {each["name"]: each["given"] for each in rows if each["given"]} == {"NCCL_SOCKET_IFNAME": "=ib99"}


def test_interfaces_that_are_not_known(copied, capsys):
    root = copied("cpu")
    alone = ask(capsys, f"fabric explain --root '{root}' --nodes 1")
    assert alone.endswith("variables for a job of 1 node with gloo\n  none: the defaults are right\n")
    (root / "proc/net/route").unlink()
    unknown = "GLOO_SOCKET_IFNAME: not known here, because there is no default route"
    assert unknown in ask(capsys, f"fabric explain --root '{root}'")
    assert unknown not in ask(capsys, f"fabric explain --root '{root}' --nodes 1")
    (root / "sys/class/net/eth0/operstate").write_text("down")
    (root / "sys/class/net/veth0").mkdir()
    (root / "sys/class/net/veth0/operstate").write_text("up")
    text = ask(capsys, f"fabric explain --root '{root}'")
    assert "network between nodes: none: no interface of a device is up" in text


def lint(capsys: Captured, text: str, options: str = "", code: int = 0) -> str:
    Path("job.sh").write_text(text)
    return ask(capsys, f"fabric lint job.sh {options}", code)


def test_findings_have_their_line_and_errors_an_exit_code(capsys, shared_tree, monkeypatch):
    clean = lint(capsys, "export NCCL_DEBUG=WARN\n", "--nccl 2.27.5")
    assert clean == "1 communication variable for NCCL 2.27.5: no findings\n"
    warned = lint(capsys, "\ufeffexport NCCL_P2P_DISABLE=1\n")
    assert warned.startswith("job.sh:1: warning [debug] NCCL_P2P_DISABLE=1: for debugging")
    refused = lint(capsys, "# x\nexport NCCL_IB_TIMEOUT=120\n", code=1)
    assert refused.startswith("job.sh:2: error [out-of-range] NCCL_IB_TIMEOUT=120: '120' is not allowed")
    assert refused.endswith("1 communication variable for NCCL 2.30.7 (give another with --nccl): 1 error\n")
    grace = detect(shared_tree("cxi"))
    monkeypatch.setattr(fabric_checks, "detect_here", lambda: grace)
    for root in (shared_tree("cxi"), "/"):  # the root folder is this machine
        out = lint(capsys, "NCCL_PROTO=LL128\n", f"--root '{root}' --nccl 2.27.5", code=1)
        assert "error [corruption] NCCL_PROTO=LL128: LL128 between nodes corrupts data on GH200" in out


def test_standard_input(capsys, monkeypatch):
    text = io.TextIOWrapper(io.BytesIO(b"NCCL_SOCKET_IFNMAE=eth0\nHF_TOKEN=hush\n"))
    monkeypatch.setattr("sys.stdin", text)
    document = ask_json(capsys, "fabric lint - --nccl 2.27.5", code=1)
    assert (document["verb"], document["nccl"], document["checked"]) == ("fabric lint", "2.27.5", 1)
    (finding,) = document["findings"]
    assert (finding["origin"], finding["kind"]) == ("standard input:1", "unknown")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lint none.sh", "FILE: cannot read none.sh: No such file or directory"),
        ("lint job.sh --root nowhere", "--root: no such folder: 'nowhere'"),
        ("explain --root empty", "--root: 'empty' has neither sys/ nor proc/"),
        ("lint job.sh --nodes 0", "argument --nodes"),
        ("lint job.sh --nccl 22705", "--nccl: '22705' is not a version such as 2.27.5"),
        ("lint list.yaml", "list.yaml: no variable is set"),
        ("lint binary", "binary: not a text in UTF-8"),
        ("explain --gpus-per-node 16 --root '{root}'", "--gpus-per-node: 16, but this node has 8 GPUs"),
        ("ab NCCL_ALGO", "fabric ab: 'NCCL_ALGO' is not of the form VAR=VALUE"),
        ("ab A=1 --nodes 1", "one rank has no communication"),
        ("ab A=1 --minutes 0", "argument --minutes"),
        ("ab A=1 --like nothing", "no run 'nothing'"),
        ("ab NCCL_ALOG=Ring", "fabric ab: no known library reads 'NCCL_ALOG'; did you mean 'NCCL_ALGO'?"),
    ],
)
def test_bad_input(words, message, capsys, shared_tree):
    Path("job.sh").write_text("A=1\n")
    Path("list.yaml").write_text("environment:\n  - NCCL_DEBUG=INFO\n")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("empty").mkdir()
    assert submit.main(["fabric", *shlex.split(words.format(root=shared_tree("ndr")))]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not RUNS.exists()


@pytest.mark.parametrize(
    ("word", "warning"),
    [
        ("NCCL_IB_TIMOUT=22", "no library reads it; did you mean 'NCCL_IB_TIMEOUT'?"),
        ("NCCL_IB_TIMEOUT=120", "'120' is not allowed"),
        ("NCCL_IB_TIMEOUT=22", None),
        ("NCCL_MY_PLUGINS_OWN=1", None),  # a warning of the lint, not an error
    ],
)
def test_errors_in_job_env_are_printed_at_the_submission(word, warning, capsys):
    assert submit.main(["run", "tiny.yaml", "--nodes", "2", "--set", f"job.env.{word}"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "job.env" in line]
    expected = f"warning: job.env.{word.partition('=')[0]}: {warning}"
    assert [line[: len(expected)] for line in lines] == ([expected] if warning else [])


def experiments() -> Iterator[dict[str, Any]]:
    """Configs of the jobs of experiments."""
    for path in sorted(RUNS.glob("ab-*/*/run.json")):
        yield read_json(path)["config"]


def test_one_job_compares_all_variables(capsys):
    ask(capsys, "fabric ab NCCL_ALGO=Ring NCCL_PROTO=LL --nodes 2 --gpus-per-node 2 --device cpu --minutes 5")
    (config,) = experiments()
    assert config["command"][:5] == ["-m", "jobs.arms", "NCCL_ALGO=Ring", "NCCL_PROTO=LL", "--device"]
    assert (config["resources"]["nodes"], config["resources"]["gpus_per_node"]) == (2, 2)
    assert (config["resources"]["device"], config["job"]["time_limit_min"]) == ("cpu", 15)


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("", ["-m", "jobs.arms", "--device"]),  # what detection derives
        ("NCCL_ALOG=Ring --allow-unknown", ["-m", "jobs.arms", "NCCL_ALOG=Ring"]),
    ],
)
def test_the_job_derives_and_checks_the_names(words, start, capsys):
    assert submit.main(["fabric", "ab", "--device", "cpu", *words.split()]) == 0
    warning = "warning: no known library reads 'NCCL_ALOG'" in capsys.readouterr().err
    (config,) = experiments()
    assert (config["command"][: len(start)], warning) == (start, "ALOG" in words)
    assert ("--allow-unknown" in config["command"]) == warning


def test_an_experiment_that_was_killed_starts_again_and_a_finished_one_is_printed(capsys):
    command, run = "fabric ab NCCL_ALGO=Ring --device cpu", RunDir(RUNS / "ab-NCCL_ALGO-Ring" / "n2")
    ask(capsys, f"{command} --dry-run --cluster local")
    assert not RUNS.exists()
    ask(capsys, command)
    end(run, "killed")
    ask(capsys, command)
    assert states() == {"n2": "queued"}
    write_json(run.fabric_ab, result().model_dump(mode="json"))
    end(run, "finished")
    assert "1.042  1.036 to 1.050" in ask(capsys, command)
    found = ask_json(capsys, command)
    assert found["kept"]["n2"] == {"NCCL_ALGO": "Ring", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert found["fabric_ab"]["n2"]["backend"] == "nccl"


def test_the_step_and_the_shape_of_a_run_unless_its_steps_differ(capsys):
    ask(capsys, "run tiny.yaml --nodes 3 --set job.env.NCCL_NET=Socket resources.device=cpu")
    (run,) = [path.parent for path in (RUNS / "tiny").glob("*/run.json")]
    command = f"fabric ab NCCL_ALGO=Ring --like tiny/{run.name}"
    ask(capsys, command)
    (config,) = experiments()
    assert config["command"][-2:] == ["--like", str(run.resolve())]
    assert config["job"]["env"] == {"NCCL_NET": "Socket"}
    assert (config["resources"]["nodes"], config["resources"]["device"]) == (3, "cpu")
    record = read_json(run / "run.json")
    record["config"]["parallel"]["gradient_communication"] = {"scheme": "local_sgd"}
    write_json(run / "run.json", record)
    ask(capsys, command, code=2)
