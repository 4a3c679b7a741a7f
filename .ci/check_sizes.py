"""No module over 400 lines and no function over 60: `python .ci/check_sizes.py`, part of `make lint`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODULE_LINES = 400
FUNCTION_LINES = 60


def main() -> int:
    """Print a line for each module or function that is too long; 1 if there is one."""
    listed = subprocess.run(["git", "ls-files", "*.py"], capture_output=True, text=True, check=True)
    found = [line for name in listed.stdout.split() for line in too_long(Path(name))]
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


def too_long(path: Path) -> Iterator[str]:
    """What is too long in one file, docstrings and comments included."""
    source = path.read_text(encoding="utf-8")
    lines = source.count("\n")
    if lines > MODULE_LINES:
        yield f"{path}: {lines} lines; a module has {MODULE_LINES} at most"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                limit = f"a function has {FUNCTION_LINES} at most"
                yield f"{path}:{node.lineno}: {node.name} has {length} lines; {limit}"


if __name__ == "__main__":
    sys.exit(main())
