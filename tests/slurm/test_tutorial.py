"""The page docs/tutorial.md as it stands, block by block, by an ordinary user in an empty folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json, read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.status.run_state import read_runs
from tests.support.jobs import wait_until
from tests.support.minicluster import MiniCluster
from tests.support.ordinary_user import OrdinaryUser, ordinary_user

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()


@pytest.fixture
def user(python_for_all: Path, slurm: MiniCluster) -> Iterator[OrdinaryUser]:
    with ordinary_user(python_for_all, slurm) as user:
        command = f'exec {shlex.quote(str(user.python))} "$HOME/disttrain/submit.py" "$@"'
        user.ask("mkdir", "bin", "empty")
        user.ask("sh", "-c", f"printf '#!/bin/sh\\n%s' {shlex.quote(command)} > bin/disttrain")
        user.ask("chmod", "+x", "bin/disttrain")
        yield user
        slurm.empty()  # who has processes is no user that can be removed


def trains(run: RunDir, attempt: int) -> bool:
    progress = read_json_or_none(run.progress) or {}
    return progress.get("attempt") == attempt and progress["step"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)  # six runs and two starts of another one, each with an import of torch
def test_the_commands_of_the_tutorial_lead_to_a_report_and_through_a_stop(user: OrdinaryUser) -> None:
    (program,) = re.findall(r"^```python\n(# train\.py\n.*?)^```", PAGE, re.S | re.M)
    user.ask("sh", "-c", f"printf %s {shlex.quote(program)} > empty/train.py")
    runs = user.home / "empty" / "runs"
    night, starts, exports, printed = RunDir(runs / "night" / "n2"), 0, "", ""
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.S | re.M):
        if "cancel" in block:
            wait_until(lambda attempt=starts: trains(night, attempt))
            starts += 1
        printed += user.ask("sh", "-c", f'set -eu; PATH="$HOME/bin:$PATH"; cd empty\n{exports}{block}')
        exports += "".join(re.findall(r"^export .*\n", block, re.M))

    names = [f"train/n{nodes}-r{repeat}" for nodes in (1, 2) for repeat in range(3)]
    states = {state.label: state.displayed_state for state in read_runs(runs)}
    assert states == dict.fromkeys(names, "done") | {"night/n2": "cancelled"}
    causes = [read_json(attempt.record)["cause"] for attempt in night.attempts()]
    assert causes == ["stopped", "cancelled"]
    (step,) = re.findall(r"^continues after step (\d+)$", printed, re.M)
    assert int(step) > 0

    report = runs / "train" / "report"
    (curve,) = read_json(report / "report.json")["curves"]
    assert [point["size"] for point in curve["points"]] == [1, 2]
    page = (report / "report.html").read_text()
    questions = re.findall(r"^\d\. \*\*(.*\?)\*\*", PAGE, re.M)
    assert len(questions) == 5
    assert sorted(questions, key=page.index) == questions
