"""The set-up of each node: its variables reach Python, and Python follows a failure, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.core.environment import SETUP_EXIT_VARIABLE
from jobs.schedulers.slurm.profile import Profile
from jobs.schedulers.slurm.script import node_setup

PRINT = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def set_up(folder: Path, *lines: str) -> tuple[dict[str, str], list[str]]:
    """Environment and arguments of a Python that the set-up runs, as srun starts it."""
    script = folder / "script"
    start = f"bash -c \"$node_setup\" bash '{sys.executable}' -c '{PRINT}' \"it's\" 'a  b'"
    script.write_text("\n".join([*node_setup(Profile(name="x", node_setup=lines)), start]))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    environ, arguments = json.loads(done.stdout.splitlines()[-1])
    return environ, arguments


def test_a_profile_without_a_node_setup_adds_no_line() -> None:
    assert node_setup(Profile(name="x")) == []


def test_its_variables_reach_python(tmp_path: Path) -> None:
    environ, arguments = set_up(tmp_path, "export A='it'\"'\"'s'", "false", 'export B="$A $(echo 1)"')
    assert (environ["A"], environ["B"], arguments) == ("it's", "it's 1", ["it's", "a  b"])
    assert SETUP_EXIT_VARIABLE not in environ


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["ls /nonexistent || exit", "export LATER=1"], "2"),
        (["exit 0"], "0"),
        (["set -e", "false"], "1"),
        (["set -u", 'echo "$NO_SUCH_VARIABLE"'], "127"),
    ],
)
def test_python_follows_a_set_up_that_exits_with_its_code(
    tmp_path: Path, lines: list[str], code: str
) -> None:
    environ, arguments = set_up(tmp_path, *lines)
    assert environ[SETUP_EXIT_VARIABLE] == code
    assert "LATER" not in environ
    assert arguments == ["it's", "a  b"]


def test_no_signal_ends_the_set_up(tmp_path: Path) -> None:
    kills = [f"kill -{number} $$" for number in ("USR1", "USR2", "TERM")]
    assert SETUP_EXIT_VARIABLE not in set_up(tmp_path, *kills)[0]


def test_a_python_that_does_not_exist_is_reported_once(tmp_path: Path) -> None:
    lines: list[Any] = [*node_setup(Profile(name="x", node_setup=("true",)))]
    (tmp_path / "script").write_text("\n".join([*lines, 'bash -c "$node_setup" bash /no/python']))
    done = subprocess.run(["bash", tmp_path / "script"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("/no/python")) == (127, 1)
