"""Hooks of MkDocs: README.md, CONTRIBUTING.md and the files that pages link to become part of the site."""

from __future__ import annotations

import os
import re
from typing import Any

from mkdocs.structure.files import File, Files

from docs.generate.files import ROOT

_ADDED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages outside of docs/, and their names on the site."""
_LINK = re.compile(r"(\[[^\]]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and each file that a page links to outside of docs/."""
    for name, site_name in _ADDED.items():
        files.append(File.generated(config, site_name, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in files.documentation_pages():
        for link in _LINK.finditer(page.content_string):
            target = _target(page.src_uri, link[2])
            name = _on_site(target)
            if (ROOT / target).is_file() and name not in files.src_uris:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links relative to the site. A link to a folder becomes its text, because the site lists no folders.

    Code in tables has escaped bars for repository hosts, and plain ones for Python-Markdown.
    """

    def rewritten(link: re.Match[str]) -> str:
        target = _target(page.file.src_uri, link[2])
        if (ROOT / target).is_dir():
            return link[1][1:-1]
        if not (ROOT / target).is_file():
            return link[0]
        name = os.path.relpath(_on_site(target), os.path.dirname(page.file.src_uri) or ".")
        return f"{link[1]}({name}{(link[3] or '') if name.endswith('.md') else ''})"

    plain = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)
    return _LINK.sub(rewritten, plain)


def _target(page: str, link: str) -> str:
    """The file of a link, relative to the repository."""
    of_repository = {site_name: name for name, site_name in _ADDED.items()}.get(page, f"docs/{page}")
    return os.path.normpath(os.path.join(os.path.dirname(of_repository), link))


def _on_site(target: str) -> str:
    return _ADDED.get(target, target.removeprefix("docs/"))
