"""Render a report as a self-contained HTML page and as Markdown; text from runs is escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis.report.section import Section
from analysis.report.tables import MOST_ROWS, table_view

_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|ps|MiB|GiB|KiB|B|nodes?|ranks?|rows|samples/s|tokens/s)\b|%)")

_OPTION = re.compile(r"(?<!\S)\(?--[a-z][\w-]*(?: (?:[A-Z]+|\d+)\b)?")
_CLAUSE_END = re.compile(r"[.:;](?: |$)")
_UNBROKEN = 28
"""Characters of the longest label that is kept on one line."""

PAGE_BYTES = 1_000_000
"""Largest page."""

DETAILS = ("reproduction",)
"""Sections that stand in `details.html`, beside the definitions."""


def page(
    report: Mapping[str, Any], sections: Sequence[Section], out: Path | None = None, *, details: bool = False
) -> str:
    """The HTML page with inline figures, style and script, or its details; it makes no network request.

    Links to runs are relative to the folder `out`. The content-security policy allows the page's own style
    and script by their SHA-256 and nothing else. Tables of a page beyond 1 MB are cut further.
    """
    for most_rows in (MOST_ROWS, 30, 10):
        text = _page(report, sections, out, most_rows, details)
        if len(text.encode()) <= PAGE_BYTES:
            break
    return text


def _page(
    report: Mapping[str, Any], sections: Sequence[Section], out: Path | None, most_rows: int, details: bool
) -> str:
    sections = [section for section in sections if (section.id in DETAILS) == details]
    style, script = _template("report.css"), _template("report.js")
    environment = _environment(autoescape=True)
    labels = _labels(report)
    environment.filters["keep"] = lambda text: unbroken(text, labels)
    environment.filters["title_of"] = title_of
    environment.globals["table_view"] = lambda table: table_view(table, out or Path(), most_rows)
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
    return environment.get_template("report.html.j2").render(
        report=report,
        sections=sections,
        details=details,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        safe=Markup,
    )


def markdown(report: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """The Markdown text; figures are links to files beside it."""
    environment = _environment(autoescape=False)
    environment.filters["cell"] = cell
    environment.globals["table_view"] = table_view
    return environment.get_template("report.md.j2").render(report=report, sections=sections)


def keep_units(text: str) -> str:
    """Put no-break spaces between numbers and units."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def unbroken(text: str, labels: Sequence[str]) -> Markup:
    """Text as HTML without line breaks within a number and its unit, a label of a curve, or an option."""
    found = keep_units(str(text))
    for label in labels:
        found = found.replace(label, label.replace(" ", "\N{NO-BREAK SPACE}"))
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(found))))


def title_of(caption: str) -> str:
    """The caption up to its first full stop, colon or semicolon: the line that opens a folded table."""
    return _CLAUSE_END.split(caption, maxsplit=1)[0]


def _labels(report: Mapping[str, Any]) -> list[str]:
    """Settings in labels of curves (`bucket_mb 4`) that are short enough for one line."""
    parts = {part for curve in report["curves"] for part in curve["label"].split(", ")}
    return sorted((part for part in parts if " " in part and len(part) <= _UNBROKEN), key=len, reverse=True)


def cell(value: object) -> str:
    """Escape text for Markdown, also within a table."""
    flat = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", flat)


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
