"""Render a report as a self-contained HTML page and as Markdown; text from runs is escaped."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from analysis.read.run import Run
from analysis.report.first_screen import LIMITS
from analysis.report.section import Section
from analysis.report.sentences import environment
from analysis.report.tables import table_view

_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|ps|MiB|GiB|KiB|B|nodes?|ranks?|rows|samples/s|tokens/s)\b|%)")

_OPTION = re.compile(r"(?<!\S)\(?--[a-z][\w-]*(?: (?:[A-Z]+|\d+)\b)?")
DETAILS = ("reproduction",)
"""Sections that stand in `details.html`, beside the definitions."""
_SHARED: dict[str, Any] = {"table_view": table_view, "caveats_title": LIMITS}


def page(
    report: Mapping[str, Any], sections: Sequence[Section], out: Path | None = None, *, details: bool = False
) -> str:
    """The HTML page with inline figures, style and script, or its details; it makes no network request.

    Links to runs are relative to the folder `out`. The content-security policy allows the page's own style
    and script by their SHA-256 and nothing else.
    """
    shown = [section for section in sections if (section.id in DETAILS) == details]
    href = partial(run_href, out=out or Path())
    made = environment(autoescape=True, keep=unbroken, run_href=href, hash=_hash)
    return made.get_template("report.html.j2").render(
        report=report, sections=shown, details=details, **_SHARED
    )


def markdown(report: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """The Markdown text; figures are links to files beside it."""
    template = environment(autoescape=False, cell=cell).get_template("report.md.j2")
    return template.render(report=report, sections=sections, **_SHARED)


def run_href(run: Run, out: Path) -> str:
    """Address of a run's `metrics.json`, or of its `run.json` without one, relative to `out`."""
    files = [Path(run.path).absolute() / name for name in ("metrics.json", "run.json")]
    return os.path.relpath(files[0] if files[0].exists() else files[1], out.absolute())


def unbroken(text: str) -> Markup:
    """Text as HTML without line breaks within a number and its unit, or an option."""
    found = escape(_UNIT.sub("\N{NO-BREAK SPACE}", str(text)))
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(found)))


def cell(value: object) -> str:
    """Escape text for Markdown, also within a table."""
    flat = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", flat)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
