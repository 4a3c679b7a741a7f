"""Each message that the page on troubleshooting quotes from this project is still in its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ROOT / "analysis" / "report" / "templates" / "sentences.j2"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
LEAST = 10
"""Fixed characters of a string that can be the source of a message."""


def quoted() -> list[str]:
    """Messages in first columns, but for those of others, such as `...` (PyTorch), and for single words."""
    cells = re.findall(r"^\| ([^|]*?`[^|]*) \|", PAGE, re.M)
    return [text for cell in cells for text in re.findall(r"`([^`]* [^`]*)`(?! \()", cell)]


def patterns() -> Iterator[re.Pattern[str]]:
    """A pattern of each string in the code that is no docstring; `{...}` matches any text."""
    files = [
        ROOT / "submit.py",
        *(f for p in ("jobs", "disttrain", "analysis", "sweeps") for f in (ROOT / p).rglob("*.py")),
    ]
    for file in files:
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            if sum(len(part) for part in parts if part) >= LEAST:
                yield re.compile("".join(".+" if part is None else re.escape(part) for part in parts))
    for text in re.split(r"{[{%#].*?[%#}]}", SENTENCES.read_text()):
        if len(text.strip()) >= LEAST:
            yield re.compile(re.escape(text.strip().rstrip(".")))


PATTERNS = list(patterns())


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    found = [match for pattern in PATTERNS if (match := pattern.search(message))]
    covered = {index for match in found for index in range(*match.span())}
    missing = "".join(char if index not in covered else "_" for index, char in enumerate(message))
    assert len(covered) >= 0.7 * len(message), missing


def test_the_page_quotes_messages_and_one_that_is_in_no_string_is_found_missing() -> None:
    assert len(quoted()) >= 10
    with pytest.raises(AssertionError):
        test_a_quoted_message_is_in_the_code("hung: rank 1 went for a walk and did not return within 10 s")
