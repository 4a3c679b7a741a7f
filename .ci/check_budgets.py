"""How much there is to read, against `[tool.budgets]` in pyproject.toml; part of `make lint`.

Counted are tokens of Python code in each top-level folder, words of Markdown outside of `tests/`, and lines
of templates and shell scripts. Docstrings, comments and line breaks do not count, so packing lines changes
nothing.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
# From Python 3.12 on, an f-string is many tokens; it counts as one, as on 3.11.
FSTRING_START = getattr(tokenize, "FSTRING_START", None)
FSTRING_END = getattr(tokenize, "FSTRING_END", None)


def main() -> int:
    """Print each amount beside its budget; 1 if one is above it or has none."""
    budgets = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["budgets"]
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    amounts = amounts_of([Path(name) for name in listed.stdout.split("\0") if name])
    for name in sorted(amounts | budgets):
        print(f"{name:22}{amounts[name]:8} of {budgets.get(name, 0):7}")
    above = [name for name in amounts if amounts[name] > budgets.get(name, 0)]
    for name in above:
        print(f"error: {name} is above its budget in pyproject.toml, [tool.budgets]: make it smaller")
    return bool(above)


def amounts_of(paths: list[Path]) -> Counter[str]:
    """`disttrain_tokens` and so on, `markdown_words` and `template_lines` of these files."""
    amounts: Counter[str] = Counter()
    for path in paths:
        if path.suffix == ".py":
            folder = path.parts[0] if len(path.parts) > 1 else path.stem
            amounts[f"{folder.lstrip('.')}_tokens"] += tokens_of(path.read_text(encoding="utf-8"))
        elif path.suffix == ".md" and path.parts[0] != "tests":
            amounts["markdown_words"] += len(path.read_text(encoding="utf-8").split())
        elif path.suffix in (".j2", ".sh", ".sbatch"):
            amounts["template_lines"] += path.read_text(encoding="utf-8").count("\n")
    return amounts


def tokens_of(source: str) -> int:
    """Tokens of code in a Python source: names, operators, numbers and strings."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    tokens = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == FSTRING_END:
            depth -= 1
            continue
        if depth == 0 and token.type not in LAYOUT and token.start not in docstrings:
            tokens += 1
        if token.type == FSTRING_START:
            depth += 1
    return tokens


if __name__ == "__main__":
    sys.exit(main())
