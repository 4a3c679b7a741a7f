"""Write the report of sweeps: HTML page, Markdown, JSON and figures as PNG."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from analysis.draw.style import png
from analysis.read.load import KnownState, load_runs
from analysis.read.price_list import PriceList, read_price_list
from analysis.report import render
from analysis.report.model import document
from analysis.report.section import Section
from analysis.report.sections import build_all
from analysis.results import targets
from analysis.results.cost import samples_of, seconds_of
from analysis.results.targets import TargetResult
from analysis.study import Study, make_study
from disttrain.errors import ConfigError, is_disk_full, message_of
from disttrain.records.json_files import read_json_or_none, write_bytes, write_text

__all__ = ["KnownState", "Written", "write"]


class Written(NamedTuple):
    """What `write` made."""

    page: Path
    targets: list[TargetResult]


def write(
    sweeps: Sequence[Path | str],
    out: Path | str,
    *,
    base: str | None = None,
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
    against: Path | str | None = None,
    tables: Mapping[str, Path] | None = None,
    prices: Path | None = None,
    deadline: str | None = None,
    samples: str | None = None,
    warmup: int = 0,
    reject_warned: bool = False,
    check: bool = False,
) -> Written:
    """Write the page, its details, Markdown, JSON and figures into `out`.

    Args:
        sweeps: folders of sweeps.
        base: size that speed-up and efficiency refer to (`2`, `n2`), or a run of that size; the smallest by
            default.
        states, only, warmup, reject_warned: states of runs, and the runs and steps to include
            (`analysis.read.load.load_runs`).
        against: folder of another sweep to compare with.
        tables: folders for the tables of the report, by kind: `csv`, `parquet`.
        prices: price list (`analysis.read.price_list`).
        deadline: time within which a training must end, with its unit: `6h`.
        samples: samples of that training; those of the planned steps of the base by default.
        check: whether the sweeps must have targets.

    Raises:
        ConfigError: a sweep or target does not exist, no run matches `base`, `warmup` or `reject_warned`
            leaves no run, a question on costs is not allowed, or a folder cannot be written.
    """
    out, price_list = Path(out), PriceList() if prices is None else read_price_list(prices)
    deadline_s = None if deadline is None else seconds_of(deadline)
    training = None if samples is None else samples_of(samples)
    load = partial(load_runs, warmup=warmup, reject_warned=reject_warned)
    other = None if against is None else make_study(load([against]))
    study = make_study(load(sweeps, states, only), base, against=other)
    study = replace(study, prices=price_list, deadline_s=deadline_s, samples=training)
    found = targets.required(study.runs, study.curves) if check else []
    try:
        out.mkdir(parents=True, exist_ok=True)
        sections = _write_page(study, out)
    except OSError as error:
        reason = message_of(error) if is_disk_full(error) else error.strerror
        raise ConfigError(f"cannot write the report to {str(out)!r}: {reason}") from None
    for kind, folder in (tables or {}).items():
        from analysis.report.export import write_tables  # imports pandas

        try:
            write_tables(study, sections, folder, kind)
        except OSError as error:
            raise ConfigError(f"cannot write {str(folder)!r}: {error.strerror}", at=f"--{kind}") from None
    return Written(out / "report.html", found)


def _write_page(study: Study, out: Path) -> list[Section]:
    """Write all but the tables; the sections."""
    sections = build_all(study)
    report = document(study, sections, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    for earlier in (read_json_or_none(out / "report.json") or {}).get("figures", []):
        (out / Path(earlier["file"]).name).unlink(missing_ok=True)
    for figure in (figure for section in sections for figure in section.figures):
        write_bytes(out / f"{figure.name}.png", png(figure.drawn))
    content = msgspec.json.encode(report, enc_hook=float)
    write_bytes(out / "report.json", msgspec.json.format(content, indent=1))
    write_text(out / "report.md", render.markdown(report, sections))
    write_text(out / "details.html", render.page(report, sections, out, details=True))
    write_text(out / "report.html", render.page(report, sections, out))
    return sections
