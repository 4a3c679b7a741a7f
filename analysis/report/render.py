"""Render a report as a self-contained HTML page and as Markdown; text from runs is escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from analysis.report import views
from analysis.report.model import Report
from analysis.report.section import Section, Table

_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|MiB|GiB|KiB|B|nodes?|ranks?|samples/s|tokens/s)\b|%)")

PAGE_BYTES = 1_000_000
"""Largest page."""
_NARROW = 5
"""Columns of a table that fits beside a figure."""


def page(report: Report, sections: Sequence[Section], out: Path | None = None) -> str:
    """The HTML page with inline figures, style and script; it makes no network request.

    Links to runs are relative to the folder `out`. The content-security policy allows the page's own style
    and script by their SHA-256 and nothing else. Tables of a page beyond 1 MB are cut further.
    """
    for most_rows in (views.MOST_ROWS, 30, 10):
        text = _page(report, sections, out, most_rows)
        if len(text.encode()) <= PAGE_BYTES:
            break
    return text


def _page(report: Report, sections: Sequence[Section], out: Path | None, most_rows: int) -> str:
    style, script = _template("report.css"), _template("report.js")
    environment = _environment(autoescape=True)
    environment.filters["keep"] = keep_units
    environment.globals["table_view"] = lambda table: views.table_view(table, out, most_rows)
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    return environment.get_template("report.html.j2").render(
        report=report,
        sections=sections,
        first=_first_figure(sections),
        said=_said,
        captioned_beside=_captioned_beside,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        safe=Markup,
    )


def markdown(report: Report, sections: Sequence[Section]) -> str:
    """The Markdown text; figures are links to files beside it."""
    environment = _environment(autoescape=False)
    environment.filters["cell"] = cell
    environment.globals |= {"table_view": views.table_view, "one_line": views.one_line, "aligned": aligned}
    return environment.get_template("report.md.j2").render(report=report, sections=sections)


def aligned(table: Table) -> str:
    """The line of a Markdown table that aligns its columns."""
    return "|".join(["", *("--:" if head.numeric else "---" for head in views.table_view(table).heads), ""])


def keep_units(text: str) -> str:
    """Put no-break spaces between numbers and units."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def cell(value: object) -> str:
    """Escape text for Markdown, also within a table."""
    flat = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", flat)


def _first_figure(sections: Sequence[Section]) -> str:
    """Name of the figure beside the answers."""
    names = [figure.name for section in sections for figure in section.figures]
    return "scaling" if "scaling" in names else ""


def _said(section: Section, first: str) -> bool:
    """Whether the caption of a figure in the section begins with the section's conclusion."""
    shown = [figure for figure in section.figures if figure.name != first]
    return any(figure.conclusion.startswith(section.conclusion) for figure in shown)


def _captioned_beside(section: Section, first: str) -> bool:
    """Whether the section has one figure, and no table that is narrow enough to stand beside the figure."""
    shown = [figure for figure in section.figures if figure.name != first and not figure.wide]
    widths = [len(views.table_view(table).heads) for table in section.tables]
    return len(shown) == 1 and min(widths, default=_NARROW + 1) > _NARROW


@cache
def _template(name: str) -> str:
    return files("analysis.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _environment(autoescape: bool) -> Environment:
    return Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
