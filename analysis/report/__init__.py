"""Write the report of sweeps: HTML page, Markdown, JSON and figures as PNG."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from analysis.efficiency import scaling_curves
from analysis.overlaps import overlaps_of
from analysis.report import figures, render
from analysis.report.summary import summarize
from analysis.runs.load import KnownState, load
from analysis.runs.step_records import unreadable_steps
from disttrain.errors import ConfigError, is_disk_full, message_of
from disttrain.records.json_files import write_json, write_text

__all__ = ["KnownState", "check", "write"]


def check(
    sweeps: Sequence[Path | str],
    out: Path | str,
    *,
    base: str | None = None,
    only: Collection[Path] | None = None,
) -> None:
    """Raise `ConfigError` for each `base` and `out` that `write` refuses; write nothing."""
    whole = Path(out).absolute()
    folder = next(folder for folder in (whole, *whole.parents) if os.path.exists(folder))
    if not folder.is_dir():
        raise _not_written(out, os.strerror(errno.ENOTDIR))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _not_written(out, os.strerror(errno.EACCES))
    if base is not None:
        scaling_curves(load(sweeps, only=only), base)


def write(
    sweeps: Sequence[Path | str],
    out: Path | str,
    *,
    base: str | None = None,
    states: Mapping[Path, KnownState] | None = None,
    only: Collection[Path] | None = None,
) -> Path:
    """Write `report.html`, its Markdown and JSON, and the figures into `out`; return the path of the page.

    Args:
        sweeps: folders of sweeps.
        base: size that speed-up and efficiency refer to (`2`, `n2`), or a run of that size; the smallest by
            default.
        states, only: states of runs, and the runs to include (`analysis.runs.load.load`).

    Raises:
        ConfigError: a sweep does not exist, no run matches `base`, or `out` cannot be written.
    """
    out = Path(out)
    table = load(sweeps, states, only)
    curves = scaling_curves(table, base)
    try:
        out.mkdir(parents=True, exist_ok=True)
        specs = figures.draw(table, curves, out)
        generated = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        overlaps = overlaps_of(map(Path, table["path"]))
        report = summarize(table, curves, specs, generated, unreadable_steps(table), overlaps)
        images = {spec.file: (out / spec.file).read_bytes() for spec in specs}
        write_json(out / "report.json", report.model_dump(mode="json"))
        write_text(out / "report.md", render.markdown(report))
        write_text(out / "report.html", render.page(report, images))
    except OSError as error:
        raise _not_written(out, message_of(error) if is_disk_full(error) else error.strerror) from None
    return out / "report.html"


def _not_written(out: Path | str, reason: str | None) -> ConfigError:
    return ConfigError(f"cannot write the report to {str(out)!r}: {reason}")
