"""Options that the parts of `make gpu` have in common."""

from __future__ import annotations

import argparse


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with `--device` and `--tiny`, the sizes for a test; `description` keeps its lines."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--tiny", action="store_true")
    return made
