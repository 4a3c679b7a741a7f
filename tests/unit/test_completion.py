"""Completion of command lines: the candidates of argcomplete, and the script in real shells."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit
from tests.support.jobs import in_a_fork, wait_for
from tests.support.states import make_run
from tests.support.terminal import Terminal

COMMAND = f"""\
#!/bin/sh
'''exec' {shlex.quote(sys.executable)} "$0" "$@"
' '''
import sys
from jobs.cli.main import main
sys.exit(main())
"""
"""What pip makes of the entry point `disttrain` where the path of the interpreter has a blank."""
SHELLS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sweeps, and one more below another runs folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("tiny/n1-b8", "tiny/n2-b8", "other/n4-b8"):
        make_run(Path("runs"), name)
    make_run(Path("elsewhere"), "third/n1-b8")
    (tmp_path / "runs/tiny/report-good").mkdir()
    (tmp_path / "data.txt").touch()
    return tmp_path


def candidates(line: str) -> list[str]:
    """The candidates at the end of a command line, as bash gets them: after the last word break."""
    file = Path("candidates").absolute()
    environ = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_SHELL": "bash"}
    environ |= {"_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:", "_ARGCOMPLETE_STDOUT_FILENAME": str(file)}

    def complete() -> None:
        os.environ.update(environ)
        submit.main([])

    assert wait_for(in_a_fork(complete)) == 0
    return file.read_text().split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("submit.py sta", ["status"]),
        ("submit.py re", ["resume", "report"]),
        ("submit.py cluster s", ["status", "shell"]),
        ("submit.py cluster up --no", ["--nodes", "--no-accounting"]),
        ("submit.py sweep --cluster l", ["local"]),
        ("submit.py sweep --cluster=l", ["local"]),
        ("submit.py run x.yaml --profile inf", ["infiniband"]),
        ("submit.py status ", ["other", "tiny"]),
        ("submit.py status --runs elsewhere ", ["third"]),
        ("submit.py status tiny o", ["other"]),
        ("submit.py status --csv runs.csv o", ["other"]),
        ("submit.py show ti", ["tiny/"]),
        ("submit.py show tiny/", ["tiny/n1-b8", "tiny/n2-b8"]),
        ("submit.py cancel ti", ["tiny", "tiny/"]),
        ("submit.py emulate --from o", ["other/"]),
        ("submit.py annotate ti", ["tiny", "tiny/"]),
        ("submit.py watch --state failed,lo", ["failed,lost"]),
        ("submit.py sweep --set train.steps=4 optim.lr=1 parallel.stra", ["parallel.strategy="]),
        ("submit.py sweep --set model.kind=mlp,g", ["mlp,gpt"]),
        ("submit.py run x.yaml --set parallel.strategy=d", ["ddp", "dp"]),
        ("submit.py run x.yaml --set model.wid", ["model.width="]),
        ("submit.py report --out el", ["elsewhere/"]),
        ("submit.py sweep da", ["data.txt"]),
        ("submit.py completion z", ["zsh"]),
        ("submit.py nonsense --x", []),
    ],
)
def test_the_candidates(folder: Path, line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


@pytest.fixture
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    """An interactive shell with the completion script, in the folder with runs."""
    name = request.param
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    (folder / "submit.py").symlink_to(submit.__file__)
    program = shlex.join([sys.executable, submit.__file__])
    command = folder / "bin" / "disttrain"
    command.parent.mkdir()
    command.write_text(COMMAND)
    command.chmod(0o755)
    path = f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    terminal = Terminal(SHELLS[name], columns=200, HOME=str(folder), PS1="> ", PROMPT="> ", PATH=path)
    try:
        if name == "zsh":
            terminal.type("unsetopt PROMPT_SP; autoload -Uz compinit && compinit -u -D\n")
        for each in (program, "disttrain"):
            terminal.type(f'eval "$({each} completion {name})"\n')
        terminal.type('echo rea""dy\n')
        terminal.wait_for("ready")
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", SHELLS, indirect=True)
def test_tab_completes_in_a_real_shell(shell: Terminal) -> None:
    for typed, completed in [
        ("./submit.py stat\t", "status"),
        ("\x15python submit.py show tin\t", "tiny/"),
        ("n2\t", "n2-b8"),
        ("\x15python3 submit.py sweep --set model.ki\t", "model.kind="),
        ("ml\t", "mlp"),
        ("\x15./submit.py sweep dat\t", "data.txt"),
        ("\x15python dat\t", "data.txt"),
        ("\x15disttrain canc\t", "cancel"),
        ("ti\t", "tiny"),
    ]:
        shell.type(typed)
        start = typed.strip("\t").split(" ")[-1].removeprefix("\x15")
        shell.wait_for(start)
        shell.wait_for(completed[len(start) :])
