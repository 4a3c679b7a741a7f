"""`status --csv` and `--parquet`: the runs as a table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from pyarrow import parquet

import submit
from disttrain.config.parsing import Draft, check
from disttrain.records.json_files import read_json, write_json
from jobs.cli.tables import EXPORTED
from jobs.status.run_folders import annotate
from tests.support.jobs import FakeScheduler
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json

pytestmark = pytest.mark.usefixtures("cluster")
BEGAN, ENDED = "2026-01-01T00:01:00.000+00:00", "2026-01-01T01:01:00.000+00:00"
DOCS = Path(__file__).resolve().parents[2] / "docs"


def config(lr: float):
    data = {"model": {"kind": "mlp"}, "data": {"kind": "digits"}}
    return check(Draft(data | {"train": {"steps": 40, "global_batch_size": 8}, "optim": {"lr": lr}}))


@pytest.fixture
def runs(cluster: FakeScheduler) -> None:
    for name, state, lr in (("n16", "done", 1), ("n2", "running", 0.5), ("n3", "planned", 0.5)):
        run = make_run(RUNS, f"s/{name}", state, config=config(lr))
        if state != "planned":
            record = {"attempt": 0, "submission": 0, "job_id": "7", "cluster": "local"}
            record |= {
                "submitted": "2026-01-01T00:00:00.000+00:00",
                "started": "2026-01-01T00:01:00.000+00:00",
            }
            record["ended"] = ENDED if state == "done" else None
            write_json(run.attempt(0).record, record)
    annotate(RUNS / "s" / "n2", add=["b", "a"], note='say "yes", twice')


def rows(text: str) -> dict[str, dict[str, str]]:
    return {row["run"]: row for row in csv.DictReader(text.splitlines())}


@pytest.mark.usefixtures("runs")
def test_csv_has_a_row_for_each_run_in_the_order_of_status(capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(capsys, "status --csv")
    found = rows(text)
    assert list(found) == ["n2", "n3", "n16"]
    assert text.startswith(",".join(EXPORTED) + ",model.kind,")
    done, running = found["n16"], found["n2"]
    shown = [done[name] for name in ("state", "cause", "samples_per_s", "loss")]
    assert shown == ["done", "finished", "812.5", "2.25"]
    assert (done["nodes"], done["ranks"], done["attempts"], done["optim.lr"]) == ("1", "1", "1", "1.0")
    assert (done["hours"], done["hours_unit"], done["queue_wait_s"]) == ("1.0", "CPU rank-hours", "60.0")
    assert (done["started"], done["ended"]) == (
        "2026-01-01T00:01:00.000+00:00",
        "2026-01-01T01:01:00.000+00:00",
    )
    assert done["submitted"].startswith("20")
    assert (running["tags"], running["note"], running["ended"]) == ("a b", 'say "yes", twice', "")
    assert (running["stale"], running["model.hidden"]) == ("false", "[256, 256]")
    assert (found["n3"]["step"], found["n3"]["started"], found["n3"]["path"]) == ("", "", "runs/s/n3")


@pytest.mark.usefixtures("runs")
def test_the_table_is_of_the_selected_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "status s --state done --csv t.csv") == "1 run: 1 done: t.csv\n"
    assert list(rows(Path("t.csv").read_text())) == ["n16"]
    assert ask_json(capsys, "status --tag a --csv t.csv")["table"] == "t.csv"
    assert list(rows(Path("t.csv").read_text())) == ["n2"]
    for words, message in (
        ("status --csv s", "--csv: 's' is a sweep; sweeps come first: status s --csv"),
        ("status --csv --json", "--csv: needs a FILE here"),
        ("status --parquet -", "--parquet: needs a FILE here"),
        ("status --csv nowhere/t.csv/x/" + "y" * 300, "--csv: cannot write"),
    ):
        assert submit.main(words.split()) == 2
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
def test_parquet_has_the_same_columns_with_types(capsys: pytest.CaptureFixture[str]) -> None:
    ask(capsys, "status --parquet t.parquet")
    table = parquet.read_table("t.parquet")
    assert table.column_names == next(csv.reader(ask(capsys, "status --csv").splitlines()))
    types = {field.name: str(field.type) for field in table.schema}
    for name, kind in EXPORTED.items():
        assert types[name] == {str: "string", int: "int64", float: "double", bool: "bool"}[kind], name
    assert (types["optim.lr"], types["model.kind"], types["train.epochs"]) == ("double", "string", "string")
    assert table.column("optim.lr").to_pylist() == [0.5, 0.5, 1.0]
    assert table.column("step").to_pylist() == [20, None, 20]


def test_the_page_describes_each_column() -> None:
    page = (DOCS / "tables.md").read_text() + (DOCS / "json.md").read_text()
    assert [name for name in EXPORTED if f"`{name}`" not in page] == []


@pytest.mark.usefixtures("runs")
def test_a_damaged_run_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    (RUNS / "s" / "n16" / "run.json").write_text("{")
    (RUNS / "s" / "n2" / "submissions" / "0000.intent.json").write_text("{")
    assert read_json(RUNS / "s" / "n3" / "run.json")
    found = rows(ask(capsys, "status --csv"))
    assert found["n2"]["state"] == "corrupt"
    assert (found["n16"]["nodes"], found["n16"]["optim.lr"]) == ("", "")


@pytest.mark.usefixtures("runs")
def test_an_axis_with_the_name_of_a_column_has_a_column_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = RUNS / "s" / "n16" / "run.json"
    write_json(file, read_json(file) | {"axes": {"steps": 7, "batch": 8}})
    found = rows(ask(capsys, "status --csv"))
    assert [found["n16"][name] for name in ("steps", "axes.steps", "batch")] == ["40", "7", "8"]
    assert found["n2"]["axes.steps"] == ""
