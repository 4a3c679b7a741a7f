"""Counted FLOPs against hand formulas; peaks of devices; utilization, which is never a wrong one."""

import pytest
import torch
from torch import nn

from disttrain.models import flops, gpt, peaks, resnet
from disttrain.models.flops import CONVOLUTION, MATMUL, flops_per_sample
from disttrain.records.dataset import DataShape
from disttrain.runtime.device import use_tf32
from disttrain.telemetry import summary
from disttrain.telemetry.facts import RunFacts
from tests.support.small_models import CLASSES, FEATURES, Net

SAMPLE = torch.zeros(FEATURES)
NET = {MATMUL: 3 * 2 * (FEATURES * 16 + 16 * CLASSES)}


def a_gpt(length=32, **sizes):
    model = gpt.build(DataShape(task="language", shape=(length,), classes=100), **sizes)
    return model, torch.zeros(length, dtype=torch.int64)


def a_resnet(depth, width, size):
    shape = DataShape(task="classification", shape=(3, size, size), classes=10)
    return resnet.build(shape, depth=depth, width=width), torch.zeros(shape.shape)


def test_two_linear_layers_on_the_cpu_and_without_memory():
    assert flops_per_sample(Net(16), SAMPLE) == NET
    assert flops_per_sample(Net(16).to("meta"), SAMPLE) == NET


def test_a_decoder_is_the_formula_of_the_field():
    """6 x matrix parameters + 12 x layers x width x length, per token (PaLM, appendix B)."""
    layers, width, length = 3, 64, 32
    model, tokens = a_gpt(length, layers=layers, width=width)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() >= 2)  # the tied head counts, once
    expected = {MATMUL: length * (6 * matrices + 12 * layers * width * length)}
    assert flops_per_sample(model, tokens) == expected


def test_a_resnet_50_is_as_published():
    """4.1 billion multiply-adds for one image of 224 pixels (He et al. give 3.8 with stride in the 1x1)."""
    counted = flops_per_sample(*a_resnet(50, 64, 224))
    assert sum(counted.values()) / 3 / 2 == pytest.approx(4.1e9, rel=0.02)
    assert counted[MATMUL] == 3 * 2 * 2048 * 10


@pytest.mark.parametrize("training", [True, False])
def test_counting_changes_nothing(training):
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    flops_per_sample(model, SAMPLE)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_without_counted_operators_has_no_flops():
    assert flops_per_sample(nn.Tanh(), SAMPLE) == {}


def on_a_gpu_alone(outputs):
    assert outputs.is_cuda
    return outputs


class Reading(nn.Linear):
    """A layer, then `reads`; it keeps a tensor of its first pass."""

    kept = None

    def __init__(self, reads):
        super().__init__(FEATURES, FEATURES, device="meta")
        self.reads = reads

    def forward(self, inputs):
        outputs = super().forward(inputs)
        self.kept = torch.ones(FEATURES, device=inputs.device) if self.kept is None else self.kept
        return self.reads(outputs) * self.kept


@pytest.mark.parametrize(
    ("reads", "counted"),
    [
        (lambda y: y, {MATMUL: 3 * 2 * FEATURES**2}),
        (lambda y: y * y.sum().item(), {}),
        (lambda y: y @ y.double(), {}),
        (on_a_gpu_alone, {}),
    ],
)
def test_a_count_by_shapes_is_whole_or_none_and_leaves_the_model_as_it_was(reads, counted):
    model = Reading(reads)
    assert flops_per_sample(model, SAMPLE) == counted
    assert (model.training, model.kept) == (True, None)


# --- peaks ---


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("A100-SXM4-40GB", 312.0),  # as older drivers have it
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("AMD Instinct MI250X", 191.5),
        *dict.fromkeys(
            (
                "cpu", "", "NVIDIA", "NVIDIA H100", "NVIDIA H100 96GB HBM2e",
                "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU",
                "NVIDIA GeForce RTX 4090 D", "AMD Instinct MI250X/MI250", "NVIDIA L40S-48Q",
            )
        ).items(),
    ],
)  # fmt: skip
def test_a_name_that_only_resembles_a_known_device_has_no_peak(name, bfloat16):
    entry = peaks.find(name)
    assert (entry and entry.tflops["bfloat16"]) == bfloat16


@pytest.mark.parametrize("entry", peaks.TABLE, ids=lambda entry: entry.names[0])
def test_half_the_bits_are_twice_the_dense_rate(entry):
    rates = entry.tflops
    assert rates.get("bfloat16", rates["float16"]) == rates["float16"]
    known = [rates[name] for name in ("float32", "tf32", "float16", "float8") if name in rates]
    assert known == sorted(known)
    for wide, narrow in (("tf32", "float16"), ("float16", "float8")):
        if {wide, narrow} <= rates.keys():
            assert rates[narrow] / rates[wide] == pytest.approx(2, rel=0.025)
    if entry.names[0].startswith(("V100", "T4")):
        assert rates["float16"] / rates["float32"] == pytest.approx(8, rel=0.025)


def test_mixed_work_has_the_peak_of_its_time():
    a100 = peaks.find("NVIDIA A100-SXM4-40GB")
    dtypes = {MATMUL: "float32", CONVOLUTION: "tf32"}
    rate, _ = peaks.combined(a100, {MATMUL: 100, CONVOLUTION: 300}, dtypes)
    assert rate == pytest.approx(400 / (100 / 19.5e12 + 300 / 156e12))
    rate, reason = peaks.combined(a100, {MATMUL: 1}, {MATMUL: "float8"})
    assert (rate, "float8" in reason) == (None, True)


@pytest.fixture
def gpu(monkeypatch):
    """A device of that capability; torch's settings of TF32 are put back."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.version, "hip", None)

    def of(*capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        return torch.device("cuda", 0)

    yield of
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


def test_float32_is_tf32_where_torch_and_the_device_allow_it(gpu):
    model = nn.Linear(2, 2)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    plain = {MATMUL: "float32", CONVOLUTION: "float32"}
    assert flops.arithmetic(model, gpu(8, 0)) == plain | {MATMUL: "tf32"}
    assert flops.arithmetic(model, gpu(7, 5)) == plain
    assert flops.arithmetic(model, torch.device("cpu")) == plain
    for enabled, dtype in ((True, "tf32"), (False, "float32")):
        use_tf32(enabled)
        assert flops.arithmetic(model, gpu(8, 0)) == {MATMUL: dtype, CONVOLUTION: dtype}
        # torch.compile reads this setting
        assert torch.get_float32_matmul_precision() == ("high" if enabled else "highest")


@pytest.mark.parametrize(
    ("device", "model", "work", "autocast", "dtypes", "tflops"),
    [
        ("NVIDIA H200", nn.Linear(2, 2), {MATMUL: 10}, None, {MATMUL: "float32"}, 66.9),
        ("NVIDIA H200", nn.Linear(2, 2).half(), {MATMUL: 10}, None, {MATMUL: "float16"}, 989.4),
        ("NVIDIA H200", nn.Linear(2, 2), {MATMUL: 10}, torch.bfloat16, {MATMUL: "bfloat16"}, 989.4),
        ("NVIDIA H300", nn.Linear(2, 2), {MATMUL: 10}, None, {MATMUL: "float32"}, None),
        ("NVIDIA H200", nn.Linear(2, 2), {}, None, None, None),
        (
            "NVIDIA H200",
            nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2)),
            {MATMUL: 1},
            None,
            None,
            None,
        ),
    ],
)
def test_the_peak_of_a_model_on_a_device(gpu, device, model, work, autocast, dtypes, tflops):
    peak = flops.peak_of(device, model, work, gpu(9, 0), autocast)
    assert peak.dtypes == dtypes
    assert peak.flops_per_s == (tflops and pytest.approx(tflops * 1e12))
    assert (peak.source is None) == (tflops is None) == bool(peak.reason)


# --- in metrics.json ---


@pytest.mark.parametrize(
    ("samples_per_s", "devices", "peak", "mfu"),
    [(2000.0, 4, 1e12, 0.5), (500.0, 1, 1e12, 0.5), (2000.0, 4, None, None), (5000.0, 4, 1e12, None)],
    ids=["own GPUs", "four ranks on one GPU", "no peak", "above the peak"],
)
def test_mfu_is_achieved_over_peak_of_all_devices(samples_per_s, devices, peak, mfu):
    facts = RunFacts({"model_flops_per_sample": 10**9, "peak_flops": peak})
    fields = summary.rates(samples_per_s, 4, devices, facts)
    assert (fields["model_flops_per_s_per_rank"], fields["mfu"]) == (samples_per_s * 10**9 / 4, mfu)


def test_throughput_by_kind_of_sample():
    fields = summary.rates(100.0, 4, 2, RunFacts({}, tokens_per_sample=8))
    names = ["samples_per_s_per_rank", "samples_per_second_per_gpu", "tokens_per_s", "tokens_per_s_per_rank"]
    names += ["tokens_per_s_per_gpu", "throughput_images_per_sec"]
    assert [fields[name] for name in names] == [25, 50, 800, 200, 400, None]
    images = RunFacts({}, samples_are_images=True)
    assert summary.rates(100.0, 4, 2, images)["throughput_images_per_sec"] == 100
    assert set(summary.rates(None, 4, 4, images).values()) == {None}
