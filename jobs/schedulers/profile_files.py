"""Files of the site profiles: those in `jobs/profiles/`, and the user's own."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "profiles"


def profile_files() -> dict[str, Path]:
    """Files of the named profiles, by name. A file in `~/.config/disttrain/profiles/` comes first."""
    found: dict[str, Path] = {}
    for folder in (SHIPPED, Path.home() / ".config" / "disttrain" / "profiles"):
        found |= {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return found
