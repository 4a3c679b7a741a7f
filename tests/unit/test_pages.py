"""README and docs name files, links, commands and config keys that exist."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
import yaml

from disttrain.config.config_tree import Config
from disttrain.config.sections.base import section_of
from jobs.cli.arguments import build_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text() for page in PAGES}
HISTORY = "docs/log.md"  # names files and modules as they were
FOLDERS = r"(?:disttrain|jobs|sweeps|analysis|benchmarks|tests|docs)"
OPEN_SECTIONS = {"model", "data"}
"""Sections that take the options of their builder besides their own keys."""

page_texts = pytest.mark.parametrize(("page", "text"), TEXTS.items(), ids=TEXTS)
CURRENT = {page: text for page, text in TEXTS.items() if page != HISTORY}
current_page_texts = pytest.mark.parametrize(("page", "text"), CURRENT.items(), ids=CURRENT)


def lines_of_blocks(text):
    """Lines of code blocks; a line that ends with a backslash and its continuation are one."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M)
    blocks += [
        block.replace("    ", "", 1) for block in re.findall(r"^ {4}\S.*\n", without_blocks(text), re.M)
    ]
    return [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def code_of(text):
    """Inline code and the lines of code blocks."""
    inline = re.findall(r"`([^`]+)`", without_blocks(text))
    return lines_of_blocks(text) + [" ".join(code.split()) for code in inline]


def expanded(path):
    """`a/{b,c}.py` as `a/b.py` and `a/c.py`."""
    found = re.search(r"\{([^}]*)\}", path)
    return [path.replace(found[0], each) for each in found[1].split(",")] if found else [path]


def named_files(text):
    """Paths below the project's folders; placeholders such as `<name>` become `*`."""
    paths = re.findall(rf"(?<![\w/.-]){FOLDERS}/[\w./<>*{{}},-]*", "\n".join(code_of(text)))
    whole = {each for path in paths for each in expanded(path.rstrip(".,"))}
    return {re.sub(r"<[^>]*>", "*", path).rstrip("/") for path in whole}


def example_files(text):
    """Files that a page shows how to write: code blocks whose first line is their path."""
    return set(re.findall(r"^```python\n# (\S+\.py)$", text, re.M))


def named_modules(text):
    """Dotted names of the project's packages."""
    packages = "disttrain|jobs|sweeps|analysis|benchmarks"
    return set(re.findall(rf"(?<![\w/.-])(?:{packages})(?:\.(?!md\b)\w+)+", text))


def exists(module):
    """Whether a dotted name is a module, or a name in one."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if file.exists():
            rest = parts[length:]
            return not rest or re.search(rf"\b{rest[0]}\b", file.read_text()) is not None
    return False


def commands(lines):
    """The arguments in each command line, as text, up to a comment, a shell operator or ` -- `."""
    for line in lines:
        if match := re.match(r"(?:\S*sudo )?(?:(?:\S*python )?(?:\./)?submit\.py|disttrain) (.+)", line):
            yield re.split(r"\s#|[|;>&]| -- ", match[1])[0]


def subparsers(parser):
    """Name and parser of each verb."""
    actions = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return next((action.choices for action in actions), {})


def unknown_arguments(arguments):
    """The verb or the flags of a command line that `submit.py` does not have."""
    parser, rest = build_parser(), arguments
    while (verbs := subparsers(parser)) and rest and not rest[0].startswith("-"):
        if rest[0] not in verbs:
            return [] if rest[0].isupper() or rest[0] == "..." else [rest[0]]
        parser, rest = verbs[rest[0]], rest[1:]
    flags = (re.match(r"-{1,2}[\w-]+", word) for word in rest)
    return [flag[0] for flag in flags if flag and flag[0] not in parser._option_string_actions]


@current_page_texts
def test_named_files_exist(page, text):
    missing = {path for path in named_files(text) if not list(ROOT.glob(path))}
    assert missing - example_files(text) == set()


@current_page_texts
def test_named_modules_exist(page, text):
    examples = {path.removesuffix(".py").replace("/", ".") for path in example_files(text)}
    assert {name for name in named_modules(text) if not exists(name)} - examples == set()


@page_texts
def test_links_lead_to_files_and_headings(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{page} links to {target}"


@page_texts
def test_commands_use_verbs_and_flags_that_exist(page, text):
    for arguments in commands(code_of(text)):
        assert unknown_arguments(arguments.split()) == [], arguments


@page_texts
def test_commands_in_blocks_are_complete(page, text):
    for arguments in commands(lines_of_blocks(text)):
        if "..." not in arguments and not arguments.startswith("VERB"):
            build_parser().parse_args(shlex.split(arguments))


CONTROL_GROUP_FILES = {"memory.events", "memory.max", "memory.oom_control"}


@current_page_texts
def test_config_keys_exist(page, text):
    sections = {name: section_of(field) for name, field in Config.model_fields.items()}
    for key in re.findall(r"(?<![\w./-])\w+\.\w+\b(?![./(])", "\n".join(code_of(text))):
        section, _, name = key.partition(".")
        is_file = name in ("md", "py", "sbatch", "yaml") or key in CONTROL_GROUP_FILES
        if sections.get(section) and section not in OPEN_SECTIONS and not is_file:
            assert name in sections[section].model_fields, key


def test_yaml_examples_name_sections_that_exist():
    for page, text in TEXTS.items():
        for block in re.findall(r"^```yaml\n(.*?)^```", text, re.S | re.M):
            loaded = yaml.safe_load(block)
            if isinstance(loaded, dict) and "model" in loaded:
                assert loaded.keys() <= {*Config.model_fields, "sweep"}, page
