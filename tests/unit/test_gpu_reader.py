"""NVML readings, replayed: each field alone, refusals, a GPU that is lost."""

import sys

import pynvml
import pytest
import torch

from disttrain.hardware.fields import FIELDS, throttle_names
from disttrain.hardware.node_sampler import GpuId
from disttrain.hardware.readings import Readings
from disttrain.telemetry.node_sampling import identify
from tests.support.nvml import LOST, WELL, raising

BUS = "00000000:1b:00.0"


def gpu(uuid=WELL, bus=None):
    api = sys.modules["pynvml"]
    return Readings([row for row in FIELDS if row.of == "gpu"], api, GpuId(uuid, bus).handle(api))


def read(uuid=WELL, times=(10.0, 12.0, 13.0, 14.0)):
    """The readings of a GPU, and the values of each field in samples at these times."""
    reader = gpu(uuid)
    samples = [reader.read(now) for now in times]
    return reader, {name: [sample[name] for sample in samples] for name in samples[0]}


def test_each_field_is_null_by_itself_with_its_reason(replay):
    fake = replay()
    reader, values = read()
    assert reader.samples.constants == {
        "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 85_520_809_984, "sm_clock_max_mhz": 1980,
        "power_limit_w": 700,
    }  # fmt: skip
    expected = {
        "power_w": (0, pytest.approx(118.25)),
        "sm_clock_mhz": (2, 1485),
        "temperature_c": (1, 52),
        "ecc_corrected": (3, 4),
    }
    assert {name: values[name][at] for name, (at, _) in expected.items()} == {
        name: value for name, (_, value) in expected.items()
    }
    assert (values["energy_j"][:2], values["energy_j"][3]) == ([0.0, 512.0], 1839.0)
    assert values["xids"][:3] == [[], [], [94]]
    assert values["throttle"] == [["idle"], [], ["power_cap"], ["power_cap", "hw_slowdown", "sw_thermal"]]
    assert values["nvlink_tx_bytes_per_s"] == [None, 512_000_000, 2_048_000_000, 0]
    assert values["nvlink_rx_bytes_per_s"] == [None, 256_000_000, None, 0], "the counter began anew"
    assert values["utilization"] == [0.35, 0.98, None, 1.0], "a passing error costs one value"
    assert values["ecc_uncorrected"] == [None] * 4
    assert reader.samples.errors == {"utilization": "NVMLError_Unknown: Unknown Error"}
    assert reader.samples.unsupported == {
        "ecc_uncorrected": "NVMLError_NoPermission: Insufficient Permissions"
    }
    calls = fake.asked[WELL]
    assert calls["nvmlDeviceGetTotalEccErrors 1 0"] == 1, "a refused field is read once"
    assert calls["nvmlDeviceGetCurrentClocksEventReasons"] == 1, "then by its older name"
    assert calls["nvmlDeviceGetCurrentClocksThrottleReasons"] == 4
    assert throttle_names(0x1004) == ["power_cap", "0x1000"]


def test_an_older_binding_lacks_a_call(replay):
    del replay().nvmlDeviceGetTemperatureV
    reader, values = read()
    assert None not in values["temperature_c"]
    assert "temperature_c" not in reader.samples.unsupported


def test_an_error_of_the_binding_costs_its_value_alone(replay):
    fake, error = replay(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")
    fake.nvmlDeviceGetName = fake.nvmlDeviceGetPowerUsage = fake.nvmlEventSetWait_v2 = raising(error)
    reader, values = read()
    assert values["power_w"] == values["xids"] == [None] * 4
    assert values["utilization"][0] == 0.35
    assert (reader.samples.constants["name"], reader.samples.constants["power_limit_w"]) == (None, 700)
    for name in ("name", "power_w", "xids"):
        assert reader.samples.errors[name] == f"UnicodeDecodeError: {error}"
    assert not {"name", "power_w"} & set(reader.samples.unsupported)


def test_pcie_is_measured_every_tenth_time_where_its_counter_has_32_bits(replay):
    fake = replay()
    reader, values = read(times=range(12))
    assert values["pcie_tx_bytes_per_s"] == [1_500_000, *[None] * 9, 2_500_000, None]
    assert values["pcie_rx_bytes_per_s"][0] == 700_000
    assert reader.slow_method == "20 ms in every 10th sample"
    assert fake.asked[WELL]["nvmlDeviceGetPcieThroughput 0"] == 2
    assert "pcie_tx_bytes_per_s" not in reader.samples.unsupported


def test_pcie_from_a_counter_of_64_bits(replay):
    def counting(session):
        calls = session["gpus"][WELL]["calls"]
        for field in (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES):
            calls[f"nvmlDeviceGetFieldValues {field} 0"] = [{"value": n * 10**9, "type": 3} for n in range(4)]

    replay(counting)
    reader, values = read(times=range(4))
    assert values["pcie_rx_bytes_per_s"] == [None, 10**9, 10**9, 10**9]
    assert reader.slow_method == "counter"


def test_a_device_that_refuses_all_gives_nulls_and_reasons(replay):
    replay(lambda session: session["gpus"][WELL].update(calls={}))
    reader, values = read()
    assert all(samples == [None] * 4 for samples in values.values())
    assert set(reader.samples.unsupported) >= set(values) - {"xids"}
    assert reader.slow_method is None


def test_a_lost_gpu_is_not_read_again(replay):
    fake = replay()
    reader, values = read(LOST)
    assert (reader.samples.lost, values["power_w"][1]) == ("GPU is lost", 500)
    calls = dict(fake.asked[LOST])
    assert set(reader.read(20.0).values()) == {None}
    assert fake.asked[LOST] == calls


def test_gpus_are_found_by_uuid_or_bus_never_by_index(replay, monkeypatch):
    class Properties:
        uuid = WELL.removeprefix("GPU-")
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x1B, 0

    replay().nvmlDeviceGetHandleByIndex = pytest.fail
    assert gpu("MIG-of-a-slice", BUS).samples.constants["name"]
    with pytest.raises(pynvml.NVMLError, match="Not Found"):
        gpu("GPU-none", "00000000:ff:00.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    assert identify(torch.device("cuda", 3)) == GpuId(WELL, BUS)
    assert identify(torch.device("cpu")) is None
