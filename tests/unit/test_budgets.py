"""Counts that `make lint` holds against the budgets in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "check_budgets.py"


def check(folder: Path, budgets: str, **files: str) -> tuple[int, str]:
    """Exit code and output of the check in a repository of these files."""
    (folder / "pyproject.toml").write_text(f"[tool.budgets]\n{budgets}\n")
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for command in (["git", "init", "--quiet"], ["git", "add", "--all"]):
        subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run([sys.executable, SCRIPT], cwd=folder, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


def test_code_counts_without_docstrings_comments_and_line_breaks(tmp_path):
    source = (
        '"""Doc."""\n# why\ndef f(a):\n    """Doc."""\n    return (\n        f"{a:>{a}} {a!r}" + "b"\n    )\n'
    )
    tokens = len(["def", "f", "(", "a", ")", ":", "return", "(", "fstring", "+", "b", ")"])
    code, output = check(tmp_path, f"jobs_tokens = {tokens}", jobs__a_dot_py=source)
    assert code == 0
    assert f"{tokens} of" in output
    assert check(tmp_path, f"jobs_tokens = {tokens - 1}")[0] == 1


def test_markdown_of_tests_and_untracked_files_do_not_count(tmp_path):
    (tmp_path / "more.md").write_text("a b c")
    (tmp_path / ".gitignore").write_text("more.md")
    files = {"docs__a_dot_md": "one two\nthree", "tests__a_dot_md": "four", "a_dot_sh": "b\nc\n"}
    assert check(tmp_path, "markdown_words = 3\ntemplate_lines = 2", **files)[0] == 0


def test_what_has_no_budget_is_an_error(tmp_path):
    code, output = check(tmp_path, "", sweeps__a_dot_py="a = 1\n")
    assert code == 1
    assert "error: sweeps_tokens" in output
