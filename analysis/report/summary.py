"""Make a `Report` from the table of runs and its curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.comparison import repeat_plan
from analysis.report import first_screen
from analysis.report.definitions import DEFINITIONS
from analysis.report.headline import caveat_text, headline, without_curve
from analysis.report.model import (
    CaveatPart,
    ColumnPart,
    DefinitionPart,
    ExcludedRun,
    FigureSpec,
    Report,
    Run,
    SectionPart,
    TablePart,
)
from analysis.report.run_records import none_if_missing, provenance, run_costs, run_overlaps, training_quality
from analysis.report.section import Figure, RunLink, Section, Table, Value
from analysis.results.caveats import Caveat
from analysis.stats.estimates import CONFIDENCE, Estimate
from analysis.study import Study


def summarize(study: Study, sections: Sequence[Section], generated: str) -> Report:
    """The content of `report.json`; `generated` is the time of the report in UTC (ISO 8601)."""
    table, curves = study.runs, study.curves
    included = study.included
    return Report(
        title="Scaling report: " + ", ".join(study.sweeps),
        sweeps=study.sweeps,
        generated=generated,
        confidence=CONFIDENCE,
        headline=[headline(study, curve) for curve in study.curves] or [without_curve(study)],
        setting=first_screen.setting(study),
        lead=first_screen.lead(study),
        answers=first_screen.answers(study, sections),
        emulated=study.emulated,
        figures=[_figure(study, figure) for section in sections for figure in section.figures],
        sections=[_section(section) for section in sections],
        definitions=[DefinitionPart(**asdict(each)) for each in DEFINITIONS.values()],
        caveats=[_caveat(study, caveat) for caveat in study.caveats],
        curves=list(curves),
        repeat_plan=repeat_plan(curves),
        training_quality=[row for curve in curves for row in training_quality(curve, included)],
        runs=[Run(**_fields(Run, row)) for row in included.to_dict("records")],
        excluded_runs=[
            ExcludedRun(sweep=row["sweep"], run=row["run"], state=row["state"], reason=row["note"])
            for row in table[~table["included"]].to_dict("records")
        ],
        run_costs=run_costs(table),
        overlaps=run_overlaps(study.overlaps),
        provenance=provenance(included if len(included) else table),
    )


def _caveat(study: Study, caveat: Caveat) -> CaveatPart:
    return CaveatPart(
        kind=caveat.kind,
        gravity=caveat.gravity.name.lower(),
        text=caveat_text(study, caveat),
        runs=sorted("/".join(Path(path).parts[-2:]) for path in caveat.runs),
        forbids=sorted(caveat.forbids),
    )


def _figure(study: Study, figure: Figure) -> FigureSpec:
    file = f"{figure.name}.png"
    return FigureSpec(file=file, title=figure.title, alt=figure.alt, emulated=study.emulated)


def _section(section: Section) -> SectionPart:
    return SectionPart(
        id=section.id,
        title=section.title,
        conclusion=section.conclusion,
        paragraphs=list(section.paragraphs),
        tables=[_table(table) for table in section.tables],
    )


def _table(table: Table) -> TablePart:
    return TablePart(
        name=table.name,
        caption=table.caption,
        columns=[
            ColumnPart(name=each.name, heading=each.heading, unit=each.unit, formula_id=each.formula_id)
            for each in table.columns
        ],
        rows=[[_raw(value) for value in row] for row in table.rows],
        sources=[[link.name for link in links] for links in table.sources],
    )


def _raw(value: Value) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Estimate):
        return asdict(value)
    if isinstance(value, RunLink):
        return value.name
    return none_if_missing(value)


def _fields(model: type[Run], row: dict[Any, Any]) -> dict[str, Any]:
    return {name: none_if_missing(row[name]) for name in model.model_fields}
