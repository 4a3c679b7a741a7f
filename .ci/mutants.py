"""Which small changes of the code do the unit tests notice? `make mutants` asks mutmut.

mutmut changes one expression of a function at a time (a mutant) and runs the tests that reach the function. A
mutant that no test fails on has survived. Decorated functions are left out, as mutmut does, and mutants that
change nothing but a sentence, which golden files pin.

    make mutants                     every function; hours
    make mutants SINCE=main          functions that changed since a commit, with the nearest tests; minutes
    make mutants FUNCTIONS=100       as many functions of each package, chosen at random
    make mutants MODULES="jobs/core/journal.py"

Survivors that cannot be noticed stand in `.ci/survivors.yaml` with the reason. mutmut works in a copy of the
tree, `build/mutants`.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"
SURVIVORS = ROOT / ".ci" / "survivors.yaml"
PACKAGES = ("analysis", "disttrain", "jobs", "sweeps")
AIM = 0.9
KILLED = frozenset({"killed", "timeout", "segfault", "suspicious", "caught by type check"})
NEAR = 2
"""Imports between a module and a test that is near it: its own tests, and those of what imports it."""
SENTENCE = re.compile(r"""f?("[^"]* [^"]*"|'[^']* [^']*')""")


def main() -> int:
    """Print survivors and a table by package; 1 if a package is below the aim or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files of the project; default: all")
    parser.add_argument("--since", metavar="COMMIT", help="only functions that changed since then")
    parser.add_argument("--functions", type=int, metavar="N", help="at most N functions of each package")
    asked = parser.parse_args()
    modules = [Path(name) for name in asked.modules] or [
        path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ]
    chosen = [name for path in modules for name in functions(path, asked.since)]
    if asked.functions:
        chosen = sample(chosen, asked.functions)
    if not chosen:
        print("no function to change")
        return 0
    paths = sorted({path for path in modules if any(name.startswith(f"{dotted(path)}.x") for name in chosen)})
    copy_tree(paths, sorted(near_tests(paths, NEAR if asked.since or asked.modules else None)))
    mutmut("run", *(f"{name}__mutmut_*" for name in chosen), show=True)
    return report()


def functions(path: Path, since: str | None) -> Iterator[str]:
    """mutmut's names of the functions of a file, or of those in which a line changed since a commit."""
    lines = changed_lines(path, since) if since else None
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"xǁ{node.name}ǁ" if isinstance(node, ast.ClassDef) else "x_"
        for function in inside:
            if isinstance(function, ast.FunctionDef) and (
                lines is None or lines & set(range(function.lineno, (function.end_lineno or 0) + 1))
            ):
                yield f"{dotted(path)}.{prefix}{function.name}"


def changed_lines(path: Path, since: str) -> set[int]:
    """Line numbers in a file that its difference to a commit added."""
    command = ["git", "diff", "--unified=0", since, "--", str(path)]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    starts = re.findall(r"^@@ \S+ \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE)
    return {line for start, count in starts for line in range(int(start), int(start) + int(count or 1))}


def sample(names: list[str], count: int) -> list[str]:
    """At most `count` names of each package, the same ones each time."""
    shuffled = random.Random(0).sample(names, len(names))
    by_package: defaultdict[str, list[str]] = defaultdict(list)
    for name in shuffled:
        by_package[name.partition(".")[0]].append(name)
    return [name for of_package in by_package.values() for name in of_package[:count]]


def near_tests(paths: list[Path], distance: int | None) -> set[str]:
    """Unit tests from which at most `distance` imports (None: any number) lead to one of the files."""
    importers: defaultdict[str, set[Path]] = defaultdict(set)
    for folder in (*PACKAGES, "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in imported(path):
                importers[name].add(path.relative_to(ROOT))
    reached, new = set(paths), set(paths)
    while new and distance != 0:
        new = {importer for path in new for importer in importers[dotted(path)]} - reached
        reached |= new
        distance = None if distance is None else distance - 1
    return {str(path) for path in reached if path.match("tests/unit/test_*.py")}


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules that a file imports, and `package.name` for each name that it takes from a package."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def dotted(path: Path) -> str:
    """`jobs.core.journal` of `jobs/core/journal.py`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def copy_tree(paths: list[Path], tests: list[str]) -> None:
    """Copy the tracked files to `build/mutants`, with mutmut's settings for these files and tests."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    for name in tracked:
        (COPY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, COPY / name)
    settings = {
        "source_paths": PACKAGES,
        "only_mutate": paths,
        "also_copy": sorted({name.partition("/")[0] for name in tracked} - {*PACKAGES, "tests"}),
        "pytest_add_cli_args": ["-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow"],
        "pytest_add_cli_args_test_selection": tests,
    }
    lines = ["[mutmut]"]
    for name, values in settings.items():
        lines += [f"{name} =", *(f"  {value}" for value in values)]
    (COPY / "setup.cfg").write_text("\n".join([*lines, ""]))


def report() -> int:
    """Print the survivors and the table of what ran; the exit code."""
    listed = yaml.safe_load(SURVIVORS.read_text(encoding="utf-8"))
    known = {(entry["function"], entry["change"].strip()) for entry in listed}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in mutmut("results", "--all", "true").splitlines():
        name, _, status = line.strip().rpartition(": ")
        if "__mutmut_" not in name or status == "not checked":
            continue
        counted = "killed" if status in KILLED else status
        if counted != "killed":
            change = difference(mutmut("show", name))
            if only_a_sentence(change):
                counted = "sentence"
            elif (name.rpartition("__mutmut_")[0], change) in known:
                counted = "cannot be noticed"
            else:
                print(f"{status}: {name}\n{change}")
        counts[name.partition(".")[0]][counted] += 1
    low = False
    for package, found in sorted(counts.items()):
        killable = found.total() - found["sentence"] - found["cannot be noticed"]
        share = found["killed"] / max(killable, 1)
        low |= share < AIM
        others = ", ".join(f"{count} {word}" for word, count in found.items() if word != "killed")
        print(f"{package:10} {found['killed']:6} of {killable:6} noticed: {100 * share:.1f} % ({others})")
    return int(low or not counts)


def difference(diff: str) -> str:
    """The removed and added lines of a unified diff."""
    return "\n".join(
        line for line in diff.splitlines() if line[:1] in ("-", "+") and line[:3] not in ("---", "+++")
    )


def only_a_sentence(change: str) -> bool:
    """Whether the lines differ in strings with a blank alone."""
    removed, _, added = SENTENCE.sub('""', change).partition("\n+")
    return removed[1:] == added


def mutmut(*arguments: str, show: bool = False) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(
        command, cwd=COPY, stdout=None if show else subprocess.PIPE, text=True, check=not show
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
