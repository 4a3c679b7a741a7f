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
_CONTROL = dict.fromkeys((*range(9), *range(11, 32)))
"""Characters that names of runs may have and XML does not allow."""


def inline(figure: Figure, name: str, title: str, description: str) -> str:
    """The `<svg>` of a figure; `name` is unique in the page. Screen readers read the texts."""
    text = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):  # ids differ between figures
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(re.sub(r"\s*\n\s*", " ", text.getvalue().translate(_CONTROL)))
    label = f"{title}. {description}".translate(_CONTROL)
    svg = Element("svg", {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label})
    svg.extend(root.iterfind("{*}g"))
    for element in [*svg.iter()][1:]:
        _plain(element)
    return ElementTree.tostring(svg, encoding="unicode")


def _plain(element: Element) -> None:
    """Attributes in place of styles and of marks (`analysis.draw.style.mark`)."""
    values = {name.rpartition("}")[2]: value for name, value in element.items()}
    values |= re.findall(r"([\w-]+): ([^;]+)", values.pop("style", ""))
    element.tag = element.tag.rpartition("}")[2]
    if element.tag == "g":
        key, mark, title = values.pop("id", "").partition(MARK)
        if mark and key:
            values["data-k"] = key
        if title:
            element.insert(0, Element("title"))
            element[0].text = title
    element.attrib = {
        name: _VARIABLES.get(value, value) for name, value in values.items() if name not in _UNUSED
    }
