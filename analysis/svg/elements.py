"""SVG elements as text; all text content and attribute values are escaped."""

from __future__ import annotations

import html

FONT_PX = 15.0
"""Largest size of the text of a figure, in units of its view box: on narrow screens."""
_CHARACTER = 0.6
"""Mean width of a character as a share of the size of the font."""


def element(name: str, *children: str, **attributes: str | float | None) -> str:
    """`<name attributes>children</name>`.

    Args:
        children: SVG text, already escaped.
        attributes: numbers are rounded to 0.1 and None is left out; `class_` is written as `class`, and
            `_` as `-`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(children)}</{name}>" if children else f"<{name}{given}/>"


def text(content: str, x: float, y: float, **attributes: str | float | None) -> str:
    """A line of text with its baseline at `y`."""
    return element("text", html.escape(content, quote=False), x=x, y=y, **attributes)


def mark(name: str, title: str, key: str | None = None, **attributes: str | float | None) -> str:
    """An element with a tooltip; marks of one `key` (a rank, a run) are highlighted together."""
    tooltip = element("title", html.escape(title, quote=False)) if title else ""
    return (
        element(name, tooltip, data_k=key, **attributes)
        if tooltip
        else element(name, data_k=key, **attributes)
    )


def text_width(content: str, size_px: float = FONT_PX) -> float:
    """Estimated width of a line of text, in units of the view box."""
    return len(content) * size_px * _CHARACTER


def shortened(content: str, width: float, size_px: float = FONT_PX) -> str:
    """The text, cut with an ellipsis where its estimated width exceeds `width`."""
    fits = max(1, int(width / (size_px * _CHARACTER)))
    return content if len(content) <= fits else content[: fits - 1] + "\N{HORIZONTAL ELLIPSIS}"


def document(body: str, *, name: str, width: float, height: float, title: str, description: str) -> str:
    """The `<svg>` of a figure; `name` is unique in the page, and screen readers read the texts."""
    return element(
        "svg",
        element("title", html.escape(title, quote=False), id=f"{name}-title"),
        element("desc", html.escape(description, quote=False), id=f"{name}-desc"),
        body,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        class_="half",
    )


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return html.escape(value)
    return f"{value:.1f}".removesuffix(".0")
