"""Arguments of functions and classes, read from their source text without importing it.

Where a callable has `**kwargs`, its body shows which names it accepts: those that it reads, and those of the
callables to which it passes all of them, in the same module or in a module that it imports from.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from disttrain.errors import ConfigError

_TYPE_NAMES: dict[str, Any] = {
    "int": int, "float": float, "str": str, "bool": bool, "list": list, "tuple": tuple, "dict": dict,
    "Literal": Literal, "Any": Any, "None": None,
}  # fmt: skip
_READERS = ("get", "pop")
_MAX_DEPTH = 8
"""Longest chain of imports, base classes and calls that is followed."""


@dataclass(frozen=True)
class Signature:
    """Arguments by keyword as {name: (type, default)}. A default of `...` marks a required argument."""

    options: dict[str, tuple[Any, Any]]
    computed: frozenset[str] = frozenset()
    """Options whose default is an expression; its value is unknown here."""
    passed_on: frozenset[str] = frozenset()
    """Further names that `**kwargs` accepts."""
    open_ended: bool = False
    """Whether `**kwargs` may accept other names than these."""
    doc: str = ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.options) | self.passed_on


@dataclass(frozen=True)
class _Found:
    """A definition, and the file and module that hold it."""

    path: Path
    tree: ast.Module
    node: ast.FunctionDef | ast.ClassDef


def signature(path: Path, name: str) -> Signature | None:
    """The signature of `name` in the module at `path`; None where the source text does not show it."""
    found = _resolve(path, name, 0)
    return None if found is None else _signature(found, 0)


def module_file(module: str) -> Path | None:
    """The file of an absolute module name, as a job finds it: also below the working directory."""
    relative = Path(*module.split("."))
    for root in _search_path(relative.parts[0]):
        for path in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file. Raises `ConfigError` for a syntax error."""
    return _parse(path, path.stat().st_mtime_ns)


def find(tree: ast.AST, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The definition of `name` directly in `tree`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    return None


@functools.cache
def _parse(path: Path, _modified: int) -> ast.Module:
    # cached: a sweep checks hundreds of configs against the same few files
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"not valid Python: {error.msg}", at=f"{path}:{error.lineno}") from None


def _search_path(package: str) -> Iterator[Path]:
    """Folders in which a job looks for a package, in this order."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for entry in dict.fromkeys([*sys.path[:1], *inherited, ".", *sys.path[1:]]):
        yield Path(entry or ".")
    try:
        spec = importlib.util.find_spec(package)  # an editable install, which is on no path
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder).parent


def _resolve(path: Path, name: str, depth: int) -> _Found | None:
    """The definition of `name` at the top of a module, or where the module imports it from."""
    tree = parsed(path)
    node = find(tree, name)
    if node is not None:
        return _Found(path, tree, node)
    for statement in tree.body if depth < _MAX_DEPTH else ():
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name and (origin := _imported_from(path, statement)):
                    return _resolve(origin, alias.name, depth + 1)
    return None


def _imported_from(path: Path, statement: ast.ImportFrom) -> Path | None:
    if not statement.level:
        return module_file(statement.module or "")
    folder = path.parents[statement.level - 1]
    target = folder / Path(*(statement.module or "").split("."))
    files = (
        (target.with_suffix(".py"), target / "__init__.py") if statement.module else (folder / "__init__.py",)
    )
    return next((file for file in files if file.is_file()), None)


def _signature(found: _Found, depth: int) -> Signature | None:
    if depth > _MAX_DEPTH:
        return None
    if isinstance(found.node, ast.FunctionDef):
        return _of_function(found, found.node, None, depth)
    init = find(found.node, "__init__")
    if isinstance(init, ast.FunctionDef):
        return _of_function(found, init, found.node, depth)
    return _of_dataclass(found.node) or _of_base(found, found.node, depth)


def _of_dataclass(cls: ast.ClassDef) -> Signature | None:
    """The fields of a dataclass; None for another class."""
    names = [ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in cls.decorator_list]
    if names != ["dataclass"]:
        return None
    fields = [
        node for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    read = {ast.unparse(node.target): (_type(node.annotation), *_default(node.value)) for node in fields}
    return _made(read, cls, open_ended=bool(cls.bases))  # a base class may have further fields


def _of_base(found: _Found, cls: ast.ClassDef, depth: int) -> Signature | None:
    """The signature of the only base class."""
    if cls.decorator_list or len(cls.bases) != 1 or not isinstance(cls.bases[0], ast.Name):
        return None
    base = _resolve(found.path, cls.bases[0].id, depth)
    return None if base is None or base.node is cls else _signature(base, depth + 1)


def _of_function(found: _Found, function: ast.FunctionDef, cls: ast.ClassDef | None, depth: int) -> Signature:
    arguments = function.args
    positional = [a for a in arguments.posonlyargs + arguments.args if a.arg not in ("self", "source")]
    defaults: list[ast.expr | None] = [None] * len(positional)
    if arguments.defaults:
        defaults[-len(arguments.defaults) :] = arguments.defaults
    pairs = [*zip(positional, defaults, strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    read = {argument.arg: (_type(argument.annotation), *_default(value)) for argument, value in pairs}
    made = _made(read, function)
    if arguments.kwarg is None:
        return made
    names, open_ended = _keywords(found, function, arguments.kwarg.arg, cls, depth)
    return replace(made, passed_on=names - {"source"} - frozenset(made.options), open_ended=open_ended)


def _made(
    read: dict[str, tuple[Any, Any, bool]], node: ast.FunctionDef | ast.ClassDef, *, open_ended: bool = False
) -> Signature:
    """A signature from {name: (type, default, whether the source text shows the default)}."""
    return Signature(
        {name: (annotation, default) for name, (annotation, default, _) in read.items()},
        computed=frozenset(name for name, (_, _, is_literal) in read.items() if not is_literal),
        open_ended=open_ended,
        doc=ast.get_docstring(node) or "",
    )


def _keywords(
    found: _Found, function: ast.FunctionDef, kwargs: str, cls: ast.ClassDef | None, depth: int
) -> tuple[frozenset[str], bool]:
    """Names that the argument `**kwargs` accepts, and whether it may accept others."""
    names: set[str] = set()
    open_ended = False
    explained = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg is None and _is_name(keyword.value, kwargs):
                    explained.add(keyword.value)
                    callee = _callee(found, node.func, cls, depth)
                    given = {other.arg for other in node.keywords}
                    names |= callee.names - given if callee else set()
                    open_ended = open_ended or callee is None or callee.open_ended
        if (read := _read_key(node, kwargs)) is not None:
            explained.add(read[0])
            names.add(read[1])
    uses = (node for node in ast.walk(function) if _is_name(node, kwargs))
    return frozenset(names), open_ended or any(use not in explained for use in uses)


def _read_key(node: ast.AST, kwargs: str) -> tuple[ast.expr, str] | None:
    """The use of `kwargs` and the name in `kwargs["name"]`, `kwargs.get("name")` and `kwargs.pop("name")`."""
    if isinstance(node, ast.Subscript):
        value, key = node.value, node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr not in _READERS:
            return None
        value, key = node.func.value, node.args[0]
    else:
        return None
    if _is_name(value, kwargs) and isinstance(key, ast.Constant) and isinstance(key.value, str):
        return value, key.value
    return None


def _callee(found: _Found, function: ast.expr, cls: ast.ClassDef | None, depth: int) -> Signature | None:
    if isinstance(function, ast.Name):
        callee = _resolve(found.path, function.id, depth)
        return None if callee is None else _signature(callee, depth + 1)
    if cls is not None and ast.unparse(function) == "super().__init__":
        return _of_base(found, cls, depth)
    return None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _type(annotation: ast.expr | None) -> Any:
    if annotation is None:
        return Any
    try:
        return eval(ast.unparse(annotation), {"__builtins__": {}}, _TYPE_NAMES)
    except Exception:  # a user-defined type: the call in the job checks it
        return Any


def _default(value: ast.expr | None) -> tuple[Any, bool]:
    """The default value, and whether the source text shows it."""
    if value is None:
        return ..., True
    try:
        return ast.literal_eval(value), True
    except ValueError:
        return None, False
