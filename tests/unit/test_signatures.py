"""Names that a callable accepts, from its source text: `**kwargs` are followed where the text shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config.builder_options import OptionError, check_options, unchecked_options
from disttrain.config.signatures import module_file, signature

NETS = """
from dataclasses import dataclass, field

from torch import nn

from .bases import Base, Base as Renamed
from elsewhere_on_the_cluster import Unknown

scale = 3

class Inherits(Base): ...
class Forwards(Base):
    def __init__(self, source, *, depth: int = 1, **options):
        super().__init__(source, **options)
class OfModule(nn.Module):
    def __init__(self, depth: int = 1, **options):
        super().__init__(**options)

def passes(source, **options): return Renamed(source, width=3, **options)
def ignores(source, *, n_layer: int = 2, **options): return Base(source, n_layer=n_layer)
def reads(*, n_layer: int = 2, **options):
    return options["width"], options.get("n_head", 2), options.pop("bias")
def keeps(*, n_layer: int = 2, **options): return dict(options)
def elsewhere(*, n_layer: int = 2, **options): return Unknown(**options)
def computed(*, rate=1 / 3, sizes=(1, 2), scale=scale): ...
def loop(**options): return loop(**options)

@dataclass
class Config:
    n_layer: int = 2
    sizes: list = field(default_factory=list)
def of_config(**options): return Config(**options)
"""
BASES = """
class Base:
    def __init__(self, source, *, n_layer: int = 2, width: int = 8): ...
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the user in the working directory, which is not on Python's path."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(NETS)
    (package / "bases.py").write_text(BASES)
    monkeypatch.chdir(tmp_path)
    return package / "nets.py"


@pytest.mark.parametrize(
    ("name", "names", "open_ended"),
    [
        ("Inherits", {"n_layer", "width"}, False),
        ("Forwards", {"depth", "n_layer", "width"}, False),
        ("passes", {"n_layer"}, False),
        ("ignores", {"n_layer"}, False),
        ("reads", {"n_layer", "width", "n_head", "bias"}, False),
        ("of_config", {"n_layer", "sizes"}, False),
        ("keeps", {"n_layer"}, True),
        ("elsewhere", {"n_layer"}, True),
        ("OfModule", {"depth"}, True),
        ("loop", set(), True),
    ],
)
def test_names_that_a_callable_accepts(nets: Path, name: str, names: set[str], open_ended: bool) -> None:
    found = signature(nets, name)
    assert found is not None
    assert (found.names, found.open_ended) == (names, open_ended)


@pytest.mark.parametrize(
    "name", ["Inherits", "Forwards", "passes", "ignores", "reads", "of_config", "keeps", "elsewhere"]
)
def test_a_misspelt_option_is_refused_with_the_name_that_was_meant(nets: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"^model\.n_layr .*did you mean 'n_layer'\?"):
        check_options("models", "model", f"mine.nets:{name}", {"n_layr": 3})


def test_options_that_only_the_job_can_check_are_named(nets: Path) -> None:
    def text(kind: str, *given: str) -> str | None:
        return unchecked_options("models", "model", kind, given)

    assert text("mine.nets:Forwards", "depth", "width") is None
    assert text("mine.nets:keeps", "n_layer") is None
    assert text("mine.nets:keeps", "n_layer", "other") == (
        "model.kind=mine.nets:keeps: its **kwargs take any option, so model.other can only be checked in the "
        "job"
    )
    assert text("nowhere.nets:build", "a", "b") == (
        "model.kind=nowhere.nets:build: its source is not found here, so model.a, model.b can only be "
        "checked in the job"
    )
    assert text("nowhere.nets:build") is None


def test_a_default_that_is_an_expression_is_left_to_the_callable(nets: Path) -> None:
    assert check_options("models", "model", "mine.nets:computed", {}) == {"sizes": (1, 2)}
    assert check_options("models", "model", "mine.nets:computed", {"rate": 2})["rate"] == 2


def test_modules_are_found_where_a_job_finds_them(
    nets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module_file("mine.nets") == Path("mine/nets.py")
    assert module_file("mine") == Path("mine/__init__.py")
    assert module_file("mine.other") is None
    earlier = tmp_path / "earlier"
    (earlier / "mine").mkdir(parents=True)
    (earlier / "mine" / "nets.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(earlier))
    assert module_file("mine.nets") == earlier / "mine" / "nets.py"
