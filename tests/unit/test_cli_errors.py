"""The command line: mistakes are one line and exit code 2, help has examples, colours stand where they may."""

# ruff: noqa: E501 (tables of messages)
from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import submit
from jobs.cli import main
from jobs.cli.arguments import EXAMPLES, VERBS, build_parser, verb_of
from jobs.cli.terminal import can_redraw, has_colour
from tests.support.states import make_run
from tests.support.terminal import Terminal
from tests.support.verbs import TINY, ask, verbs

ROOT = Path(submit.__file__).parent
PROGRAM = [sys.executable, submit.__file__]
OF_VERBS = dict(verbs())
COLOUR = re.compile(r"\x1b\[[\d;]*(?:3[0-7]|38;[\d;]+|9[0-7])m")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def refused(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """The one line that this command line is refused with; it writes nothing."""
    before = sorted(Path().rglob("*"))
    code = submit.main(shlex.split(command))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n"), err[-1]) == (2, "", 1, "\n")
    assert sorted(Path().rglob("*")) == before, "something was written"
    return err.removeprefix("error: ")


GPUS = "sweep tiny.yaml --cluster local --gpus"
LOCAL = "tiny.yaml --dry-run --cluster local --set"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("statsu", "VERB: 'statsu' is not one of init, sweep, run, status, "),
        ("--nods", "unknown argument '--nods'; only --help and --version may stand before the verb"),
        ("--runs x status", "unknown argument '--runs'; only --help and --version may stand before the verb"),
        ("sweep --nods 1", "unknown argument '--nods'; did you mean '--nodes'?"),
        ("cluster up --nods 1", "unknown argument '--nods'; did you mean '--nodes'?"),
        ("report --sweep-en 1", "unknown argument '--sweep-en' (see"),  # a hidden option is not suggested
        ("sweep --cluster slrum", "--cluster: 'slrum' is not one of auto, local, slurm; did you mean 'slurm'?"),
        ("sweep --nodes", "argument --nodes: expected at least one argument"),
        ("cluster", "the following arguments are required: ACTION"),
        ("logs x --rank 0 --node 0", "argument --node: not allowed with argument --rank"),
        (f"{GPUS} 1 12 --gpus-per-node 8", "--gpus: 12 fills no whole nodes; allowed are 1 to 8 and multiples of 8"),
        (f"{GPUS} 0 --gpus-per-node 8", "--gpus: 0 fills no whole nodes"),
        (f"{GPUS} 1 2", "--gpus: the GPUs of a node are not known; "),
        (f"{GPUS} 1 --nodes 2 --gpus-per-node 8", "--gpus: goes with one --gpus-per-node N and with no other"),
        (f"{GPUS} 1 --gpus-per-node 4 8", "--gpus: goes with one --gpus-per-node N and with no other"),
        (f"{GPUS} 1 --gpus-per-node 4 --set resources.nodes=2", "--gpus: goes with one --gpus-per-node N"),
        ("sweep tiny.yaml --nodes 0", "--nodes: resources.nodes=0: input should be greater than 0"),
        ("sweep tiny.yaml --nodes 1 1", "--nodes: resources.nodes: the axis has the value 1 twice"),
        ("sweep tiny.yaml --repeats 0", "--repeats: sweep.repeats=0: input should be greater than 0"),
        *((f"sweep tiny.yaml --repeats {text}", f"--repeats: sweep.repeats={text!r}: allowed: a number, auto:P%")
          for text in ("auto", "auto:0%", "auto:2", "auto:abc%", "auto:100%", "auto:2%:2")),
        ("sweep tiny.yaml --repeats auto:2% --no-report", "--no-report: --repeats auto needs the report job"),
        ("sweep tiny.yaml --scaling strog", "--scaling: sweep.scaling='strog': allowed: 'weak' or 'strong'"),
        ("sweep tiny.yaml --set train.stpes=5", "--set: unknown key 'train.stpes'; did you mean 'train.steps'?"),
        (f"sweep {LOCAL} telemetry.sinks=[tensorbord]", "--set: telemetry.sinks='tensorbord' is unknown; allowed: "),
        (f"run {LOCAL} model.kind=disttrain.models.gpt:biuld", "--set: model.kind='disttrain.models.gpt:biuld' cannot be imported: "),
        (f"run {LOCAL} model.n_layr=2", "--set: model.n_layr is not an option of model.kind=mlp; allowed: "),
        ("sweep --set tiny.yaml", "--set: 'tiny.yaml' is not of the form key=value (a file goes before"),
        ("sweep tiny.yaml --name ../x", "--name: '../x' cannot name a sweep"),
        ("sweep tiny.yaml --grid a", "--grid: no grid 'a' in the sweep file; grids: none"),
        ("sweep sweeps/defualt.yaml", "no file 'sweeps/defualt.yaml'; did you mean '"),
        ("sweep . --name x", "cannot read config '.': Is a directory"),
        ("run tiny.yaml --set optim.lr=1,2", "--set: optim.lr: `run` takes one value; `sweep` takes several"),
        ("sweep tiny.yaml --nodes 1 3 --scaling strong --set train.local_batch_size=null train.global_batch_size=8",
         "--set: train.global_batch_size=8 is not divisible by 3 ranks (strong scaling); nearest that are: 6 and 9"),
        ("sweep tiny.yaml --runs tiny.yaml --cluster local", "cannot write to 'tiny.yaml/tiny': "),
        ("sweep tiny.yaml --runs /proc/runs --cluster local", "cannot write to '/proc/runs/tiny': "),
        *((command, f"a script and its arguments come after `--`, options of `{right.split()[0]}` before it: disttrain {right}\n") for command, right in (
            ("run --nodes 2 train.py --lr 0.1", "run --nodes 2 -- train.py --lr 0.1"),
            ("run train.py --lr '0.1 0.2' --wait", "run -- train.py --lr '0.1 0.2' --wait"),
            ("run torchrun --nproc_per_node 8 train.py", "run -- train.py"),
            ("run my.yaml python -m my.train", "run my.yaml -- -m my.train"),
            ("sweep --nodes 1 2 train.py --lr '{lr}'", "sweep --nodes 1 2 -- train.py --lr '{lr}'"),
        )),
        ("run tiny.yaml --on-end notify.py --nods", "unknown argument '--nods'; did you mean '--nodes'?"),
        ("show x", "no run 'x' in runs"),
        ("status x", "no sweep 'x' in runs; no sweeps exist"),
        ("report", "no runs in runs yet"),
        ("clean", "nothing to move is named"),
        ("clean --purge x", "--purge deletes the whole trash: it takes no RUN (given: 'x')"),
        *((f"clean --restore {flag}", "--restore goes with none of --failed, --stale and --tag")
          for flag in ("--failed", "--stale", "--tag a")),
        ("clean --restore x", "no run 'x' in runs/.trash"),
        ("cluster up --link 5foo", "--link='5foo' is not a rate of 1mbit or more (1gbit, 400mbit), nor none"),
        ("cluster shell --name nowhere", "no cluster 'nowhere'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], command: str, message: str) -> None:
    assert refused(capsys, command).startswith(message)


def test_one_run_of_a_file_with_axes_needs_yes(capsys: pytest.CaptureFixture[str]) -> None:
    axes = "sweep: {axes: {resources.nodes: [1, 2]}, grids: {a: {optim.lr: [0.1]}}}\n"
    Path("tiny.yaml").write_text(TINY + axes)
    line = "tiny.yaml: one run is started, without the axes "
    assert refused(capsys, "run tiny.yaml --nodes 2").startswith(f"{line}optim.lr, and needs --yes; ")
    for words, unused in (("", "resources.nodes, optim.lr"), ("--nodes 2 --set optim.lr=0.1", "")):
        assert submit.main(shlex.split(f"run tiny.yaml --cluster local --dry-run {words}")) == 0
        err = capsys.readouterr().err
        assert (f"warning: {line}{unused}\n" if unused else "") == err


def test_a_mistake_in_the_file_names_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    for section, message in (
        ("optim:\n  lrr: 1\n", "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
        (
            "parallel:\n  strategy: disttrain.parallel.ddp:x\n",
            "parallel.strategy='disttrain.parallel.ddp:x' cannot",
        ),
    ):
        Path("tiny.yaml").write_text(TINY + section)
        line = TINY.count("\n") + 2
        assert refused(capsys, "sweep tiny.yaml").startswith(f"tiny.yaml:{line}: {message}")


def test_similar_names_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one/n1", "two/n1", "two/n2-b4", "same/same", "same/n8"):
        make_run(Path("runs"), name)
    for command, message in (
        ("show n2-b5", "no run or sweep 'n2-b5' in runs; did you mean 'n2-b4'?"),
        *((f"{verb} smae", "no run or sweep 'smae' in runs; did you mean 'same'?")
          for verb in ("show", "logs", "cancel", "resume", "clean", "annotate")),
        ("cancel onen1", "did you mean 'one/n1'?"),
        ("clean xyz", "no run or sweep 'xyz' in runs; existing runs: one/n1, "),
        ("show n1", "several sweeps have a run 'n1': one/n1, two/"),
        ("show tow/n2-b4", "no sweep 'tow' in runs; did you mean 'two'?"),
        ("show two", "'two' is a sweep; name one run of it"),
        ("show one/x", "no run 'x' in runs/one; existing runs: one/n1"),
        ("report one two", "--out is needed for a report on several sweeps"),
    ):  # fmt: skip
        assert message in refused(capsys, command)
    assert ask(capsys, "show one").startswith("one/n1\n"), "its only run"
    assert ask(capsys, "show same").startswith("same/same\n"), "the run of that name, not its sweep"


def test_another_or_a_damaged_base_under_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs"), "tiny/n1")
    for record, message in (
        (
            '{"base": {"optim": {"lr": 0.5}, "sweep": {"base_ranks": 1}}}',
            "sweep 'tiny' in runs has another base config: ",
        ),
        ("{", "runs/tiny/sweep.json is not valid JSON"),
        ('{"base": 5}', "runs/tiny/sweep.json has a missing or invalid 'base'"),
    ):
        Path("runs/tiny/sweep.json").write_text(record)
        assert message in refused(capsys, "sweep tiny.yaml --nodes 1")


def test_help_and_examples_of_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*EXAMPLES} == {None, "cluster", *OF_VERBS}
    for verb, parser in OF_VERBS.items():
        examples = parser.format_help().split("\nexample")[1]
        assert f"  disttrain {verb}" in examples
        assert max(map(len, examples.splitlines())) <= 110
    for verb, lines in EXAMPLES.items():
        for line in lines:
            given = main._parse(shlex.split(line))
            assert given is not None
            assert verb is None or str(verb_of(given.parser)).startswith(verb)
    assert submit.main([]) == 2
    assert capsys.readouterr() == (build_parser().format_help(), "")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        submit.main(["--version"])
    assert stopped.value.code == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"{project['name']} {project['version']}\n"


def test_help_imports_the_file_of_its_verb_alone() -> None:
    """So it appears within 0.1 s."""
    code = """\
import contextlib, io, sys, submit
for verb in sys.argv[1:]:
    before = {name for name in sys.modules if name.partition(".")[0] in ("jobs", "disttrain")}
    for name in before - {"jobs", "jobs.cli", "disttrain"}:
        del sys.modules[name]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        submit.main([*verb.split(), "--help"])
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("jobs", "disttrain")}
    print(verb, *sorted(loaded - {"jobs", "jobs.cli", "jobs.cli.main", "jobs.cli.arguments", "disttrain"}), sep=",")
"""
    names = ["", *(verb for verb in VERBS if verb not in ("doctor", "fabric"))]
    done = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for line in done.stdout.splitlines():
        verb, *modules = line.split(",")
        expected = {f"jobs.cli.{verb}", "jobs.cli.options"} if verb else set()
        allowed = (
            {"jobs.schedulers"} if verb in ("sweep", "run", "resume", "bench", "predict") else set()
        )  # names of its folders
        assert {*modules} - allowed <= expected, line


@pytest.mark.parametrize(("module", "code"), [("argparse", -signal.SIGINT), ("yaml", 130)])
def test_an_interrupt_during_imports_leaves_no_traceback(tmp_path: Path, module: str, code: int) -> None:
    """Ctrl-C while submit.py imports a module: its own first ones, and those of a verb."""
    handled = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in a background job
    (tmp_path / f"{module}.py").write_text(f"import signal\n{handled}\nsignal.raise_signal(signal.SIGINT)\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*PROGRAM, "sweep", "tiny.yaml"], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_the_real_command(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run([*PROGRAM, "sweep", "--nods"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # the pipe fails when the buffer is flushed
    closed = ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", *PROGRAM, "--help"]
    done = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "a closed pipe is no error"


def drawn(verb: str, **variables: str) -> str:
    """The text that a verb draws on a terminal."""
    terminal = Terminal([*PROGRAM, verb, "tiny"], **variables)
    try:
        return terminal.read_all()
    finally:
        terminal.close()


def test_colours_on_a_terminal_alone() -> None:
    for state in ("done", "failed", "cancelled", "planned"):
        make_run(Path("runs"), f"tiny/{state}", state)
    lines = drawn("status", NO_COLOR="").splitlines()
    colours = {line.split()[0].split("m")[-1]: line[:5] for line in lines if line.startswith("\x1b")}
    assert colours == {"done": "\x1b[32m", "failed": "\x1b[31m", "cancelled": "\x1b[33m"}
    assert COLOUR.search(drawn("watch"))
    for verb in ("status", "watch"):
        assert not COLOUR.search(drawn(verb, NO_COLOR="1"))
        done = subprocess.run([*PROGRAM, verb, "tiny"], capture_output=True, text=True, check=True)
        for text in (drawn(verb, TERM="dumb"), done.stdout + done.stderr):
            assert ("failed" in text, "\x1b" in text) == (True, False)


@pytest.mark.parametrize(
    ("terminal", "term", "forced", "no_colour", "expected"),
    [
        (False, "xterm", "", "", False),
        (False, "xterm", "0", "", True),
        (False, "dumb", "1", "", True),
        (False, "xterm", "1", "1", False),
        (True, "xterm", "", "", True),
        (True, "xterm", "", "0", False),
        (True, "dumb", "", "", False),
        (True, "unknown", "", "", False),
    ],
)
def test_where_colours_may_be(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, forced: str, no_colour: str, expected: bool
) -> None:
    for name, value in (("TERM", term), ("FORCE_COLOR", forced), ("NO_COLOR", no_colour)):
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    assert has_colour(stream) is expected
    assert can_redraw(stream) is (terminal and term == "xterm")
