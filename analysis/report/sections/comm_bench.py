"""Communication benchmarks (`bench comm`): collectives over sizes, DDP steps by form of communication."""

from __future__ import annotations

from pydantic import ValidationError

from analysis import comm_bench
from analysis.report.section import Column, Section, Table
from analysis.study import Study
from disttrain.records.comm_bench import CommBench
from disttrain.records.json_files import CorruptFile

ORDER = 6


def build(study: Study) -> Section | None:
    """None without the result of a benchmark."""
    results: dict[str, CommBench] = {}
    for run in (run.folder for run in study.runs):
        if run.comm_bench.exists():
            try:
                results[run.name] = comm_bench.read(run)
            except (CorruptFile, ValidationError):
                continue
    if not results:
        return None
    tables = [
        Table(
            f"comm_bench_{number}",
            f"{part.title}. {'. '.join(part.notes)}.",
            [Column(name.replace(" ", "_"), name) for name in part.head],
            [list(row) for row in part.rows],
        )
        for number, part in enumerate(comm_bench.tables(results))
    ]
    return Section("comm-bench", "Communication benchmark", "", tables=tables)
