"""The report on runs that `ingest` made of a table of another program."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from analysis.read.load import load_runs
from analysis.report import first_screen
from analysis.report.first_screen import caveat_text
from analysis.report.sections import bottlenecks, build_all
from analysis.study import make_study
from tests.unit.test_ingest import compute_and_transfer, ingest, rows, table


def whole_steps(path: Path, columns: str = "") -> Path:
    """A table of runs on 1 and 2 nodes with two ranks each; `columns` have 0.1 s in each row."""
    names = [name for name in columns.split(",") if name]
    lines = [
        f"n{nodes}-r{repeat},{step},{rank},{0.5 + 0.01 * (step % 3)},8{',0.1' * len(names)}"
        for nodes in (1, 2)
        for repeat in range(2)
        for step in range(1, 21)
        for rank in range(2 * nodes)
    ]
    return table(path, lines, ",".join(["run,step,rank,step_s,samples", *names]))


def answers(sweep: Path) -> dict[str, str]:
    runs = load_runs([sweep])
    study = make_study(runs)
    return first_screen.answers(study, build_all(study))


def test_whole_steps_alone_have_no_slow_rank_no_bottleneck_and_no_largest_phase(tmp_path: Path) -> None:
    assert ingest(whole_steps(tmp_path / "other.csv")) == 0
    found = answers(tmp_path / "runs" / "other")
    assert "cannot tell" in found[first_screen.SLOW]
    assert "compute_s" in found[first_screen.SLOW]
    assert first_screen.TIME not in found
    assert first_screen.HELPS not in found


@pytest.mark.parametrize("columns", ["compute_s", "comm_wait_s,comm_transfer_s"])
def test_ranks_are_compared_by_compute_or_without_waiting(tmp_path: Path, columns: str) -> None:
    assert ingest(whole_steps(tmp_path / "other.csv", columns)) == 0
    found = answers(tmp_path / "runs" / "other")
    assert "no rank or node is slow" in found[first_screen.SLOW]
    assert first_screen.TIME in found


def test_sentences_on_another_program_name_no_option_of_this_one(tmp_path: Path) -> None:
    assert ingest(compute_and_transfer(tmp_path / "other.csv", 0.3, 0.1)) == 0
    runs = load_runs([tmp_path / "runs" / "other"])
    study = make_study(runs)
    section = bottlenecks.build(study)
    assert section is not None
    (advised,) = section.tables
    texts = [section.conclusion, *(str(row[-1]) for row in advised.rows)]
    texts += [caveat_text(study, caveat) for caveat in study.caveats]
    assert advised.rows[0][-1] == "", "transfer and waiting were not told apart"
    assert not [text for text in texts if "--repeats" in text or "parallel." in text or "train." in text]


@pytest.mark.usefixtures("empty_pngs")
def test_targets_of_a_file_are_checked_against_ingested_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        f"n{nodes}-r{repeat},{repeat},{step},{rank},{0.5 + 0.001 * repeat},0.4,{0.05 * nodes},8"
        for nodes in (1, 2)
        for repeat in range(3)
        for step in range(20)
        for rank in range(nodes)
    ]
    columns = "run,repeat,step,rank,step_s,compute_s,comm_transfer_s,samples"
    path, wanted = table(tmp_path / "other.csv", lines, columns), tmp_path / "targets.yaml"
    wanted.write_text("targets: {efficiency: 0.9, communication_share: 0.15, mfu: 0.3}\n")
    assert ingest(path, "--targets", str(wanted)) == 0
    check = ["report", "other", "--check", "--runs", str(tmp_path / "runs")]
    capsys.readouterr()
    assert submit.main(check) == 1
    out = capsys.readouterr().out
    assert "met: efficiency at 2 ranks is 1.00" in out
    assert "missed: communication_share at 2 ranks is 0.200" in out
    assert "cannot tell: mfu at 2 ranks is unknown" in out
    assert ingest(path, "--sweep", "plain") == 0
    assert submit.main(["report", "plain", *check[2:]]) == 2
    assert (
        "no targets in plain: ingest the table under another --sweep, with --targets"
        in capsys.readouterr().err
    )


def test_a_file_without_targets_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, empty = table(tmp_path / "other.csv", rows("a", 1, 0.5)), tmp_path / "empty.yaml"
    empty.write_text("model: {kind: mlp}\n")
    assert ingest(path, "--targets", str(empty)) == 2
    assert "has no section `targets`" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
