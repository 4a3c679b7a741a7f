"""Options of models and data: of built-in kinds from `options.json`, of others from the imported callable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttrain.config import options
from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.options import (
    BUILT_SECTIONS,
    builder_of,
    check_options,
    inspected,
    kinds_of,
    planned_options,
)
from disttrain.config.parsing import Draft, check
from disttrain.engine.plug_in_check import unchecked
from disttrain.errors import ConfigError
from jobs.submission import before


def test_every_builder_we_ship_declares_plain_options() -> None:
    for section in BUILT_SECTIONS.values():
        for kind in kinds_of(section):
            builder = builder_of(section, kind)
            assert builder is not None
            assert not builder.open_ended, kind
            assert [name for name, text in builder.types.items() if options.type_of(text) is Any] == [], kind


def test_a_new_kind_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until `make schemas` puts its options into `options.json`, they are checked as those of a plug-in."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("def build(source, width): ...")
    monkeypatch.setattr(options, "PACKAGE", tmp_path)
    assert planned_options("model", "net", {"width": 3}) == {"width": 3}
    config = Config.model_validate({"model": {"kind": "net"}})
    assert options.plug_ins(config) == [("model.kind", "models", "net")]
    with pytest.raises(ConfigError, match=r"model\.kind='nett' is unknown; allowed: emulated, gpt"):
        check(Draft({"model": {"kind": "nett"}}))


def test_defaults_are_filled_in() -> None:
    filled = planned_options("model", "mlp", {"hidden": [3]})
    assert filled == {"hidden": (3,), "activation": "relu", "dropout": 0.0}


def test_a_size_is_its_options() -> None:
    named = planned_options("model", "gpt", {"size": "124M", "dropout": 0.1})
    assert named == planned_options("model", "gpt", {"layers": 12, "width": 768, "heads": 12, "dropout": 0.1})
    assert planned_options("model", "gpt", {"size": None}) == planned_options("model", "gpt", {})


def build(source: object, depth: int = 1, *, rates: tuple[float, ...], own: Path | None = None) -> None: ...
def open_ended(*, n_layer: int = 2, **rest: Any) -> None: ...


class Net:
    def __init__(self, width: int = 8, flag=True) -> None: ...  # type: ignore[no-untyped-def]


def test_names_types_and_defaults_come_from_the_signature() -> None:
    assert inspected(build).types == {"depth": "int", "rates": "tuple[float, ...]", "own": "Path | None"}
    assert inspected(build).defaults == {"depth": 1, "own": None}
    assert inspected(Net).types == {"width": "int", "flag": "Any"}
    assert inspected(open_ended).open_ended
    assert check_options(inspected(build), "model", "my:build", {"rates": [1]}) == {"rates": (1.0,)}


@pytest.mark.parametrize(
    ("of", "given", "message"),
    [
        (build, {}, r"^model\.rates is needed by model\.kind=my:net$"),
        (build, {"rates": [1], "deph": 2}, r"^model\.deph is not an option .*did you mean 'depth'\?"),
        (build, {"rates": ["x"]}, r"^model\.rates\.0='x': a number is needed$"),
        (open_ended, {"n_layr": 3}, r"^model\.n_layr is not named .*did you mean 'n_layer'\?"),
    ],
)
def test_a_bad_option_is_named(of: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(inspected(of), "model", "my:net", given)


PLUG_INS = """
from torch import nn
print("a plug-in that prints")
def build(source, *, layers: int = 3): ...
def strategy(*, depth: int = 3): ...
def scheme(group, *, ratio: float = 0.5): ...
class Sink: ...
"""


def checked(folder: Path, **sections: Any) -> tuple[int, str]:
    draft = Draft({"train": {"steps": 1, "local_batch_size": 1}, **sections})
    ran = subprocess.run(
        [sys.executable, "-m", "disttrain.engine.plug_in_check"],
        input=json.dumps([check(draft).as_dict()]), capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout


def test_plug_ins_are_imported_before_a_submission(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUG_INS)
    good = {"model": {"kind": "mine:build", "layers": 4}, "telemetry": {"sinks": ["mine:Sink"]}}
    assert checked(tmp_path, **good) == (0, "")
    code, out = checked(tmp_path, model={"kind": "mine:build", "layer": 4})
    assert (code, out.partition(";")[0]) == (2, "model.layer is not an option of model.kind=mine:build")
    code, out = checked(tmp_path, model={"kind": "mine:biuld"})
    assert (code, out[:50]) == (2, "model.kind='mine:biuld' cannot be imported: module")


def test_the_check_before_a_submission_gets_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, default = Draft(), Config().as_dict()
    for key in options.PACKAGE_OF:
        draft.set(key, "mine:name" if isinstance(get_key(default, key), str) else ["mine:name"], "--set")
    config, given = Config.model_validate(draft.data), []
    monkeypatch.setattr(before, "_unchecked", given.extend)
    before.check_plug_ins([SimpleNamespace(config=config)])
    names = options.plug_ins(Config.model_validate(json.loads(given[0])))
    assert names == options.plug_ins(config)
    assert [key for key, _, _ in names] == [*options.PACKAGE_OF]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"parallel": {"strategy": "mine:strategy", "options": {"depht": 1}}},
        r"^parallel\.options\.depht is not an option of parallel\.strategy=mine:strategy; did you mean",
    ),
    (
        {"parallel": {"gradient_communication": {"scheme": "mine:scheme", "options": {"ratio": "x"}}}},
        r"^parallel\.gradient_communication\.options\.ratio='x': a number is needed$",
    ),
    (
        {"model": {"kind": "lacks:Net"}, "telemetry": {"sinks": ["wrong:Sink"]}},
        r"wrong\.py:2: telemetry\.sinks=wrong:Sink: invalid syntax$",
    ),
    ({"telemetry": {"fields": ["mine:build"]}}, r"^telemetry\.fields=mine:build is no disttrain\."),
    ({"compile": {"scope": "model", "backend": "inductr"}}, "did you mean 'inductor'"),
]


@pytest.fixture
def plug_in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(PLUG_INS)
    (tmp_path / "lacks.py").write_text("import flash_attn_of_the_cluster")
    (tmp_path / "asks.py").write_text("raise RuntimeError('no GPU')")
    (tmp_path / "wrong.py").write_text("x = 1\ndef build(:")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


@pytest.mark.usefixtures("plug_in_folder")
@pytest.mark.parametrize(("sections", "message"), REFUSED)
def test_what_no_job_could_use_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(unchecked(Config.model_validate(sections)))


@pytest.mark.usefixtures("plug_in_folder")
def test_what_only_the_job_can_import_is_a_warning() -> None:
    both = {"model": {"kind": "lacks:Net"}, "telemetry": {"sinks": ["asks:Sink", "mine:Sink"]}}
    lacking = "ModuleNotFoundError: No module named 'flash_attn_of_the_cluster'"
    assert list(unchecked(Config.model_validate(both))) == [
        f"model.kind=lacks:Net: {lacking}",
        "telemetry.sinks=asks:Sink: RuntimeError: no GPU",
    ]


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"kind": "flops"}},
        {"model": {"kind": "my-plug.ins:build"}},
        {"model": {"kind": "../data/text"}},
        {"data": {"kind": "__init__"}},
        {"parallel": {"strategy": "base"}},
        {"parallel": {"gradient_communication": {"scheme": "__init__"}}},
        {"telemetry": {"sinks": ["__init__"]}},
        {"telemetry": {"fields": ["x"]}},
        {"telemetry": {"fields": ["a.b:C:D"]}},
    ],
)
def test_a_module_that_builds_nothing_is_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"is unknown; allowed: |is not of the form package\.module:name"):
        check(Draft(sections))


def sized(width: int, norm: callable = len, own: list[Net] = ()) -> None: ...  # type: ignore[valid-type]


def test_other_types_and_sizes_of_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SIZES", {"S": {"width": 3}})
    assert check_options(inspected(sized), "model", "my:sized", {"size": "S"}) == {"width": 3}
    with pytest.raises(ConfigError, match=r"^model\.size='T': allowed for my:sized: S"):
        check_options(inspected(sized), "model", "my:sized", {"size": "T"})
