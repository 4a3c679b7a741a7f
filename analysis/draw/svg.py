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
_NUMBER = re.compile(r"-?\d+\.\d+")
_POSITIONS = {"d", "x", "y", "width", "height"}
_CONTROL = dict.fromkeys((*range(9), *range(11, 32)))
"""Characters that names of runs may have and XML does not allow."""


def inline(figure: Figure, name: str, title: str, description: str) -> str:
    """The `<svg>` of a figure; `name` is unique in the page, and screen readers read the texts."""
    text = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):  # ids differ between figures
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(text.getvalue().translate(_CONTROL))
    texts = [Element("title", id=f"{name}-title"), Element("desc", id=f"{name}-desc")]
    texts[0].text, texts[1].text = title, description
    root[:] = texts + _content(root)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
    }
    root.tag, root.text = "svg", None
    return ElementTree.tostring(root, encoding="unicode")


def _content(parent: Element) -> list[Element]:
    """The children that are visible, without groups that say nothing."""
    content = []
    for child in parent:
        child.tag, child.tail = child.tag.rpartition("}")[2], None
        _plain(child)
        if child.tag not in ("g", "defs"):
            hidden = child.tag in ("metadata", "style", "clipPath") or (
                child.get("fill") == "none" and "stroke" not in child.attrib
            )
            content += [] if hidden else [child]
            continue
        child.text, child[:] = None, _content(child)
        title = child.attrib.pop("title", "")
        if title:
            child.insert(0, Element("title"))
            child[0].text = title
        if child.tag == "g" and not child.attrib and not title:
            content += list(child)
        elif len(child):
            content.append(child)
    return content


def _plain(element: Element) -> None:
    """Attributes in place of styles and of marks (`analysis.draw.style.mark`)."""
    attributes = element.attrib
    attributes.pop("clip-path", None)  # drawing functions keep to their axes
    for part in attributes.pop("style", "").split(";"):
        key, _, value = (piece.strip() for piece in part.partition(":"))
        if key and key != "font-family":
            attributes[key] = _VARIABLES.get(value, value)
    for key in [key for key in attributes if key.endswith("}href")]:
        attributes["href"] = attributes.pop(key)
    for key in _POSITIONS & attributes.keys():
        attributes[key] = " ".join(_NUMBER.sub(_short, attributes[key]).split())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if element.tag == "g":
        key, mark, title = attributes.pop("id", "").partition(MARK)
        if mark and key:
            attributes["data-k"] = key
        if title:
            attributes["title"] = title


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")
