"""`jobs/train.sbatch`: its text, its arguments, and the code that it finds."""

from pathlib import Path

import pytest

from disttrain.config.parsing import check, load
from jobs.schedulers.slurm.train_script import script_of_checkout
from tests.support.scripts import DEAF, config, run

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ["-m", "jobs.submission.sbatch_entry"]


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "my code's"
    (folder / "jobs" / "submission").mkdir(parents=True)
    (folder / "jobs" / "submission" / "sbatch_entry.py").touch()
    return folder


def started(folder, shown, submitted_from, *arguments, **environment):
    """Trace of the script in a job of three nodes; `shown` is the command that Slurm shows."""
    job = {"SLURM_JOB_NUM_NODES": "3", "SLURM_CPUS_PER_TASK": "20", "SLURM_SUBMIT_DIR": str(submitted_from)}
    return run(
        script_of_checkout(config()),
        folder / "it",
        *arguments,
        SHOWN_COMMAND=str(shown),
        **job,
        **environment,
    )


def test_the_script_by_hand_is_the_one_in_the_repository():
    resolved = check(load(ROOT / "sweeps" / "default.yaml")).as_dict()
    assert script_of_checkout(resolved) == (ROOT / "jobs" / "train.sbatch").read_text()


@pytest.mark.parametrize("argument", ["--train.steps=3", "a b", "'", '"', "$(touch canary)", "é", "\\", "*"])
def test_the_script_finds_its_code_and_hands_its_arguments_on(argument, code, tmp_path):
    arguments = ["--config", argument]
    trace = started(tmp_path, f"{code}/jobs/train.sbatch {' '.join(arguments)}", tmp_path, *arguments)
    assert trace.started[:4] == ["--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=20"]
    assert trace.started[6:] == [*DEAF, "python3", *ENTRY, *arguments]
    assert trace.environment["PYTHONPATH"] == str(code)


def test_the_python_of_the_environment_or_of_the_code_is_used(code, tmp_path):
    python = code / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    assert started(tmp_path, "(null)", code).started[6:] == [*DEAF, str(python), *ENTRY]
    shown = f"{code}/jobs/train.sbatch"
    trace = started(tmp_path, shown, code, DISTTRAIN_PYTHON="/x/py")
    assert trace.started[6:] == [*DEAF, "/x/py", *ENTRY]


def test_a_script_without_code_around_it_does_not_start(tmp_path):
    with pytest.raises(AssertionError, match=r"no code of disttrain around /x/train\.sbatch"):
        started(tmp_path, "/x/train.sbatch", "/")
