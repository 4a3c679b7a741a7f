"""Options of models and data, and plug-ins: found by name, checked, imported before a submission, built."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from disttrain.config import options
from disttrain.config.config_tree import Config
from disttrain.config.dotted_keys import get_key
from disttrain.config.options import check_options, inspected, planned_options
from disttrain.config.parsing import Draft
from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.data import digits
from disttrain.engine.kinds import build_model, build_source
from disttrain.engine.plug_in_check import unchecked
from disttrain.errors import ConfigError
from jobs.submission.before import check_plug_ins


@pytest.mark.parametrize(("section", "package"), options.BUILT_SECTIONS.items())
def test_every_builder_of_ours_declares_plain_options(section, package):
    for kind, builder in options.built_in(package).items():
        assert not builder.open_ended, kind
        assert Any not in map(options.type_of, builder.types.values()), kind


def test_a_new_kind_is_one_file(tmp_path, monkeypatch):
    """Until `make schemas` puts its options into `options.json`, they are checked as those of a plug-in."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("def build(source, width): ...")
    monkeypatch.setattr(options, "PACKAGE", tmp_path)
    assert options.unknown_name("model.kind", "models", "net") is None
    assert planned_options("model", "net", {"width": 3}) == {"width": 3}
    assert options.plug_ins(Config.model_validate({"model": {"kind": "net"}})) == [
        ("model.kind", "models", "net")
    ]


@pytest.mark.parametrize(
    ("kind", "given", "planned"),
    [
        ("mlp", {"hidden": [3]}, {"hidden": (3,), "activation": "relu", "dropout": 0.0}),
        (
            "gpt",
            {"size": "124M", "dropout": 0.1},
            planned_options("model", "gpt", {"layers": 12, "width": 768, "heads": 12, "dropout": 0.1}),
        ),
        ("gpt", {"size": None}, planned_options("model", "gpt", {})),
        ("my:model", {"size": "x"}, {"size": "x"}),
    ],
)
def test_defaults_and_sizes_of_a_built_in_kind_are_filled_in(kind, given, planned):
    assert planned_options("model", kind, given) == planned


SIZES = {"S": {"depth": 3}}


def build(
    source, depth: int = 1, *, rates: tuple[float, ...], norm: callable = len, own: Path | None = None
): ...
def open_ended(*, n_layer: int = 2, **rest): ...


def test_names_types_and_defaults_come_from_the_signature():
    builder = inspected(build)
    assert [*builder.types] == ["depth", "rates", "norm", "own"]
    assert (builder.types["rates"], builder.defaults["own"]) == ("tuple[float, ...]", None)
    assert check_options(builder, "model", "my:net", {"rates": [1], "size": "S"}) == {
        "rates": (1.0,),
        "depth": 3,
    }
    assert check_options(inspected(open_ended), "model", "my:net", {"other": 3}) == {"other": 3}


@pytest.mark.parametrize(
    ("of", "given", "message"),
    [
        (build, {}, r"^model\.rates is needed by model\.kind=my:net$"),
        (build, {"rates": [1], "deph": 2}, r"^model\.deph is not an option .*did you mean 'depth'"),
        (build, {"rates": ["x"]}, r"^model\.rates\.0='x'"),
        (build, {"rates": [1], "size": "T"}, r"^model\.size='T': .*: S"),
        (build, {"rates": [1], "size": "S", "depth": 1}, r"^model\.size=S sets model\.depth=3"),
        (open_ended, {"n_layr": 3}, r"^model\.n_layr is not named .*did you mean 'n_layer'"),
    ],
)
def test_a_bad_option_is_named(of, given, message):
    with pytest.raises(ConfigError, match=message):
        check_options(inspected(of), "model", "my:net", given)


PLUG_INS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
print("a plug-in that prints")

class Net(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.layer = nn.Linear(width, width)

def build(source, *, scale: int = 1):
    return nn.Linear(source.shape[0], source.classes * scale)

def measurements(*, samples: int = 6):
    return TensorDataset(torch.zeros(samples, 5), torch.zeros(samples, 2))

class Labelled(TensorDataset):
    classes = ["cat", "dog"]

    def __init__(self, named: bool = True):
        super().__init__(torch.zeros(6, 3), torch.zeros(6, dtype=torch.int64))
        if not named:
            self.classes = None

def number(a=1): return 5
def strategy(*, depth: int = 3): ...
def scheme(group, *, ratio: float = 0.5): ...
class Sink: ...
value = 5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Modules of the user's own on the path: good, lacking, raising and wrong ones."""
    modules = {
        "mine": PLUG_INS,
        "lacks": "import flash_attn_of_the_cluster",
        "raises": "raise RuntimeError('no GPU')",
        "wrong": "x = 1\ndef build(:",
    }
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def planned(**sections):
    return SimpleNamespace(config=Config.model_validate(sections))


@pytest.mark.usefixtures("mine")
def test_plug_ins_are_imported_before_a_submission():
    """In another process; what they print is no part of the answer."""
    good = {"model": {"kind": "mine:build", "scale": 4}, "telemetry": {"sinks": ["mine:Sink"]}}
    with pytest.raises(ConfigError, match=r"^model\.scal is not an option of model\.kind=mine:build"):
        check_plug_ins([planned(**good), planned(model={"kind": "mine:build", "scal": 4})])


def test_the_check_before_a_submission_gets_every_name():
    draft, default = Draft(), Config().as_dict()
    for key in options.PACKAGE_OF:
        draft.set(key, "gone:name" if isinstance(get_key(default, key), str) else ["gone:name"], "--set")
    lines = check_plug_ins([planned(**draft.data)] * 2)
    assert [line.partition("=")[0] for line in lines] == [*options.PACKAGE_OF]
    assert all("only the job can check" in line for line in lines)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"parallel": {"strategy": "mine:strategy", "options": {"depht": 1}}},
            r"^parallel\.options\.depht is not an option of parallel\.strategy=mine:strategy",
        ),
        (
            {"parallel": {"gradient_communication": {"scheme": "mine:scheme", "options": {"ratio": "x"}}}},
            r"^parallel\.gradient_communication\.options\.ratio='x'",
        ),
        ({"data": {"kind": "mine:measurements", "sample": 1}}, r"^data\.sample is not an option"),
        ({"model": {"kind": "lacks:Net"}, "data": {"kind": "wrong:build"}}, r"wrong\.py:2: data\.kind"),
        ({"telemetry": {"fields": ["mine:build"]}}, r"^telemetry\.fields=mine:build"),
        ({"compile": {"scope": "model", "backend": "inductr"}}, "did you mean 'inductor'"),
    ],
)  # fmt: skip
def test_what_no_job_could_use_is_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        list(unchecked(Config.model_validate(sections)))


@pytest.mark.usefixtures("mine")
def test_what_only_the_job_can_import_is_a_warning():
    sections = {"model": {"kind": "lacks:Net"}, "telemetry": {"sinks": ["raises:Sink", "mine:Sink"]}}
    assert list(unchecked(Config.model_validate(sections))) == [
        "model.kind=lacks:Net: ModuleNotFoundError: No module named 'flash_attn_of_the_cluster'",
        "telemetry.sinks=raises:Sink: RuntimeError: no GPU",
    ]


# --- built ---


def test_options_reach_the_builder():
    source = build_source(DataConfig(kind="synthetic", shape=[2, 3], classes=4, samples=9))
    assert (source.shape, source.classes, len(source.train)) == ((2, 3), 4, 9)
    model = build_model(ModelConfig(kind="mlp", hidden=[5]), source)
    assert [tuple(p.shape) for p in model.parameters()] == [(5, 6), (5,), (4, 5), (4,)]


@pytest.mark.usefixtures("mine")
def test_any_module_and_any_dataset_by_import_path():
    source = digits.build()
    assert build_model(ModelConfig(kind="mine:Net", width=3), source).layer.in_features == 3
    assert build_model(ModelConfig(kind="mine:build", scale=2), source).out_features == 20
    assert isinstance(build_model(ModelConfig(kind="torch.nn:Flatten"), source), nn.Flatten)
    regression = build_source(DataConfig(kind="mine:measurements", samples=8))
    assert (regression.task, regression.shape, regression.classes) == ("regression", (5,), 2)
    assert (regression.record.train_samples, regression.record.valid_samples) == (8, 0)
    labelled = build_source(DataConfig(kind="mine:Labelled"))
    assert (labelled.task, labelled.shape, labelled.classes) == ("classification", (3,), 2)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(kind="nowhere:Net"), r"model\.kind='nowhere:Net' cannot be imported"),
        (ModelConfig(kind="mine:Nett"), r"model\.kind='mine:Nett' cannot be imported"),
        (ModelConfig(kind="mine:value"), r"model\.kind='mine:value' is int"),
        (ModelConfig(kind="mine:number"), r"model\.kind=mine:number returned int"),
        (ModelConfig(kind="mine:number", b=1), r"model\.b is not an option of"),
        (DataConfig(kind="mine:number"), r"data\.kind=mine:number returned int"),
        (DataConfig(kind="mine:number", b=1), r"data\.b is not an option of"),
        (DataConfig(kind="mine:Labelled", named=False), "attribute `classes`"),
        (DataConfig(kind="torch.utils.data:Dataset"), "map-style pairs of tensors"),
    ],
)
def test_what_cannot_be_built_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build_model(config, digits.build()) if isinstance(config, ModelConfig) else build_source(config)
