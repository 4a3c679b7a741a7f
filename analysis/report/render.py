"""Render a `Report` as a self-contained HTML page and as Markdown; text from runs is escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis import units
from analysis.report import narrative, overlap_text
from analysis.report.model import Report

_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|MiB|GiB|KiB|B|nodes?|ranks?|samples/s|tokens/s)\b|%)")


def page(report: Report, images: Mapping[str, bytes]) -> str:
    """The HTML page with inlined figures; it makes no network request."""
    inlined = {
        name: "data:image/png;base64," + base64.b64encode(data).decode() for name, data in images.items()
    }
    environment = _environment(autoescape=True)
    environment.filters["keep"] = keep_units
    return environment.get_template("report.html.j2").render(report=report, images=inlined)


def markdown(report: Report) -> str:
    """The Markdown text; figures are links to files beside it."""
    environment = _environment(autoescape=False)
    environment.filters["cell"] = cell
    return environment.get_template("report.md.j2").render(report=report)


def quality_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the training quality; measures without values get no column."""
    measures: dict[str, tuple[str, Callable[[float], str]]] = {
        "train_loss": ("training loss", "{:.4f}".format),
        "valid_loss": ("validation loss", "{:.4f}".format),
        "bits_per_byte": ("bits per byte", "{:.3f}".format),
        "unigram_entropy_bits": ("unigram entropy", "{:.3f}".format),
        "accuracy": ("accuracy", units.percent),
    }
    present = [
        name for name in measures if any(getattr(row, name) is not None for row in report.training_quality)
    ]
    several = len(report.curves) > 1
    rows = []
    for row in report.training_quality:
        size = units.plural(row.size, row.unit)
        values = [(measures[name][1], getattr(row, name)) for name in present]
        texts = ["\N{EN DASH}" if value is None else show(value) for show, value in values]
        rows.append([f"{row.curve}, {size}" if several else size, units.count(row.steps), *texts])
    return ["runs", "steps", *(measures[name][0] for name in present)], rows


def keep_units(text: str) -> str:
    """Put no-break spaces between numbers and units."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def cell(value: object) -> str:
    """Escape text for Markdown, also within a table."""
    flat = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", flat)


def _environment(autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("analysis.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "units": units,
        "narrative": narrative,
        "overlap_text": overlap_text,
        "quality_table": quality_table,
    }
    return environment
