"""Write the report of sweeps: HTML page, Markdown, JSON and figures as PNG."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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
from analysis.study import make_study
from disttrain.errors import ConfigError, is_disk_full, message_of
from disttrain.records.json_files import CorruptFile, read_json, write_bytes, write_json, write_text

__all__ = ["CostQuestion", "KnownState", "Written", "write"]


class CostQuestion(NamedTuple):
    """What the user gave on costs."""

    prices: Path | None = None
    """Price list (`analysis.read.price_list`)."""
    deadline: str | None = None
    """Time within which a training must end, with its unit: `6h`."""
    samples: str | None = None
    """Samples of that training; None for the planned steps of the base."""

    def read(self) -> dict[str, Any]:
        """The fields of `Study`; `ConfigError` for a file or value that is not allowed."""
        return {
            "prices": PriceList() if self.prices is None else read_price_list(self.prices),
            "deadline_s": None if self.deadline is None else seconds_of(self.deadline),
            "samples": None if self.samples is None else samples_of(self.samples),
        }


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
    costs: CostQuestion | None = None,
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
        costs: price list, deadline and length of the training whose cost the report gives.
        check: whether the sweeps must have targets.

    Raises:
        ConfigError: a sweep or target does not exist, no run matches `base`, `warmup` or `reject_warned`
            leaves no run, or a folder cannot be written.
    """
    out, question = Path(out), (costs or CostQuestion()).read()
    runs = load_runs(sweeps, states, only, warmup=warmup, reject_warned=reject_warned)
    other = None
    if against is not None:
        other = make_study(load_runs([against], warmup=warmup, reject_warned=reject_warned))
    study = make_study(runs, base, against=other)
    study = replace(study, **question)
    found = targets.required(study.runs, study.curves) if check else []
    try:
        out.mkdir(parents=True, exist_ok=True)
        sections = build_all(study)
        report = document(study, sections, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        _draw_pngs(sections, out)
        write_json(out / "report.json", report)
        write_text(out / "report.md", render.markdown(report, sections))
        write_text(out / "details.html", render.page(report, sections, out, details=True))
        write_text(out / "report.html", render.page(report, sections, out))
    except OSError as error:
        raise _not_written(out, message_of(error) if is_disk_full(error) else error.strerror) from None
    for kind, folder in (tables or {}).items():
        from analysis.report.export import write_tables  # imports pandas

        try:
            write_tables(study, sections, folder, kind)
        except OSError as error:
            raise ConfigError(f"cannot write {str(folder)!r}: {error.strerror}", at=f"--{kind}") from None
    return Written(out / "report.html", found)


def _draw_pngs(sections: Sequence[Section], out: Path) -> None:
    """Write the figures as PNG, and remove those of an earlier report."""
    for file in _earlier_pngs(out):
        file.unlink()
    for section in sections:
        for figure in section.figures:
            write_bytes(out / f"{figure.name}.png", png(figure.drawn))


def _earlier_pngs(out: Path) -> list[Path]:
    """PNG files in `out` that the `report.json` there lists."""
    try:
        listed = read_json(out / "report.json")["figures"]
        return [path for each in listed if each["file"] and (path := out / Path(each["file"]).name).is_file()]
    except (OSError, CorruptFile, KeyError, TypeError):
        return []


def _not_written(out: Path | str, reason: str | None) -> ConfigError:
    return ConfigError(f"cannot write the report to {str(out)!r}: {reason}")
