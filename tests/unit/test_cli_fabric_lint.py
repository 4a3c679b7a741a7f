"""`submit.py fabric lint`: findings, exit codes and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import submit
from jobs.cli import fabric_checks
from jobs.fabric.detect import detect
from tests.support.fabric_trees import tree


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lint(capsys: pytest.CaptureFixture[str], text: str, *options: str) -> tuple[int, str, str]:
    Path("job.sh").write_text(text)
    code = submit.main(["fabric", "lint", "job.sh", *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = lint(capsys, "export NCCL_DEBUG=WARN\n", "--nccl", "2.27.5")
    assert (code, out) == (0, "1 communication variable for NCCL 2.27.5: no findings\n")
    code, out, _ = lint(capsys, "export NCCL_P2P_DISABLE=1\n")
    assert code == 0, "warnings alone"
    assert "job.sh:1: warning [debug] NCCL_P2P_DISABLE=1: for debugging" in out
    code, out, _ = lint(capsys, "# x\nexport NCCL_IB_TIMEOUT=120\n")
    assert code == 1
    assert "job.sh:2: error [out-of-range] NCCL_IB_TIMEOUT=120: '120' is not allowed" in out
    assert out.endswith("1 communication variable for NCCL 2.30.7 (give another with --nccl): 1 error\n")


def test_a_mark_of_byte_order_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = lint(capsys, "\ufeffexport NCCL_P2P_DISABLE=1\n")
    assert "job.sh:1: warning [debug]" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["none.sh"], "FILE: cannot read none.sh: No such file or directory"),
        (["job.sh", "--root", "nowhere"], "--root: no such folder: 'nowhere'"),
        (["job.sh", "--root", "empty"], "--root: 'empty' has neither sys/ nor proc/"),
        (["job.sh", "--nodes", "0"], "argument --nodes"),
        (["job.sh", "--nccl", "new"], "--nccl: 'new' is not a version such as 2.27.5"),
        (["job.sh", "--nccl", "22705"], "--nccl: '22705' is not a version such as 2.27.5"),
        (["list.yaml"], "list.yaml: no variable is set"),
        (["words.txt"], "words.txt: no variable is set"),
        (["binary"], "binary: not a text in UTF-8"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    Path("job.sh").write_text("A=1\n")
    Path("words.txt").write_text("hello world\n")
    Path("list.yaml").write_text("environment:\n  - NCCL_DEBUG=INFO\n")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("empty").mkdir()
    assert submit.main(["fabric", "lint", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_the_network_of_a_file_tree(capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tree("cxi", Path("root").absolute()))
    code, out, _ = lint(capsys, "export NCCL_PROTO=LL128\n", "--root", root, "--nccl", "2.27.5")
    assert code == 1
    assert "error [corruption] NCCL_PROTO=LL128: LL128 between nodes corrupts data on GH200" in out


def test_the_root_folder_is_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = detect(tree("cxi", Path("root").absolute()))
    monkeypatch.setattr(fabric_checks, "detect_here", lambda: here)
    code, out, _ = lint(capsys, "export NCCL_PROTO=LL128\n", "--root", "/", "--nccl", "2.27.5")
    assert code == 1
    assert "on GH200" in out


def test_standard_input_and_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"NCCL_SOCKET_IFNMAE=eth0\nHF_TOKEN=hush\n"))
    monkeypatch.setattr("sys.stdin", text)
    assert submit.main(["fabric", "lint", "-", "--json", "--nccl", "2.27.5"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["verb"], document["nccl"], document["checked"]) == ("fabric lint", "2.27.5", 1)
    (finding,) = document["findings"]
    assert finding["origin"] == "standard input:1"
    assert (finding["severity"], finding["kind"]) == ("error", "unknown")
