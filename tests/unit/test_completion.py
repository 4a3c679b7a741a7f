"""Completion of command lines: the candidates, and the scripts in real shells."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import submit
from jobs.cli import completion
from jobs.cli.completion import candidates, split
from tests.support.states import make_run
from tests.support.terminal import Terminal

SHELLS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sweeps, and one more below another runs folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("tiny/n1-b8", "tiny/n2-b8", "other/n4-b8"):
        make_run(Path("runs"), name)
    make_run(Path("elsewhere"), "third/n1-b8")
    (tmp_path / "runs/tiny/report").mkdir()
    (tmp_path / "runs/tiny/report-good").mkdir()
    return tmp_path


def words(line: str) -> list[str]:
    return list(candidates(*split(line)).words)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("submit.py sta", ["status"]),
        ("python submit.py re", ["resume", "report"]),
        ("./submit.py cluster s", ["status", "shell"]),
        ("submit.py cluster up --no", ["--nodes", "--no-accounting"]),
        ("submit.py sweep --dry", ["--dry-run"]),
        ("submit.py sweep x.yaml --dry-run --dr", []),
        ("submit.py sweep --set optim.lr=1 --set", ["--set"]),
        ("submit.py sweep --cluster l", ["local"]),
        ("submit.py sweep --cluster=l", ["--cluster=local"]),
        ("submit.py run x.yaml --profile inf", ["infiniband"]),
        ("submit.py status ", ["other", "tiny"]),
        ("submit.py status --runs elsewhere ", ["third"]),
        ("submit.py status --runs=elsewhere t", ["third"]),
        ("submit.py status tiny o", ["other"]),
        ("submit.py status --csv runs.csv o", ["other"]),
        ("submit.py show ti", ["tiny/"]),
        ("submit.py show tiny/n2", ["tiny/n2-b8"]),
        ("submit.py show tiny/", ["tiny/n1-b8", "tiny/n2-b8"]),
        ("submit.py cancel ti", ["tiny", "tiny/"]),
        ("submit.py emulate --from o", ["other/"]),
        ("submit.py do", ["doctor"]),
        ("submit.py doctor --profile inf", ["infiniband"]),
        ("submit.py annotate ti", ["tiny", "tiny/"]),
        ("submit.py watch --state failed,lo", ["failed,lost"]),
        ("submit.py sweep --set train.global", ["train.global_batch_size="]),
        ("submit.py sweep --set train.steps=4 optim.lr=1 parallel.stra", ["parallel.strategy="]),
        ("submit.py sweep --set model.kind=m", ["model.kind=mlp"]),
        ("submit.py sweep --set model.kind=mlp,g", ["model.kind=mlp,gpt"]),
        ("submit.py run x.yaml --set model.kind=gpt model.wid", ["model.width="]),
        ("submit.py run x.yaml --set parallel.strategy=d", ["parallel.strategy=dp", "parallel.strategy=ddp"]),
        ("submit.py status 'ti", ["tiny"]),
        ("submit.py completion z", ["zsh"]),
        ("submit.py nonsense --x", []),
    ],
)
def test_the_candidates(folder: Path, line: str, expected: list[str]) -> None:
    assert words(line) == expected


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("submit.py sweep ", "files"),
        ("submit.py report --out ", "folders"),
        ("submit.py sweep --runs=", "folders"),
        ("submit.py cluster shell -- sq", "files"),
        ("submit.py sweep --profile ./x", "files"),
        ("submit.py doctor --write-profile ", "files"),
        ("submit.py status ", "words"),
    ],
)
def test_the_shell_lists_files_and_folders(folder: Path, line: str, kind: str) -> None:
    assert candidates(*split(line)).kind == kind


def test_after_a_verb_without_positionals_the_options_follow(folder: Path) -> None:
    assert words("submit.py cluster down ") == ["--help", "--json", "--name"]


def test_the_bash_candidate_begins_after_the_last_word_break(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit.main(["completion", "bash", "--line", "submit.py run x --set model.kind=ml"]) == 0
    assert capsys.readouterr().out == "words\nmlp\n"
    assert submit.main(["completion", "zsh", "--line", "submit.py run x --set model.kind=ml"]) == 0
    assert capsys.readouterr().out == "words\nmodel.kind=mlp\n"


def test_names_of_runs_are_completed_without_heavy_imports(folder: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(submit.__file__).parent)!r}); import submit\n"
        "submit.main(['completion', 'bash', '--line', 'submit.py show tiny/n2'])\n"
        "print(sorted({'pydantic', 'yaml', 'torch', 'rich', 'submitit', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "words\ntiny/n2-b8\n[]\n"


@pytest.fixture
def shell(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    """An interactive shell with the completion script, in the folder with runs."""
    name = request.param
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    (folder / "submit.py").symlink_to(submit.__file__)
    (folder / "data.txt").touch()
    program = shlex.join([sys.executable, submit.__file__])
    terminal = Terminal(SHELLS[name], columns=200, HOME=str(folder), PS1="> ", PROMPT="> ")
    try:
        if name == "zsh":
            terminal.type("unsetopt PROMPT_SP; autoload -Uz compinit && compinit -u -D\n")
        terminal.type(f'eval "$({program} completion {name})"; echo rea""dy\n')
        terminal.wait_for("ready")
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", SHELLS, indirect=True)
def test_tab_completes_in_a_real_shell(shell: Terminal) -> None:
    for typed, completed in [
        ("./submit.py stat\t", "status"),
        ("python submit.py show tin\t", "tiny/"),
        ("n2\t", "n2-b8"),
        ("\x15python3 submit.py sweep --set model.ki\t", "model.kind="),
        ("ml\t", "mlp"),
        ("\x15./submit.py sweep dat\t", "data.txt"),
        ("\x15python dat\t", "data.txt"),
    ]:
        shell.type(typed)
        start = typed.strip("\t").split(" ")[-1].removeprefix("\x15")
        shell.wait_for(start)
        shell.wait_for(completed[len(start) :])


def test_the_script_runs_this_program(capsys: pytest.CaptureFixture[str]) -> None:
    program = shlex.join([sys.executable, str(Path(submit.__file__).resolve())])
    for shell in SHELLS:
        assert submit.main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert f"{program} completion {shell} --line" in script
        assert "@COMMAND@" not in script
        assert f'eval "$(python submit.py completion {shell})"' in script
    assert completion.PROGRAM == "submit.py"
