"""Secrets of `job.env`: their values stand in one private file, and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import submit
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import secrets_file
from jobs.status.run_state import read_runs
from tests.support.jobs import FakeScheduler
from tests.support.verbs import RUNS, TINY, end

pytestmark = pytest.mark.usefixtures("cluster")

VALUE = "-".join(("hunter", "2"))
"""Put together, since `run.json` records uncommitted changes of this file."""
FILE = RUNS / "tiny" / "secrets.json"
LISTED = "job: {secrets: [mine], env: {NCCL_DEBUG: INFO}}\n"


Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Runs a command on a config with these lines at its end; its exit code, and all that it prints."""

    def run(config: str, verb: str, *words: str) -> tuple[int, str]:
        Path("tiny.yaml").write_text(TINY + config)
        monkeypatch.setattr(sys, "argv", ["submit.py", verb, "tiny.yaml", *words])
        return submit.main(sys.argv[1:]), "".join(capsys.readouterr())

    return run


def holding(value: str) -> list[Path]:
    """Files of the runs folder that hold the value in their path or their text."""
    paths = [path for path in RUNS.rglob("*") if path.is_file()]
    return [path for path in paths if value in f"{path}{path.read_text(errors='replace')}"]


@pytest.mark.parametrize("verb", ["run", "sweep"])
@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("HF_TOKEN", "", ["--set", f"job.env.HF_TOKEN={VALUE}"]),
        ("HF_TOKEN", f"job: {{env: {{HF_TOKEN: {VALUE}}}}}\n", []),
        ("mine", LISTED, ["--set", f"job.env.mine={VALUE}"]),
        ("mine", LISTED.replace("INFO", f"INFO, mine: {VALUE}"), []),
        ("mine", "", ["--set", "job.secrets=[mine]", f"job.env.mine={VALUE}"]),
    ],
)
def test_a_value_stands_in_one_private_file(
    typed: Typed, verb: str, name: str, config: str, words: list[str]
) -> None:
    umask = os.umask(0)
    try:
        for options in (["--dry-run"], ["--dry-run", "--json", "--cluster", "slurm"], ["--json"]):
            code, printed = typed(config, verb, *words, *options)
            assert (code, VALUE in printed, "***" in printed) == (0, False, "--dry-run" in options)
    finally:
        os.umask(umask)
    assert holding(VALUE) == [FILE]
    assert (read_json(FILE), FILE.stat().st_mode & 0o777) == ({name: VALUE}, 0o600)
    (run,) = read_runs(RUNS)
    assert read_json(run.run.run_json)["config"]["job"]["secrets"] == [name]


def test_the_file_is_private_from_its_creation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    modes = []
    opened = os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        modes.append(mode if flags & os.O_CREAT else 0o600)
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    secrets_file.add(tmp_path, {"HF_TOKEN": VALUE})
    assert set(modes) == {0o600}


def test_another_value_is_the_same_run(typed: Typed, cluster: FakeScheduler) -> None:
    typed("", "run", "--set", "job.env.A_TOKEN=first", "job.env.B_TOKEN=kept")
    code, printed = typed("", "run", "--set", "job.env.A_TOKEN=second")
    assert (code, "1 in progress" in printed, len(cluster.submitted)) == (0, True, 1)
    assert read_json(FILE) == {"A_TOKEN": "second", "B_TOKEN": "kept"}
    (state,) = read_runs(RUNS)
    end(state.run, "finished")
    assert "1 done" in typed("", "sweep")[1], "a run with secrets is the run without"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", ["sweep", "--set", f"job.env.HF_TOKEN={VALUE},other"]),
        ("", ["run", "--set", f"job.env.HF_TOKEN={VALUE},other"]),
        ("", ["run", "--set", f"job.env={{HF_TOKEN: {VALUE}}}"]),
        (f"sweep: {{axes: {{job.env.HF_TOKEN: [{VALUE}]}}}}\n", ["sweep"]),
        (f"sweep: {{grids: {{a: {{job.env: [{{mine: {VALUE}}}]}}}}}}\n{LISTED}", ["sweep"]),
        (f"job: {{env: {{HF_TOKEN: [{VALUE}]}}}}\n", ["run"]),
        (f"job: {{env: [HF_TOKEN={VALUE}]}}\n", ["run"]),
        ("", ["run", "--set", "job.env.HF_TOKEN=123"]),
        ("", ["run", "--set", f"job.env.HF_TOKEN={VALUE},"]),
    ],
)
def test_bad_input_is_one_line_without_the_value(typed: Typed, config: str, words: list[str]) -> None:
    code, printed = typed(config, *words)
    assert (code, printed[:7], printed.count("\n")) == (2, "error: ", 1)
    assert ("job.env" in printed, VALUE in printed) == (True, False)
    assert not (RUNS / "tiny").exists()


def test_other_variables_stay_axes(typed: Typed) -> None:
    typed("", "sweep", "--set", "job.env.NCCL_PAT_ENABLE=0,1", f"job.env.HF_TOKEN={VALUE}")
    assert [state.name for state in read_runs(RUNS)] == ["n1-NCCL_PAT_ENABLE0", "n1-NCCL_PAT_ENABLE1"]


def test_values_come_from_the_file_else_from_the_environment(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "demo" / "a")
    secrets_file.add(tmp_path / "demo", {"A": "of the file"})
    config = {"job": {"secrets": ["A", "B"]}}
    environ = {"A": "of the shell", "B": "of the shell", "C": "other"}
    values = secrets_file.values_of_run(run, config, environ)
    assert values == {"A": "of the file", "B": "of the shell"}
    with pytest.raises(secrets_file.MissingSecret, match="B has no value"):
        secrets_file.values_of_run(run, config, {})
