"""The report on runs that `ingest` made of a table of another program."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from analysis.read.load import load_runs
from analysis.report import first_screen
from analysis.report.sections import build_all
from analysis.report.sections.step_time import bottlenecks
from analysis.study import Study, make_study
from tests.support.studies import rows_of, section_of

COLUMNS = "run,repeat,step,rank,step_s,samples"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ingest(columns: dict[str, float], *options: str) -> int:
    """Ingest runs on 1 and 2 nodes with two ranks each; each row has these values beside the step time."""
    rows = [
        [
            f"n{nodes}-r{repeat}",
            repeat,
            step,
            rank,
            0.5 + 0.001 * repeat + 0.01 * (step % 3),
            8,
            *columns.values(),
        ]
        for nodes in (1, 2)
        for repeat in range(3)
        for step in range(20)
        for rank in range(2 * nodes)
    ]
    lines: list[list[object]] = [[*COLUMNS.split(","), *columns], *rows]
    Path("other.csv").write_text("".join(f"{','.join(map(str, line))}\n" for line in lines))
    return submit.main(["ingest", "other.csv", *options])


def study() -> Study:
    return make_study(load_runs([Path("runs/other")]))


@pytest.mark.parametrize(
    ("columns", "compared"),
    [({}, False), ({"compute_s": 0.1}, True), ({"comm_wait_s": 0.1, "comm_transfer_s": 0.1}, True)],
)
def test_ranks_are_compared_by_compute_or_without_waiting(columns: dict[str, float], compared: bool) -> None:
    assert ingest(columns) == 0
    known = study()
    answers = first_screen.answers(known, build_all(known))
    assert ("cannot tell" not in answers[first_screen.SLOW]) is compared
    assert (first_screen.TIME in answers) is compared
    assert (first_screen.HELPS in answers) is bool(columns)


def test_sentences_on_another_program_name_no_option_of_this_one() -> None:
    assert ingest({"compute_s": 0.3, "comm_transfer_s": 0.1}) == 0
    known = study()
    section = section_of(bottlenecks, known)
    advice = [str(row["advice"]) for row in rows_of(section)]
    texts = [section.conclusion, *advice, *(each["text"] for each in first_screen.caveats(known))]
    assert not [text for text in texts if "--repeats" in text or "parallel." in text or "train." in text]


@pytest.mark.usefixtures("empty_pngs")
def test_targets_of_a_file_are_checked_against_ingested_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.yaml").write_text("model: {kind: mlp}\n")
    assert ingest({}, "--targets", "empty.yaml") == 2
    assert "has no section `targets`" in capsys.readouterr().err
    assert not Path("runs").exists()
    Path("targets.yaml").write_text("targets: {efficiency: 0.9, communication_share: 0.15, mfu: 0.3}\n")
    assert ingest({"compute_s": 0.4, "comm_transfer_s": 0.1}, "--targets", "targets.yaml") == 0
    capsys.readouterr()
    assert submit.main(["report", "other", "--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = dict(line.split(": ", 1)[::-1] for line in lines if ": " in line)
    found = {text.split()[0]: verdict for text, verdict in verdicts.items()}
    assert [found[name] for name in ("efficiency", "communication_share", "mfu")] == [
        "met",
        "missed",
        "cannot tell",
    ]
