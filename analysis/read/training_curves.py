"""Training curves of finished runs: losses and gradient norms by step."""

from __future__ import annotations

import pandas as pd

from analysis.read.load import read_metrics


def losses(table: pd.DataFrame) -> pd.DataFrame:
    """Loss curves of the included runs: sweep, run, split (train or valid), step, loss, bits_per_byte."""
    rows: list[tuple[str, str, str, int, float | None, float | None]] = []
    for row in table[table["included"]].itertuples():
        metrics, _ = read_metrics(row.path)
        if metrics is None:
            continue
        for point in metrics.loss_history:
            rows.append((row.sweep, row.run, "train", point.step, point.loss, None))
        for point in metrics.eval_history:
            rows.append(
                (row.sweep, row.run, "valid", point.step, point.loss, point.metrics.get("bits_per_byte"))
            )
    frame = pd.DataFrame(rows, columns=["sweep", "run", "split", "step", "loss", "bits_per_byte"])
    return frame.astype({"loss": "float64", "bits_per_byte": "float64"})


def gradient_norms(table: pd.DataFrame) -> pd.DataFrame:
    """Gradient norms of the included runs: sweep, run, step, grad_norm (NaN where it is not finite)."""
    rows: list[tuple[str, str, int, float | None]] = []
    for row in table[table["included"]].itertuples():
        metrics, _ = read_metrics(row.path)
        if metrics is not None:
            rows += [(row.sweep, row.run, point.step, point.grad_norm) for point in metrics.grad_norm_history]
    frame = pd.DataFrame(rows, columns=["sweep", "run", "step", "grad_norm"])
    return frame.astype({"grad_norm": "float64"})
