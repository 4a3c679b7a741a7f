"""Mistakes on the command line: one line on stderr, exit code 2, nothing written."""

# ruff: noqa: E501 (tables of messages)
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import submit
from jobs.cli.arguments import VERBS, build_parser
from tests.support.states import make_run

ROOT = Path(submit.__file__).parent
TINY = """\
model: {kind: mlp}
data: {kind: digits}
train:
  steps: 10
  local_batch_size: 8
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that this command line is refused with."""
    before = sorted(Path().rglob("*"))
    code = submit.main(list(argv))
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert sorted(Path().rglob("*")) == before, "something was written"
    return err.removeprefix("error: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("1 12 --gpus-per-node 8", "12 fills no whole nodes; allowed are 1 to 8 and multiples of 8, the GPUs of a node"),
        ("0 --gpus-per-node 8", "0 fills no whole nodes; allowed are 1 to 8 and multiples of 8, the GPUs of a node"),
        ("1 2", "the GPUs of a node are not known; give --gpus-per-node N, or gpus_per_node in the site profile or the sweep file"),
        ("1 2 --nodes 2 --gpus-per-node 8", "goes with one --gpus-per-node N and with no other nodes or GPUs"),
        ("1 2 --gpus-per-node 4 8", "goes with one --gpus-per-node N and with no other nodes or GPUs"),
        ("1 --gpus-per-node 4 --set resources.nodes=2", "goes with one --gpus-per-node N and with no other nodes or GPUs"),
    ],
)  # fmt: skip
def test_gpus_that_are_no_whole_nodes(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["sweep", "tiny.yaml", "--cluster", "local", "--gpus", *options.split()]
    assert refused(capsys, *argv) == f"--gpus: {message}\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("statsu", "VERB: 'statsu' is not one of sweep, run, status, "),
        ("--nods", "unknown argument '--nods'; only --help and --version may stand before the verb"),
        ("sweep --nods 1", "unknown argument '--nods'; did you mean '--nodes'?"),
        (
            "sweep --cluster slrum",
            "--cluster: 'slrum' is not one of auto, local, slurm; did you mean 'slurm'?",
        ),
        ("sweep --nodes", "argument --nodes: expected at least one argument"),
        ("sweep tiny.yaml --nodes 0", "--nodes: resources.nodes=0: input should be greater than 0"),
        ("sweep tiny.yaml --nodes two", "--nodes: resources.nodes='two': a whole number is needed"),
        ("sweep tiny.yaml --nodes 1 1", "--nodes: resources.nodes: the axis has the value 1 twice"),
        ("sweep tiny.yaml --repeats 0", "--repeats: sweep.repeats=0: input should be greater than 0"),
        *(
            (
                f"sweep tiny.yaml --repeats {text}",
                f"--repeats: sweep.repeats={text!r}: allowed: a number, auto:P% or auto:P%:N, with P above 0",
            )
            for text in ("auto", "auto:0%", "auto:2", "auto:abc%", "auto:100%", "auto:2%:2")
        ),
        ("sweep tiny.yaml --repeats auto:2% --no-report", "--no-report: --repeats auto needs the report job"),
        (
            "sweep tiny.yaml --scaling strog",
            "--scaling: sweep.scaling='strog': allowed: 'weak' or 'strong'",
        ),
        (
            "sweep tiny.yaml --set train.stpes=5",
            "--set: unknown key 'train.stpes'; did you mean 'train.steps'?",
        ),
        (
            "sweep tiny.yaml --dry-run --cluster local --set telemetry.sinks=[tensorbord]",
            "--set: telemetry.sinks='tensorbord' is unknown; allowed: mlflow, tensorboard or package",
        ),
        (
            "run tiny.yaml --dry-run --cluster local --set model.kind=disttrain.models.gpt:biuld",
            "--set: model.kind='disttrain.models.gpt:biuld' cannot be imported: ",
        ),
        (
            "run tiny.yaml --dry-run --cluster local --set model.n_layr=2",
            "--set: model.n_layr is not an option of model.kind=mlp; allowed: ",
        ),
        ("sweep --set tiny.yaml", "--set: 'tiny.yaml' is not of the form key=value (a file goes before"),
        ("sweep tiny.yaml --name ../x", "--name: '../x' cannot name a sweep"),
        ("sweep tiny.yaml --grid a", "--grid: no grid 'a' in the sweep file; grids: none"),
        ("sweep tini.yaml", "no file 'tini.yaml'; there are: "),
        ("sweep sweeps/defualt.yaml", "no file 'sweeps/defualt.yaml'; did you mean '"),
        ("sweep . --name x", "cannot read config '.': Is a directory"),
        ("run tiny.yaml --set optim.lr=1,2", "--set: optim.lr: `run` takes one value; `sweep` takes several"),
        (
            "sweep tiny.yaml --nodes 1 3 --scaling strong --set train.local_batch_size=null train.global_batch_size=8",
            "--set: train.global_batch_size=8 is not divisible by 3 ranks (strong scaling); nearest that are: 6 and 9",
        ),
        ("sweep tiny.yaml --runs tiny.yaml --cluster local", "cannot write to 'tiny.yaml/tiny': "),
        ("sweep tiny.yaml --runs /proc/runs --cluster local", "cannot write to '/proc/runs/tiny': "),
        ("show x", "no run 'x' in runs"),
        ("cancel x", "no run 'x' in runs"),
        ("status x", "no sweep 'x' in runs; no sweeps exist"),
        ("report", "no runs in runs yet"),
        ("clean", "nothing to move is named"),
        ("clean --purge x", "--purge deletes the whole trash: it takes no RUN (given: 'x')"),
        ("clean --restore --stale", "--restore goes with none of --failed, --stale and --tag"),
        ("clean --restore --purge", "argument --purge: not allowed with argument --restore"),
        ("clean --restore x", "no run 'x' in runs/.trash"),
        ("cluster", "the following arguments are required: ACTION"),
        ("--runs x status", "unknown argument '--runs'; only --help and --version may stand before the verb"),
        ("report --sweep-en 1", "unknown argument '--sweep-en' (see"),
        ("cluster up --nods 1", "unknown argument '--nods'; did you mean '--nodes'?"),
        ("cluster up --link 5foo", "--link='5foo' is not a rate of 1mbit or more (1gbit, 400mbit), nor none"),
        ("cluster shell --name nowhere", "no cluster 'nowhere'"),
        ("logs x --rank 0 --node 0", "argument --node: not allowed with argument --rank"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], argv: str, message: str) -> None:
    assert refused(capsys, *argv.split(" ")).startswith(message)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("optim:\n  lrr: 1\n", "unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
        ("parallel:\n  strategy: disttrain.parallel.ddp:x\n", "parallel.strategy='disttrain.parallel.ddp:x' cannot"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_names_its_line(
    section: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tiny.yaml").write_text(TINY + section)
    assert refused(capsys, "sweep", "tiny.yaml").startswith(f"tiny.yaml:7: {message}")


def test_similar_names_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    for sweep in ("one", "two"):
        make_run(Path("runs"), f"{sweep}/n1")
    make_run(Path("runs"), "two/n2-b4")
    assert "'n2-b5' in runs; did you mean 'n2-b4'?" in refused(capsys, "show", "n2-b5")
    assert "several sweeps have a run 'n1': one/n1, two/" in refused(capsys, "show", "n1")
    assert "no sweep 'tow' in runs; did you mean 'two'?" in refused(capsys, "show", "tow/n2-b4")
    assert "'two' is a sweep; name one run of it" in refused(capsys, "show", "two")
    assert submit.main(["show", "one"]) == 0, "its only run"
    assert capsys.readouterr().out.startswith("one/n1\n")
    assert "no run 'x' in runs/one; existing runs: one/n1" in refused(capsys, "show", "one/x")
    assert "--out is needed for a report on several sweeps" in refused(capsys, "report", "one", "two")


def test_another_base_under_the_same_name(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs"), "tiny/n1")
    Path("runs/tiny/sweep.json").write_text('{"base": {"optim": {"lr": 0.5}, "sweep": {"base_ranks": 1}}}')
    assert "sweep 'tiny' in runs has another base config: " in refused(
        capsys, "sweep", "tiny.yaml", "--nodes", "1"
    )
    Path("runs/tiny/sweep.json").write_text("{")
    assert "runs/tiny/sweep.json is not valid JSON" in refused(capsys, "sweep", "tiny.yaml", "--nodes", "1")
    Path("runs/tiny/sweep.json").write_text('{"base": 5}')
    assert "runs/tiny/sweep.json has a missing or invalid 'base'" in refused(
        capsys, "sweep", "tiny.yaml", "--nodes", "1"
    )


@pytest.mark.parametrize(
    "argv", [["sweep", "--nods"], ["sweep", "nowhere.yaml"], ["sweep", "tiny.yaml", "--nodes", "0"]]
)
def test_the_real_command_exits_with_2_and_one_line(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "submit.py", *argv], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")


TAKE_A_CLUSTER = ("sweep", "run", "resume", "bench")


@pytest.mark.parametrize("verb", ["", *(verb for verb in VERBS if verb not in ("doctor", "fabric"))])
def test_help_imports_the_file_of_its_verb_alone(verb: str) -> None:
    """So it appears within 0.1 s."""
    code = (
        f"import sys, submit\n"
        f"try: submit.main({[*verb.split(), '--help']})\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('jobs', 'disttrain')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = {"arguments", *([verb] if verb else []), *(["options"] if verb else [])}
    modules -= {"options"} if verb == "completion" else set()
    assert done.stdout.splitlines()[-1] == str(
        [
            *("disttrain", "jobs", "jobs.cli", *sorted(f"jobs.cli.{name}" for name in modules)),
            *(["jobs.schedulers"] if verb in TAKE_A_CLUSTER else []),  # the names of its folders
        ]
    )


def test_without_a_verb_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main([]) == 2
    out, err = capsys.readouterr()
    assert out == build_parser().format_help()
    assert err == ""


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        submit.main(["--version"])
    assert stopped.value.code == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"{project['name']} {project['version']}\n"


@pytest.mark.parametrize(("module", "code"), [("argparse", -signal.SIGINT), ("yaml", 130)])
def test_an_interrupt_during_imports_leaves_no_traceback(tmp_path: Path, module: str, code: int) -> None:
    """Ctrl-C while submit.py imports a module: its own first ones, and those of a verb."""
    handled = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in a background job
    interrupted = f"import signal\n{handled}\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / f"{module}.py").write_text(interrupted)
    command = [sys.executable, ROOT / "submit.py", "sweep", "tiny.yaml"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_closed_pipe_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # the pipe fails when the buffer is flushed
    command = ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", sys.executable, ROOT / "submit.py"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
