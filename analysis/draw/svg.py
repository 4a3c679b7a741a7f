"""A figure as SVG within the page.

The page's content-security policy blocks `style` attributes and elements, so each property becomes an
attribute, and each colour a variable of the page's style sheet. Text stays text, in the font of the page.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
from matplotlib.figure import Figure

from analysis.draw.style import COLOURS, MARK, STYLE

_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_UNUSED = ("clip-path", "font-family", "transform")
"""Drawing functions keep to their axes and turn no text."""
_NUMBER = re.compile(r"-?\d+\.\d+")
_CONTROL = dict.fromkeys((*range(9), *range(11, 32)))
"""Characters that names of runs may have and XML does not allow."""


def inline(figure: Figure, name: str, title: str, description: str) -> str:
    """The `<svg>` of a figure; `name` is unique in the page. Screen readers read the texts."""
    text = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):  # ids differ between figures
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(text.getvalue().translate(_CONTROL))
    svg = Element("svg", {"viewBox": root.attrib["viewBox"], "role": "img"})
    svg.set("aria-label", f"{title}. {description}".translate(_CONTROL))
    for group in (child for child in root if child.tag.endswith("}g")):
        svg.append(group)
        for element in list(group.iter()):
            _plain(element)
    return ElementTree.tostring(svg, encoding="unicode")


def _plain(element: Element) -> None:
    """Attributes in place of styles and of marks (`analysis.draw.style.mark`)."""
    element.tag, element.tail = element.tag.rpartition("}")[2], None
    element.text = (element.text or "").strip() or None
    attributes = element.attrib
    for part in attributes.pop("style", "").split(";"):
        key, _, value = (piece.strip() for piece in part.partition(":"))
        if key:
            attributes[key] = _VARIABLES.get(value, value)
    for key in [key for key in attributes if key.endswith("}href")]:
        attributes["href"] = attributes.pop(key)
    for key in _UNUSED:
        attributes.pop(key, None)
    for key in {"d", "x", "y"} & attributes.keys():
        attributes[key] = " ".join(_NUMBER.sub(_short, attributes[key]).split())
    if element.tag == "g":
        key, mark, title = attributes.pop("id", "").partition(MARK)
        if mark and key:
            attributes["data-k"] = key
        if title:
            element.insert(0, Element("title"))
            element[0].text = title


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")
