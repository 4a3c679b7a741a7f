"""`jobs/train.sbatch`: its text, its arguments, and the code that it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config.parsing import check, load
from docs.generate.slurm import by_hand
from tests.support.scripts import DEAF, config, run


def test_the_script_by_hand_is_the_one_in_the_repository() -> None:
    folder = Path(__file__).resolve().parents[2]
    resolved = check(load(folder / "sweeps" / "default.yaml")).as_dict()
    assert by_hand(resolved) == (folder / "jobs" / "train.sbatch").read_text()


@pytest.mark.parametrize("argument", ["--train.steps=3", "a b", "'", '"', "$(touch canary)", "é", "\\", "*"])
def test_the_script_by_hand_finds_its_code_and_hands_its_arguments_on(argument: str, tmp_path: Path) -> None:
    code = tmp_path / "my code's"
    (code / "jobs" / "submission").mkdir(parents=True)
    (code / "jobs" / "submission" / "sbatch_entry.py").touch()
    script = f"{code}/jobs/train.sbatch"
    arguments = ["--config", argument]
    trace = run(
        by_hand(config()), tmp_path / "it", *arguments, SHOWN_COMMAND=f"{script} {' '.join(arguments)}",
        SLURM_JOB_NUM_NODES="3", SLURM_CPUS_PER_TASK="20", SLURM_SUBMIT_DIR=str(tmp_path),
    )  # fmt: skip
    assert trace.started[:4] == ["--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=20"]
    assert trace.started[6:] == [
        *DEAF,
        "python3",
        "-m",
        "jobs.submission.sbatch_entry",
        *arguments,
    ]
    assert trace.environment["PYTHONPATH"] == str(code)


def test_the_script_by_hand_without_arguments_or_a_place_of_its_own(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "jobs" / "submission").mkdir(parents=True)
    (code / "jobs" / "submission" / "sbatch_entry.py").touch()
    python = code / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch(mode=0o755)
    known = {"SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1", "SLURM_SUBMIT_DIR": str(code)}
    trace = run(by_hand(config()), tmp_path / "a", SHOWN_COMMAND="(null)", **known)
    assert trace.started[6:] == [*DEAF, str(python), "-m", "jobs.submission.sbatch_entry"]
    shown = f"{code}/jobs/train.sbatch"
    trace = run(by_hand(config()), tmp_path / "b", SHOWN_COMMAND=shown, DISTTRAIN_PYTHON="/x/py", **known)
    assert trace.started[6:] == [*DEAF, "/x/py", "-m", "jobs.submission.sbatch_entry"]
    with pytest.raises(AssertionError, match=r"cannot start: no code of disttrain around /x/train.sbatch"):
        run(
            by_hand(config()),
            tmp_path / "c",
            SHOWN_COMMAND="/x/train.sbatch",
            **known | {"SLURM_SUBMIT_DIR": "/"},
        )
