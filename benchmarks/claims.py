"""Compare each figure that README and docs cite with the record it is from.

    python -m benchmarks.claims            # list citations that differ, and figures without a source
    python -m benchmarks.claims --write    # rewrite cited figures from the newest records

A citation is a link on the figure: `[1.3 s](benchmarks/results/status.jsonl#ten-thousand-runs/median_s)`.
Its fragment is the label of a record, then the path of a number, or of a list of numbers, in its `figures`.
A label that ends in `*` cites the figures that the benchmark's `pooled` computes from all records whose
labels begin so. The text holds as many numbers as the record. Their decimals fix the rounding; their unit is
converted from the unit that ends the name (`_us`, `_ms`, `_s`, `_min`, `_percent`, `_bytes`, `_gb`,
`_bytes_per_s`).

A figure with a unit of measurement and no citation is an error, unless `benchmarks/not_measured.yaml` lists
it for its page: limits, settings and arithmetic, or the page quotes others. `docs/log.md` (history) and
generated pages are not read.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import result_record

ROOT = result_record.ROOT
NOT_MEASURED = ROOT / "benchmarks" / "not_measured.yaml"
NOT_READ = {"docs/log.md"}
QUOTES_OTHERS = "docs/results.md"

UNITS = {
    "us": ("s", 1e-6),
    "µs": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "s": ("s", 1.0),
    "min": ("s", 60.0),
    "minutes": ("s", 60.0),
    "hours": ("s", 3600.0),
    "%": ("", 0.01),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "MiB": ("B", 2.0**20),
    "GiB": ("B", 2.0**30),
    "MB/s": ("B/s", 1e6),
    "GB/s": ("B/s", 1e9),
    "Mbit/s": ("B/s", 1e6 / 8),
    "Gbit/s": ("B/s", 1e9 / 8),
}
"""Unit in a page: dimension, and size in the dimension's base unit."""
SUFFIXES = {
    "_bytes_per_s": ("B/s", 1.0),
    "_per_s": ("", 1.0),
    "_percent": ("", 0.01),
    "_bytes": ("B", 1.0),
    "_gb": ("B", 1e9),
    "_min": ("s", 60.0),
    "_us": ("s", 1e-6),
    "_ms": ("s", 1e-3),
    "_s": ("s", 1.0),
}
"""Unit that ends the name of a figure, longest first. An interval's name goes on with `_95`."""

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_CITATION = re.compile(
    r"\[([^\[\]]+)\]\(((?:\.\./)?benchmarks/results/([\w-]+)\.jsonl)#([^)\s/]+)/([^)\s]+)\)"
)
_FIGURE = re.compile(rf"(?<![\w.,-])({_NUMBER})[ \u00a0]?({_UNIT})(?![\w/])|(?<![\w.])\d\.\d{{3,}}(?![\w.])")
_CODE = re.compile(r"`[^`\n]+`")


class BadCitation(Exception):
    """A citation whose record, path, unit or value does not agree; the message names it."""


@dataclass(frozen=True)
class Citation:
    """A figure of a page and the number that it cites."""

    page: str
    line: int
    text: str
    benchmark: str
    label: str
    path: str


def pages(root: Path = ROOT) -> list[Path]:
    """README, CONTRIBUTING and the pages of docs that people write."""
    found = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
    return [path for path in found if path.relative_to(root).as_posix() not in NOT_READ]


def citations(page: str, text: str) -> Iterator[Citation]:
    """The citations of one page in order."""
    for match in _CITATION.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        shown, _, benchmark, label, path = match.groups()
        yield Citation(page, line, shown, benchmark, label, path)


def expected(citation: Citation, results: Path = result_record.RESULTS) -> str:
    """The text of the citation with its numbers taken from the newest record of its label, or pooled.

    Raises:
        BadCitation: no such file, label or path; no pooled figures; number of numbers or unit differ.
    """
    value = _reduce(citation, results)
    values = value if isinstance(value, list) else [value]
    numbers = re.findall(_NUMBER, citation.text)
    if len(numbers) != len(values):
        raise BadCitation(f"{len(numbers)} number(s) in the text, {len(values)} in the record")
    scale = _scale(citation)
    given = iter(values)
    return re.sub(_NUMBER, lambda match: _rounded(next(given) * scale, match[0]), citation.text)


def check(citation: Citation, results: Path = result_record.RESULTS) -> str | None:
    """None if the citation agrees with its record, else one line on the difference."""
    source = f"{citation.benchmark}.jsonl#{citation.label}/{citation.path}"
    where = f"{citation.page}:{citation.line}: {citation.text!r} cites {source}"
    try:
        wanted = expected(citation, results)
    except BadCitation as error:
        return f"{where}: {error}"
    if wanted != citation.text:
        return f"{where}, which gives {wanted!r}"
    return None


def uncited(text: str, not_measured: set[str]) -> list[tuple[int, str]]:
    """Line and text of each figure with a unit that has no citation and is not in `not_measured`."""
    rest = _CODE.sub(_blank, _CITATION.sub(_blank, text))
    found = []
    for match in _FIGURE.finditer(rest):
        shown = " ".join(match[0].split())
        if shown not in not_measured and shown != "95 %":  # of an interval
            found.append((rest.count("\n", 0, match.start()) + 1, shown))
    return found


def not_measured() -> dict[str, list[str]]:
    """Figures that are no measurements, by page."""
    loaded: dict[str, list[str]] = yaml.safe_load(NOT_MEASURED.read_text())
    return loaded


def rewritten(page: str, text: str) -> str:
    """The page with all cited figures as their records give them."""

    def replace(match: re.Match[str]) -> str:
        shown, link, benchmark, label, path = match.groups()
        wanted = expected(Citation(page, 0, shown, benchmark, label, path))
        return f"[{wanted}]({link}#{label}/{path})"

    return _CITATION.sub(replace, text)


def _reduce(citation: Citation, results: Path) -> Any:
    path = results / f"{citation.benchmark}.jsonl"
    if not path.exists():
        raise BadCitation("there is no such file")
    pooled, start = citation.label.endswith("*"), citation.label.removesuffix("*")
    records = [
        record
        for record in result_record.read(path)
        if record["label"] == start or (pooled and record["label"].startswith(start))
    ]
    if not records:
        raise BadCitation("there is no record of this label")
    value = _pooled(citation.benchmark, records) if pooled else records[-1]["figures"]
    for key in citation.path.split("/"):
        if not isinstance(value, dict) or key not in value:
            raise BadCitation(f"the figures have no {key!r}")
        value = value[key]
    return value


def _pooled(benchmark: str, records: list[dict[str, Any]]) -> Any:
    module = importlib.import_module(f"benchmarks.{benchmark}")
    if not hasattr(module, "pooled"):
        raise BadCitation(f"benchmarks.{benchmark} has no function `pooled`")
    return module.pooled([record["raw"] for record in records])


def _scale(citation: Citation) -> float:
    """Factor from the unit of the record to the unit of the text."""
    name = citation.path.rpartition("/")[2].removesuffix("_95")
    stored = next((unit for end, unit in SUFFIXES.items() if name.endswith(end)), ("", 1.0))
    written = re.search(rf"\d[ \u00a0]?({_UNIT})(?![\w/])", citation.text)
    dimension, size = UNITS[written[1]] if written else ("", 1.0)
    if dimension != stored[0]:
        raise BadCitation(f"the text is in {dimension or 'no unit'}, the record in {stored[0] or 'no unit'}")
    return stored[1] / size


def _rounded(value: float, like: str) -> str:
    decimals = len(like.partition(".")[2])
    sign = "+" if like.startswith("+") else ""
    return f"{value:{sign},.{decimals}f}"


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def problems() -> list[str]:
    """One line for each wrong citation, figure without source, and stale entry of `not_measured.yaml`."""
    found, listed = [], not_measured()
    for path in pages():
        page, text = path.relative_to(ROOT).as_posix(), path.read_text()
        found += [line for each in citations(page, text) if (line := check(each))]
        allowed = set(listed.get(page, []))
        if page != QUOTES_OTHERS:
            found += [f"{page}:{line}: {shown} has no source" for line, shown in uncited(text, allowed)]
        stale = allowed - {shown for _, shown in uncited(text, set())}
        found += [f"{NOT_MEASURED.name}: {page} has no {shown!r}" for shown in sorted(stale)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="rewrite cited figures from the newest records")
    if parser.parse_args().write:
        for path in pages():
            text = path.read_text()
            new = rewritten(str(path), text)
            if new != text:
                path.write_text(new)
                print(f"rewrote {os.path.relpath(path)}")
    found = problems()
    print("\n".join(found) if found else "each figure agrees with its record")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
