"""The processes of arms on one rank: start, relay, failure and end, with processes that need no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disttrain.records.comm_bench import FabricAb
from disttrain.records.json_files import read_json
from jobs.arms import __main__ as ab
from jobs.arms import processes

ROOT = Path(__file__).parents[2]
FAKE = "tests.support.fake_arm"


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("DISTTRAIN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "0")


def result(folder: Path) -> FabricAb:
    return FabricAb.model_validate(read_json(folder / "fabric-ab.json"))


@pytest.mark.parametrize(
    ("end", "reason"),
    [("start", "no interface 'ib9'"), ("block", "rank 0 exited with code 3; its log has the reason")],
)
def test_a_gain_a_failed_start_and_a_death_are_recorded(end, reason, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(ab.secrets, "randbits", lambda bits: 2**bits - 5)
    words = ["FAKE_STEP_S=0.4", f"FAKE_END={end}", "--pairs", "15", "--block-s", "1"]
    assert ab.main(words, FAKE) == 0
    found = result(tmp_path)
    assert found.complete
    assert [each.verdict for each in found.alone] == ["gain", "failed"]
    assert found.alone[0].ratio == pytest.approx(1.25)
    assert found.alone[1].reason == reason
    assert found.together is not None
    assert found.together.verdict == "gain"
    assert found.steps_per_block == 2
    assert found.seed == 2**32 - 5
    assert "FAKE_STEP_S=0.4: 9 pairs, ratio 1.250 (1.250 to 1.250): gain" in capfd.readouterr().out


def test_limits_of_an_answer_follow_the_intended_block_and_the_time_left(monkeypatch):
    limits: dict[str, float] = {}

    def ask(self, number, message, key, within_s):
        limits[key] = within_s
        return {} if key == "ready" else 0.5

    monkeypatch.setattr(processes.ArmRanks, "ask", ask)
    monkeypatch.setattr(processes.ArmRanks, "_carry_out", lambda *_: None)
    launcher = processes.ArmRanks([], {}, {}, block_s=600.0)
    launcher.block(launcher.start({}, within_s=40.0), 10)
    assert limits == {"ready": 40.0, "seconds_per_step": 2100.0}
    launcher.start({}, within_s=4000.0)
    assert limits["ready"] == processes.START_WITHIN_S


@pytest.mark.parametrize("number", [0, 1])
def test_sigkill_of_an_arm_ends_the_job_and_is_no_failed_comparison(tmp_path, monkeypatch, number):
    program = f"import sys; from jobs.arms.__main__ import main; sys.exit(main(sys.argv[1:], {FAKE!r}))"
    monkeypatch.setenv("RANK", str(number))
    start = {"start": 1, "changes": {"FAKE_END": "killed", "FAKE_LINES": None}}
    monkeypatch.setenv("FAKE_LINES", json.dumps({"relayed": start}))
    done = subprocess.run([sys.executable, "-c", program, "FAKE_END=killed"])
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "fabric-ab.json").exists()


def test_ranks_that_do_not_end_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "END_WITHIN_S", 0.3)
    assert ab.main(["FAKE_END=stuck"], FAKE) == 0
    assert [each.verdict for each in result(tmp_path).alone] == ["equivalent"]


def test_a_variable_of_the_environment_is_removed_from_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STEP_S", "0.7")
    assert ab.main(["FAKE_STEP_S=0.7"], FAKE) == 0
    found = result(tmp_path)
    assert found.removed == ["FAKE_STEP_S"]
    assert (found.alone[0].verdict, found.alone[0].ratio) == ("loss", pytest.approx(0.5 / 0.7))


def test_a_baseline_that_fails_ends_the_job(monkeypatch, capfd):
    monkeypatch.setenv("FAKE_END", "start")
    assert ab.main(["A=1"], FAKE) == 1
    assert "the ranks of the baseline failed: no interface 'ib9'" in capfd.readouterr().err


def test_another_rank_starts_and_kills_what_rank_0_relays(monkeypatch):
    """Its first process has no commands, so that it ends by the end of its input."""
    lines = [
        {"relayed": {"start": 1, "changes": {"FAKE_END": "stuck", "FAKE_LINES": None}}},
        {"relayed": {"kill": 1}},
    ]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("FAKE_LINES", "\n".join(map(json.dumps, lines)))
    started: list[processes.ArmProcess] = []

    class Recorded(processes.ArmProcess):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self)
            if self.number == 0:
                self.send({"end": True})

    monkeypatch.setattr(processes, "ArmProcess", Recorded)
    assert ab.main(["A=1"], FAKE) == 0
    assert [each.number for each in started] == [0, 1]
    assert [each.exit_code(0) for each in started] == [0, -9]
    assert os.environ["FAKE_LINES"]
