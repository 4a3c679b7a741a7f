"""The table of peaks, and utilisation: never a wrong one."""

import pytest
import torch
from torch import nn

from disttrain.models import flops, peaks
from disttrain.models.flops import CONVOLUTION, MATMUL
from disttrain.runtime.device import use_tf32
from disttrain.telemetry import summary
from disttrain.telemetry.summary import RankSummary

DTYPES = {"float32", "tf32", "bfloat16", "float16", "float8"}


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("A100-SXM4-40GB", 312.0),  # as older drivers have it
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("AMD Instinct MI250X", 191.5),
    ],
)
def test_known_devices(name, bfloat16):
    assert peaks.find(name).tflops["bfloat16"] == bfloat16


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "",
        "NVIDIA",
        "NVIDIA H100",
        "NVIDIA H100 96GB HBM2e",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "AMD Instinct MI250X/MI250",
        "AMD Instinct MI350X",
        "NVIDIA L40S-48Q",
    ],
)
def test_a_name_that_only_resembles_one_has_no_peak(name):
    assert peaks.find(name) is None


def test_the_table_is_sound():
    names = [name.casefold() for entry in peaks.TABLE for name in entry.names]
    assert len(names) == len(set(names))
    for entry in peaks.TABLE:
        assert entry.source
        assert set(entry.tflops) <= DTYPES
        rates = [
            entry.tflops[name] for name in ("float32", "tf32", "float16", "float8") if name in entry.tflops
        ]
        assert rates == sorted(rates), f"{entry.names}: narrower is never slower"
        if "bfloat16" in entry.tflops:
            assert entry.tflops["bfloat16"] == entry.tflops["float16"]


@pytest.mark.parametrize("entry", peaks.TABLE, ids=lambda entry: entry.names[0])
def test_half_the_bits_are_twice_the_rate(entry):
    """Tensor cores do twice the work on half the bits; sparse figures do not fit."""
    for wide, narrow in (("tf32", "float16"), ("tf32", "bfloat16"), ("float16", "float8")):
        if {wide, narrow} <= entry.tflops.keys():
            assert entry.tflops[narrow] / entry.tflops[wide] == pytest.approx(2, rel=0.025)
    if "tf32" not in entry.tflops and entry.names[0].startswith(("V100", "T4")):
        assert entry.tflops["float16"] / entry.tflops["float32"] == pytest.approx(8, rel=0.025)


def test_mixed_work_has_the_peak_of_its_time():
    a100 = peaks.find("NVIDIA A100-SXM4-40GB")
    rate, why = peaks.combined(
        a100, {MATMUL: 100, CONVOLUTION: 300}, {MATMUL: "float32", CONVOLUTION: "tf32"}
    )
    assert rate == pytest.approx(400 / (100 / 19.5e12 + 300 / 156e12))
    assert why == ""
    rate, why = peaks.combined(a100, {MATMUL: 1}, {MATMUL: "float8"})
    assert rate is None
    assert why == "no float8 peak is known for A100-SXM4-40GB (matmul)"


@pytest.fixture
def gpu(monkeypatch):
    """A device of that capability as far as its arithmetic is asked for; torch's settings are kept."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.version, "hip", None)

    def of(*capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        return torch.device("cuda", 0)

    yield of
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


def test_float32_is_tf32_where_torch_may(gpu):
    model = nn.Linear(2, 2)
    assert flops.arithmetic(model, gpu(8, 0)) == {MATMUL: "float32", CONVOLUTION: "tf32"}  # torch's defaults
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    assert flops.arithmetic(model, gpu(8, 0)) == {MATMUL: "tf32", CONVOLUTION: "float32"}
    assert flops.arithmetic(model, gpu(7, 0)) == {MATMUL: "float32", CONVOLUTION: "float32"}
    assert flops.arithmetic(model, torch.device("cpu"))[MATMUL] == "float32"


def test_weights_say_the_dtype_where_it_is_not_float32(gpu):
    assert flops.arithmetic(nn.Linear(2, 2).bfloat16(), gpu(9, 0))[MATMUL] == "bfloat16"
    mixed = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2))
    assert flops.arithmetic(mixed, gpu(9, 0)) is None
    assert flops.peak_of("NVIDIA H200", mixed, {MATMUL: 1}, gpu(9, 0)).reason.startswith("weights of several")


def test_the_peak_under_autocast_is_that_of_its_dtype(gpu):
    model, work = nn.Linear(2, 2), {MATMUL: 10, CONVOLUTION: 5}
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        peak = flops.peak_of("NVIDIA H200", model, work, gpu(9, 0), dtype)
        assert peak.dtypes == {MATMUL: name, CONVOLUTION: name}
        assert peak.flops_per_s == pytest.approx(989.4e12)


@pytest.mark.parametrize(("enabled", "dtype"), [(True, "tf32"), (False, "float32")])
def test_both_kinds_of_work_take_the_precision_of_float32(gpu, enabled, dtype):
    use_tf32(enabled)
    assert flops.arithmetic(nn.Linear(2, 2), gpu(8, 0)) == {MATMUL: dtype, CONVOLUTION: dtype}
    # torch.compile reads these settings
    assert torch.get_float32_matmul_precision() == ("high" if enabled else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == enabled


def test_the_peak_of_a_model_on_a_device(gpu):
    model, device = nn.Linear(2, 2), gpu(9, 0)
    peak = flops.peak_of("NVIDIA H200", model, {MATMUL: 10}, device)
    assert peak.flops_per_s == pytest.approx(66.9e12)
    assert peak.dtypes == {MATMUL: "float32"}
    assert peak.source.startswith("NVIDIA H200 datasheet")
    unknown = flops.peak_of("NVIDIA H300", model, {MATMUL: 10}, device)
    assert (unknown.flops_per_s, unknown.source) == (None, None)
    assert unknown.reason == "no peak is known for device 'NVIDIA H300'"
    assert flops.peak_of("NVIDIA H200", model, {}, device).reason == "the model's FLOPs could not be counted"


# In metrics.json


def test_mfu_is_achieved_over_peak_of_all_devices():
    fields = summary.rates(2000.0, 4, 4, flops_per_sample=10**9, peak_flops=1e12)
    assert (fields["model_flops_per_s_per_rank"], fields["mfu"]) == (5e11, 0.5)
    shared = summary.rates(500.0, 4, 1, flops_per_sample=10**9, peak_flops=1e12)
    assert shared["mfu"] == 0.5, "four ranks share one GPU"


@pytest.mark.parametrize(("samples_per_s", "peak"), [(2000.0, None), (5000.0, 1e12)])
def test_no_peak_or_an_impossible_one_no_mfu_but_flops(samples_per_s, peak):
    fields = summary.rates(samples_per_s, 4, 4, flops_per_sample=10**9, peak_flops=peak)
    assert (fields["model_flops_per_s_per_rank"], fields["mfu"]) == (samples_per_s * 10**9 / 4, None)


def test_throughput_by_kind_of_sample():
    fields = summary.rates(100.0, 4, 2, images=True)
    assert fields["throughput_images_per_sec"] == 100
    assert (fields["samples_per_s_per_rank"], fields["samples_per_second_per_gpu"]) == (25, 50)
    fields = summary.rates(100.0, 4, 2, tokens_per_sample=8)
    names = ("tokens_per_s", "tokens_per_s_per_rank", "tokens_per_s_per_gpu")
    assert [fields[name] for name in names] == [800, 200, 400]
    assert fields["throughput_images_per_sec"] is None
    nothing = summary.rates(None, 4, 4, tokens_per_sample=8, images=True)
    assert set(nothing.values()) == {None}


def test_memory_at_its_peak():
    def rank(device, held, whole=100):
        return RankSummary([], device, 7, held, whole, None)

    def figures(*ranks):
        return list(summary.memory(ranks).values())

    assert figures(rank("a", 30), rank("b", 60)) == [7, 60, 0.6]
    assert figures(rank("a", 50), rank("b", 60), rank("a", 25)) == [7, 60, 0.75]
    assert figures(rank("rank 0", None, None)) == [7, None, None]


def test_why_there_are_no_samples():
    assert summary.usage([])[1] == {"gpu": "telemetry.gpu_every_s is 0"}
