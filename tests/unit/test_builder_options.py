"""The options of a builder, read from its source without importing it."""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest

from disttrain.config import builder_options
from disttrain.config.builder_options import (
    OptionError,
    builder_of,
    builtin_kinds,
    check_options,
    check_plug_in,
)
from disttrain.errors import ConfigError

SINKS = ("telemetry.sinks", "telemetry.sinks", "Sink")

NET = '''
import a_module_that_does_not_exist

raise RuntimeError("imported")

def build(source, *, layers: int = 3, rate: float = 0.1, name: str | None = None, sizes: list[int] = [1, 2],
          act: Literal["relu", "gelu"] = "relu", flag: bool = False, own: Own = Own(), bare=5):
    """Doc of net."""
'''


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A package root whose `models` hold the files written by the returned function."""
    monkeypatch.setattr(builder_options, "_PACKAGE_ROOT", tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text(NET)

    def write(name: str, text: str) -> None:
        (tmp_path / "models" / f"{name}.py").write_text(text)

    return write


def test_names_types_and_defaults_come_from_the_signature(models):
    builder = builder_of("models", "net")
    assert builder is not None
    assert builder.options == {
        "layers": (int, 3),
        "rate": (float, 0.1),
        "name": (str | None, None),
        "sizes": (list[int], [1, 2]),
        "act": (Literal["relu", "gelu"], "relu"),
        "flag": (bool, False),
        "own": (Any, None),
        "bare": (Any, 5),
    }
    assert not builder.open_ended
    assert builder.doc == "Doc of net."


def test_a_builder_is_read_once_and_again_after_an_edit(models, tmp_path):
    builder = builder_of("models", "net")
    assert builder is not None
    again = builder_of("models", "net")
    assert again is builder
    assert again.model is builder.model
    models("net", NET.replace("layers: int = 3", "layers: int = 7"))
    os.utime(tmp_path / "models" / "net.py", ns=(0, 0))  # another time, however coarse the clock
    assert check_options("models", "model", "net", {})["layers"] == 7


def test_defaults_are_filled_in_and_values_converted(models):
    given = {"layers": "4", "rate": "1e-3", "sizes": [3]}
    checked = check_options("models", "model", "net", given)
    assert (checked["layers"], checked["rate"], checked["sizes"], checked["act"]) == (4, 1e-3, [3], "relu")


@pytest.mark.parametrize(
    ("given", "option", "message"),
    [
        ({"layer": 4}, "layer", "model.layer is not an option of model.kind=net; allowed: act, bare, "),
        ({"layer": 4}, "layer", "did you mean 'layers'?"),
        ({"layers": "many"}, "layers", "model.layers='many': input should be a valid integer"),
        ({"act": "tanh"}, "act", "model.act='tanh': allowed: 'relu' or 'gelu'"),
        ({"sizes": [1, "x"]}, "sizes", "model.sizes"),
    ],
)
def test_a_bad_option_is_named(models, given, option, message):
    with pytest.raises(OptionError) as caught:
        check_options("models", "model", "net", given)
    assert caught.value.option == option
    assert message in str(caught.value)


def test_an_option_without_default_must_be_given(models):
    models("needy", "def build(*, path: str, size: int = 1): ...")
    assert check_options("models", "model", "needy", {"path": "x"}) == {"path": "x", "size": 1}
    with pytest.raises(OptionError, match=r"^model\.path is needed by model\.kind=needy$"):
        check_options("models", "model", "needy", {})


def test_keyword_arguments_leave_the_options_open(models):
    models("open", "def build(source, *, size: int = 1, **rest): return dict(rest)")
    assert check_options("models", "model", "open", {"other": "x"}) == {"size": 1, "other": "x"}


def test_only_modules_with_a_builder_are_kinds(models):
    models("helper", "def other(): ...")
    models("__init__", "")
    assert builtin_kinds("models") == ["net"]
    with pytest.raises(
        ConfigError, match=r"model\.kind='nett' is unknown; allowed: net .*did you mean 'net'\?"
    ):
        builder_of("models", "nett")
    with pytest.raises(ConfigError, match=r"^model\.kind='helper' is unknown"):
        builder_of("models", "helper")


def test_a_callable_by_import_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text(
        "class Net:\n    def __init__(self, width: int = 8): ...\n"
    )
    (tmp_path / "mine" / "nets.py").write_text("def make(depth: int, *, width: int = 8): ...\n")
    assert check_options("models", "model", "mine:Net", {}) == {"width": 8}
    assert check_options("models", "model", "mine.nets:make", {"depth": 2}) == {"depth": 2, "width": 8}


def test_what_cannot_be_found_here_is_left_to_the_job():
    assert builder_of("models", "only.on.the.cluster:build") is None
    assert check_options("models", "model", "only.on.the.cluster:build", {"a": "b"}) == {"a": "b"}


@pytest.mark.parametrize("section", ["models", "data"])
def test_every_builder_we_ship_declares_plain_options(section):
    for kind in builtin_kinds(section):
        builder = builder_of(section, kind)
        assert builder is not None
        assert not builder.open_ended, kind
        assert [name for name, (annotation, _) in builder.options.items() if annotation is Any] == [], kind


PLUG_INS = """
from elsewhere import imported as renamed
made = object()
class Sink: ...
try:
    def build(source): ...
except ImportError:
    build = None
"""


@pytest.mark.parametrize("name", ["build", "made", "renamed", "Sink"])
def test_a_name_that_the_module_may_have_is_accepted(tmp_path, monkeypatch, name):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_plug_ins.py").write_text(PLUG_INS)
    builder_of("models", f"my_plug_ins:{name}")
    check_plug_in(f"my_plug_ins:{name}", *SINKS)


@pytest.mark.parametrize(
    "dynamic",
    [
        "from elsewhere import *",
        "def __getattr__(name): ...",
        "globals().update(made())",
        "sys.modules[__name__] = Lazy()",
    ],
)
def test_any_name_of_a_dynamic_module_is_accepted(tmp_path, monkeypatch, dynamic):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_dynamic.py").write_text(dynamic)
    assert builder_of("models", "my_dynamic:build") is None


def test_a_name_that_the_module_lacks_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_plug_ins.py").write_text(PLUG_INS)
    with pytest.raises(
        ConfigError,
        match=r"^model\.kind: 'my_plug_ins:biuld': .*py defines no 'biuld'; did you mean 'build'\?$",
    ):
        builder_of("models", "my_plug_ins:biuld")
    with pytest.raises(
        ConfigError, match=r"^telemetry\.sinks: 'my_plug_ins:Snik': .* did you mean 'Sink'\?$"
    ):
        check_plug_in("my_plug_ins:Snik", *SINKS)
    (tmp_path / "my_plug_ins.py").write_text("\ndef build(:\n")
    with pytest.raises(ConfigError, match=r"my_plug_ins\.py:2: not valid Python: "):
        builder_of("models", "my_plug_ins:build")


@pytest.mark.parametrize("text", [":build", "my_plug_ins:", "my-plug.ins:build", "a..b:c", "a:b:c"])
def test_another_form_than_module_and_name_is_refused(text):
    with pytest.raises(ConfigError, match=r"is not of the form package\.module:name"):
        builder_of("models", text)


def test_a_sink_is_built_in_or_of_a_module():
    for sink in ("tensorboard", "mlflow", "not_on_this_path:Sink"):
        check_plug_in(sink, *SINKS)
    with pytest.raises(
        ConfigError, match=r"'tensorbord' is unknown; allowed: mlflow, tensorboard or .*'tensorboard'\?$"
    ):
        check_plug_in("tensorbord", *SINKS)


def test_a_size_is_its_options(tmp_path):
    named = check_options("models", "model", "gpt", {"size": "124M", "dropout": 0.1})
    assert named == check_options(
        "models", "model", "gpt", {"layers": 12, "width": 768, "heads": 12, "dropout": 0.1}
    )
    assert check_options("models", "model", "gpt", {"size": None}) == check_options(
        "models", "model", "gpt", {}
    )
