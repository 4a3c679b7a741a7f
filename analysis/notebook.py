"""Show sections of the report in a notebook: sentences, figures, and tables as data frames."""

from __future__ import annotations

from IPython.display import Markdown, display

from analysis.report.export import frame
from analysis.report.section import Section


def show(*sections: Section | None) -> None:
    """Display sections; None, for which a sweep has no data, is left out."""
    for section in filter(None, sections):
        display(Markdown("\n\n".join([f"## {section.title}", section.conclusion, *section.paragraphs])))
        for figure in section.figures:
            display(Markdown(f"*{figure.title}*"), figure.drawn)
        for table in section.tables:
            display(Markdown(table.caption), frame(table))
