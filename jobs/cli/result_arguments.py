"""Arguments of the verbs on results. Imports argparse alone, as `jobs.cli.arguments`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_tag_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tag",
        dest="tags",
        action="append",
        default=[],
        metavar="TAG",
        help="only runs with this tag, of their own or of their sweep; repeat for runs with several",
    )


def add_ingest(parser: argparse.ArgumentParser) -> None:
    text = "table with a row for each step and rank (docs/ingest.md)"
    parser.add_argument("file", type=Path, metavar="FILE.csv", help=text)
    parser.add_argument("--sweep", metavar="NAME", help="sweep of rows without a sweep (name of the file)")
    text = "samples of a step over all ranks, for a table without the column samples"
    parser.add_argument("--global-batch-size", type=int, metavar="N", help=text)
    text = "first steps of each run that the figures leave out (10)"
    parser.add_argument("--warmup-steps", type=int, default=10, metavar="N", help=text)
    text = "YAML file with a section targets, which `report --check` compares with (docs/statistics.md)"
    parser.add_argument("--targets", type=Path, metavar="FILE", help=text)


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help="sweeps of the report (the newest one)")
    add_tag_filter(parser)
    parser.add_argument("--base", metavar="NAME", help="base of speed-ups: a run, 16 gpus, 2 nodes or 2x8")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (RUNS/SWEEP/report; with --tag report-TAG)"
    )
    text = "leave out the first N steps after each start, where the recorded warm-up is shorter"
    parser.add_argument("--warmup", type=int, default=0, metavar="N", help=text)
    text = "leave out runs whose pre-flight had warnings (docs/preflight.md)"
    parser.add_argument("--reject-warned", action="store_true", help=text)
    text = "another sweep to compare with: which is faster, and what differs"
    parser.add_argument("--against", metavar="SWEEP", help=text)
    text = "also write each table as CSV with raw numbers (RUNS/SWEEP/report/csv); after the names of sweeps"
    parser.add_argument("--csv", nargs="?", const="", metavar="DIR", help=text)
    text = "the same as Parquet (RUNS/SWEEP/report/parquet)"
    parser.add_argument("--parquet", nargs="?", const="", metavar="DIR", help=text)
    text = "YAML file with currency, device_hour (prices) and grid_g_per_kwh: adds money and CO2"
    parser.add_argument("--prices", type=Path, metavar="FILE", help=text)
    text = "name the cheapest size whose training ends within this time: 90min, 6h, 2d"
    parser.add_argument("--deadline", metavar="TIME", help=text)
    text = "samples of that training (the planned steps of the base)"
    parser.add_argument("--samples", metavar="N", help=text)
    text = "compare with the sweep's targets; exit code 1 if one is missed, 3 if the runs cannot tell"
    parser.add_argument("--check", action="store_true", help=text)
    parser.add_argument("--sweep-end", type=int, help=argparse.SUPPRESS)  # of a report job: its submission
