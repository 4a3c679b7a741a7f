"""The examples of `docs/architecture.md` work as they stand."""

from __future__ import annotations

import gc
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from disttrain.config import options
from disttrain.config.sections.model import DataConfig, ModelConfig
from disttrain.config.sections.parallel import ParallelConfig
from disttrain.engine import kinds
from disttrain.parallel.base import Mesh, build_strategy
from disttrain.records.run_directory import Attempt
from disttrain.runtime.process_group import World
from disttrain.telemetry import sinks
from disttrain.transforms import load_transform

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    re.match(r"# disttrain/(\S+)\.py", code)[1]: code
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), re.S)
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The examples where the document puts them: as files of the package."""
    for name, code in EXAMPLES.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        module_name = f"disttrain.{name.replace('/', '.')}"
        spec = importlib.util.spec_from_file_location(module_name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module_name, module)
        spec.loader.exec_module(module)
    monkeypatch.setattr(options, "PACKAGE", tmp_path)
    return tmp_path


def test_the_model_and_the_data_source_train_together(installed):
    source = kinds.build_source(DataConfig(kind="parity", bits=4))
    model = kinds.build_model(ModelConfig(kind="linear", bias=False), source)
    assert [p.shape for p in model.parameters()] == [torch.Size([2, 4])]
    inputs, targets = source.train[0]
    assert model(inputs[None]).shape == (1, 2)
    assert targets.dtype == torch.int64
    assert len(source.train) + len(source.valid) == 16


def test_the_transform_computes_the_same_gradients(installed):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU(), torch.nn.Linear(3, 1))
    inputs, gradients = torch.randn(2, 3), []
    forwards: list[int] = []
    model[1].register_forward_hook(lambda *_: forwards.append(1))
    transform = load_transform("recompute")
    for change in (lambda module: module, transform):
        change(model)(inputs).sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert len(forwards) == 3, "the second pass computed the activations twice"


def test_the_strategy_communicates_float16(installed):
    def gradient() -> float:
        strategy = build_strategy("ddp_fp16", ParallelConfig())
        world = World(rank=0, size=1, local_rank=0, local_size=1, device=torch.device("cpu"), backend="gloo")
        model = strategy.apply(torch.nn.Linear(1, 1, bias=False), Mesh(0), world)
        model(torch.full((1, 1), 1 / 3)).sum().backward()
        (weight,) = strategy.parameters(model)
        return weight.grad.item()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert gradient() == torch.tensor(1 / 3).half().item()
    finally:
        # A model that outlives the group would join gloo's threads while it holds the GIL they wait for.
        gc.collect()
        dist.destroy_process_group()


def test_the_sink_writes(installed, tmp_path):
    sink = sinks.open_sink("csv", Attempt(tmp_path, 0))
    sink.scalars(3, {"loss": 2.5})
    sink.close()
    assert (tmp_path / "scalars.csv").read_text() == "3,loss,2.5\n"
