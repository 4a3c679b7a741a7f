"""`status --csv` and `--parquet`: the runs as a table."""

import csv
from pathlib import Path

import pytest
from pyarrow import parquet

import submit
from disttrain.config.parsing import Draft, check
from disttrain.records.json_files import read_json, write_json
from jobs.cli.tables import EXPORTED
from jobs.status.run_folders import annotate
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask, ask_json

SUBMITTED, STARTED, ENDED = (f"2026-01-01T0{at}:00.000+00:00" for at in ("0:00", "0:01", "1:01"))
DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTE = 'say "yes", twice'


@pytest.fixture(autouse=True)
def _runs(cluster):
    for name, state, lr in (("n16", "done", 1), ("n2", "running", 0.5), ("n3", "planned", 0.5)):
        sections = {"model": {"kind": "mlp"}, "data": {"kind": "digits"}, "optim": {"lr": lr}}
        config = check(Draft(sections | {"train": {"steps": 40, "global_batch_size": 8}}))
        run = make_run(RUNS, f"s/{name}", state, config=config)
        if state != "planned":
            record = {"attempt": 0, "submission": 0, "job_id": "7", "cluster": "local", "started": STARTED}
            times = {"submitted": SUBMITTED, "ended": ENDED if state == "done" else None}
            write_json(run.attempt(0).record, record | times)
    annotate(RUNS / "s" / "n2", add=["b", "a"], note=NOTE)


def rows(text):
    return {row["run"]: row for row in csv.DictReader(text.splitlines())}


def test_csv_has_a_row_for_each_run_in_the_order_of_status(capsys):
    text = ask(capsys, "status --csv")
    found = rows(text)
    assert list(found) == ["n2", "n3", "n16"]
    assert text.startswith(",".join(EXPORTED) + ",model.kind,")
    expected = {
        "n16": {
            "state": "done", "cause": "finished", "samples_per_s": "812.5", "loss": "2.25", "nodes": "1",
            "ranks": "1", "attempts": "1", "optim.lr": "1.0", "hours": "1.0", "hours_unit": "CPU rank-hours",
            "queue_wait_s": "60.0", "started": STARTED, "ended": ENDED,
        },
        "n2": {"tags": "a b", "note": NOTE, "ended": "", "stale": "false", "model.hidden": "[256, 256]"},
        "n3": {"step": "", "started": "", "path": "runs/s/n3"},
    }  # fmt: skip
    for name, fields in expected.items():
        assert {field: found[name][field] for field in fields} == fields


def test_the_table_is_of_the_selected_runs(capsys):
    assert ask(capsys, "status s --state done --csv t.csv") == "1 run: 1 done: t.csv\n"
    assert list(rows(Path("t.csv").read_text())) == ["n16"]
    assert ask_json(capsys, "status --tag a --csv t.csv")["table"] == "t.csv"
    assert list(rows(Path("t.csv").read_text())) == ["n2"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("status --csv s", "sweeps come first: status s --csv"),
        ("status --csv --json", "--csv: needs a FILE"),
        ("status --parquet -", "--parquet: needs a FILE"),
        ("status --csv nowhere/t.csv/x/" + "y" * 300, "--csv: cannot write"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(capsys, command, message):
    assert submit.main(command.split()) == 2
    assert message in capsys.readouterr().err


def test_parquet_has_the_same_columns_with_types(capsys):
    ask(capsys, "status --parquet t.parquet")
    table = parquet.read_table("t.parquet")
    assert table.column_names == next(csv.reader(ask(capsys, "status --csv").splitlines()))
    names = {str: "string", int: "int64", float: "double", bool: "bool"}
    expected = {name: names[kind] for name, kind in EXPORTED.items()}
    expected |= {"optim.lr": "double", "model.kind": "string", "train.epochs": "string"}
    assert {field.name: str(field.type) for field in table.schema if field.name in expected} == expected
    assert table.column("optim.lr").to_pylist() == [0.5, 0.5, 1.0]
    assert table.column("step").to_pylist() == [20, None, 20]


def test_the_pages_describe_each_column():
    pages = (DOCS / "sweeps.md").read_text() + (DOCS / "reference" / "json.md").read_text()
    assert [name for name in EXPORTED if f"`{name}`" not in pages] == []


def test_a_damaged_run_has_a_row(capsys):
    (RUNS / "s" / "n16" / "run.json").write_text("{")
    (RUNS / "s" / "n2" / "submissions" / "0000.intent.json").write_text("{")
    found = rows(ask(capsys, "status --csv"))
    assert found["n2"]["state"] == "corrupt"
    assert (found["n16"]["nodes"], found["n16"]["optim.lr"]) == ("", "")


def test_an_axis_with_the_name_of_a_column_has_a_column_of_its_own(capsys):
    file = RUNS / "s" / "n16" / "run.json"
    write_json(file, read_json(file) | {"axes": {"steps": 7, "batch": 8}})
    found = rows(ask(capsys, "status --csv"))
    assert [found["n16"][name] for name in ("steps", "axes.steps", "batch")] == ["40", "7", "8"]
    assert found["n2"]["axes.steps"] == ""
