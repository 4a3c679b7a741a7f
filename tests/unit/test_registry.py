"""What `kind` names is found, called and checked; options read from source are the real signature's."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.engine.kinds import build_model, build_source
from disttrain.errors import ConfigError


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module of the user's own, `my_plugin`, on the path."""
    (tmp_path / "my_plugin.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn
            from torch.utils.data import TensorDataset

            class Net(nn.Module):
                def __init__(self, width: int = 4):
                    super().__init__()
                    self.layer = nn.Linear(width, width)

            def for_source(source, *, scale: int = 1):
                return nn.Linear(source.shape[0], source.classes * scale)

            def measurements(*, samples: int = 6):
                return TensorDataset(torch.zeros(samples, 5), torch.zeros(samples, 2))

            class Labelled(TensorDataset):
                classes = ["cat", "dog"]

                def __init__(self, named: bool = True):
                    super().__init__(torch.zeros(6, 3), torch.zeros(6, dtype=torch.int64))
                    if not named:
                        self.classes = None

            def number(**options):
                return 5

            def strict(a=1):
                return 5

            alias = strict
            value = 5
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_plugin"
    sys.modules.pop("my_plugin", None)


def digits():
    return build_source(DataConfig(kind="digits"))


def test_options_reach_the_builder():
    source = build_source(DataConfig(kind="synthetic", shape=[2, 3], classes=4, samples=9))
    assert (source.shape, source.classes, len(source.train)) == ((2, 3), 4, 9)
    model = build_model(ModelConfig(kind="mlp", hidden=[5]), source)
    assert [tuple(p.shape) for p in model.parameters()] == [(5, 6), (5,), (4, 5), (4,)]


@pytest.mark.usefixtures("plugin")
def test_any_module_by_import_path():
    assert build_model(ModelConfig(kind="my_plugin:Net", width=3), digits()).layer.in_features == 3
    assert build_model(ModelConfig(kind="my_plugin:for_source", scale=2), digits()).out_features == 20
    assert isinstance(build_model(ModelConfig(kind="torch.nn:Flatten"), digits()), nn.Flatten)


@pytest.mark.usefixtures("plugin")
def test_any_dataset_by_import_path():
    regression = build_source(DataConfig(kind="my_plugin:measurements", samples=8))
    assert (regression.task, regression.shape, regression.classes) == ("regression", (5,), 2)
    assert regression.record.train_samples == 8
    labelled = build_source(DataConfig(kind="my_plugin:Labelled"))
    assert (labelled.task, labelled.shape, labelled.classes) == ("classification", (3,), 2)
    assert labelled.valid is None


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(kind="mlp", hiden=[3]), r"model\.hiden is not an option .*did you mean 'hidden'"),
        (ModelConfig(kind="nowhere:Net"), r"model\.kind='nowhere:Net' cannot be imported: No module named"),
        (
            ModelConfig(kind="my_plugin:Nett"),
            r"model\.kind='my_plugin:Nett' cannot be imported: .* no attribute 'Nett'",
        ),
        (ModelConfig(kind="my_plugin:value"), r"model\.kind='my_plugin:value' is int, not a callable"),
        (
            ModelConfig(kind="my_plugin:number"),
            r"model\.kind=my_plugin:number returned int, not an nn\.Module",
        ),
        (
            ModelConfig(kind="my_plugin:alias", b=1),
            r"model\.b is not an option of",
        ),
        (DataConfig(kind="tokens", vocab=5), r"data\.path is needed by data\.kind=tokens"),
        (DataConfig(kind="my_plugin:number"), r"data\.kind=my_plugin:number returned int, not a Source"),
        (DataConfig(kind="my_plugin:Labelled", named=False), r"integer targets need an attribute `classes`"),
        (DataConfig(kind="torch.utils.data:Dataset"), r"needed are map-style pairs of tensors"),
    ],
)
def test_mistakes_are_one_line(config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_model(config, digits()) if isinstance(config, ModelConfig) else build_source(config)
    assert "\n" not in str(caught.value)


def test_builtin_pairs_fit():
    language = build_source(DataConfig(kind="synthetic", task="language", vocab=20, seq_len=8))
    logits = build_model(ModelConfig(kind="gpt", layers=1, width=16, heads=2), language)(
        torch.zeros(2, 8, dtype=int)
    )
    assert logits.shape == (2, 8, 20)
