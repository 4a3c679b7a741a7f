"""Show sections of the report in a notebook: sentences, figures, and tables as data frames."""

from __future__ import annotations

from IPython.display import Markdown, display

from analysis.report.export import arrow_table
from analysis.report.section import Section


def show(section: Section | None) -> None:
    """Display a section; None, for which a sweep has no data, displays that there is nothing to show."""
    if section is None:
        display(Markdown("*Nothing to show for this sweep.*"))
        return
    display(
        Markdown(
            "\n\n".join([f"**{section.conclusion}**" if section.conclusion else "", *section.paragraphs])
        )
    )
    for figure in section.figures:
        display(figure.drawn, Markdown(f"*{figure.title}*"))
    for table in section.tables:
        display(Markdown(table.caption), arrow_table(table).to_pandas())
