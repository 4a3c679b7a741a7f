"""Code edited between submit and start, with real processes: the run is made with what was submitted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir
from jobs.core import code_copy
from jobs.schedulers.local import fifo_queue
from jobs.schedulers.local.scheduler import LocalScheduler
from jobs.status.run_state import read_state
from tests.support.jobs import ended_afterwards, settled, submit, sweep_plan, wait_until

pytestmark = pytest.mark.multiprocess

CONFIG = """\
model: {kind: mlp}
data: {kind: "mine:source"}
resources: {device: cpu}
train: {steps: 1, local_batch_size: 4}
telemetry: {warmup_steps: 0, sinks: []}
"""
MINE = """\
from pathlib import Path
from disttrain import __file__ as ours
from disttrain.data.digits import build

def source():
    Path("seen").write_text(f"{ours}\\n{__file__}\\n")
    return build()
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DISTTRAIN_QUEUE_DIR", str(tmp_path / "queue"))
    with ended_afterwards(tmp_path / "runs", LocalScheduler()):
        yield tmp_path / "runs"


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Nothing in the local queue has its turn within the block."""
    ticket = fifo_queue.take({"run": "nobody's", "submission": 0, "settled_by": ""})
    with fifo_queue.hold(ticket) as place:
        assert place is not None
        yield


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout's code, to be edited. A trainer of it says so in its log."""
    path = tmp_path / "checkout"
    for name, content in code_copy.read_code().files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def edit(checkout: Path, text: str) -> None:
    """What this code says as soon as a rank or an agent imports it."""
    for package in ("disttrain", "jobs"):
        with open(checkout / package / "__init__.py", "a") as file:
            file.write(f"\nimport sys\nprint({text!r}, file=sys.stderr)\n")


def submit_from(checkout: Path, folder: Path, *arguments: str) -> None:
    """`python submit.py ...` of that checkout, with its own folder as the working directory of the job."""
    # Without coverage: its lines are not those of our code any more.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "COVERAGE"))
    }
    command = [sys.executable, str(checkout / "submit.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_edit_before_the_start_changes_nothing(root: Path, checkout: Path) -> None:
    """With the checkout as working directory, where `python -m` would find the edited code first."""
    edit(checkout, "as submitted")
    (checkout / "my.yaml").write_text(CONFIG)
    (checkout / "mine.py").write_text(MINE)
    with held_back():
        arguments = ("my.yaml", "--cluster", "local", "--no-report", "--runs", str(root))
        submit_from(checkout, checkout, "run", *arguments)
        edit(checkout, "edited since")
        (checkout / "disttrain" / "train.py").write_text("raise RuntimeError('edited since')\n")
        (checkout / "mine.py").write_text(MINE + "# edited\n")
    ended = settled(root)
    (run,) = ended.values()
    assert run.state == "done", run.message
    log = run.run.attempt(0).node_log(0).read_text()
    assert "as submitted" in log
    assert "edited since" not in log
    code = read_json(run.run.run_json)["provenance"]["code"]
    assert (code["snapshot"], code["not_covered"], code["source"]) == ("files", ["mine"], str(checkout))
    ours, theirs = (checkout / "seen").read_text().split()
    assert Path(ours).is_relative_to(root / code["path"])
    assert Path(theirs) == checkout / "mine.py", "a module of the user's own is found as before"


@pytest.mark.parametrize("what", ["altered", "gone"])
def test_a_run_whose_code_is_not_what_it_was_is_refused(what: str, root: Path) -> None:
    with held_back():
        submit(sweep_plan("a", nodes=2), LocalScheduler(), root)
        run = RunDir(root / "demo" / "a")
        wait_until(lambda: (run.submissions / "0000.holder.json").exists())
        code = root / read_json(run.run_json)["provenance"]["code"]["path"]
        if what == "gone":
            os.rename(code, root / "elsewhere")
        else:
            (code / "jobs" / "core" / "more.py").write_text("")
    ended = settled(root)["a"]
    assert (ended.state, ended.cause) == ("failed", "refused")
    assert str(ended.message).startswith("the code copy of the run ")
    assert "\n" not in str(ended.message)
    submit(sweep_plan("b"), LocalScheduler(), root)
    code = root / read_json(root / "demo" / "b" / "run.json")["provenance"]["code"]["path"]
    assert (code / "jobs").is_dir(), "the next submission has it again"
    assert not (code / "jobs" / "core" / "more.py").exists()
    assert read_state(run).cause == "refused"
