"""NVML readings, replayed: each field alone, what is refused, a GPU that is lost."""

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


def read(uuid=WELL, times=(10.0, 11.0, 12.0, 13.0)):
    reader = gpu(uuid)
    return reader, [reader.read(now) for now in times]


def test_each_field_as_the_driver_means_it(replay):
    replay()
    reader, (first, second, third, fourth) = read()
    assert reader.samples.constants == {
        "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 85_520_809_984, "sm_clock_max_mhz": 1980,
        "power_limit_w": 700,
    }  # fmt: skip
    assert first["utilization"] == 0.35
    assert first["power_w"] == pytest.approx(118.25)
    assert [s["energy_j"] for s in (first, second, fourth)] == [0.0, 512.0, 1839.0]
    assert third["sm_clock_mhz"] == 1485
    assert second["temperature_c"] == 52
    assert [s["ecc_corrected"] for s in (first, fourth)] == [3, 4]
    assert [s["xids"] for s in (first, second, third)] == [[], [], [94]]


def test_throttle_reasons_have_names(replay):
    replay()
    _, samples = read()
    assert [s["throttle"] for s in samples] == [
        ["idle"],
        [],
        ["power_cap"],
        ["power_cap", "hw_slowdown", "sw_thermal"],
    ]
    assert throttle_names(0x1004) == ["power_cap", "0x1000"]


def test_rates_are_growth_over_time_and_null_where_there_is_none(replay):
    replay()
    _, samples = read(times=(10.0, 12.0, 13.0, 14.0))
    assert [s["nvlink_tx_bytes_per_s"] for s in samples] == [None, 512_000_000, 2_048_000_000, 0]
    assert [s["nvlink_rx_bytes_per_s"] for s in samples] == [None, 256_000_000, None, 0]  # began anew


def test_a_refused_field_is_null_with_its_reason_and_is_asked_once(replay):
    fake = replay()
    reader, samples = read()
    assert [s["ecc_uncorrected"] for s in samples] == [None] * 4
    reason = "NVMLError_NoPermission: Insufficient Permissions"
    assert reader.samples.unsupported == {"ecc_uncorrected": reason}
    assert fake.asked[WELL]["nvmlDeviceGetTotalEccErrors 1 0"] == 1


def test_a_passing_error_costs_one_value(replay):
    replay()
    reader, samples = read()
    assert [s["utilization"] for s in samples] == [0.35, 0.98, None, 1.0]
    assert reader.samples.errors == {"utilization": "NVMLError_Unknown: Unknown Error"}
    assert "utilization" not in reader.samples.unsupported


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ValueError("odd")])
def test_what_the_binding_trips_over_costs_that_value_alone(replay, error):
    fake = replay()
    fake.nvmlDeviceGetName = fake.nvmlDeviceGetPowerUsage = fake.nvmlEventSetWait_v2 = raising(error)
    reader, samples = read()
    assert [s["power_w"] for s in samples] == [s["xids"] for s in samples] == [None] * 4
    assert samples[0]["utilization"] == 0.35
    assert (reader.samples.constants["name"], reader.samples.constants["power_limit_w"]) == (None, 700)
    text = f"{type(error).__name__}: {error}"
    assert {field: reader.samples.errors[field] for field in ("name", "power_w", "xids")} == dict.fromkeys(
        ("name", "power_w", "xids"), text
    )
    assert not {"name", "power_w"} & set(reader.samples.unsupported)


def test_older_names_of_a_call_are_tried(replay):
    fake = replay()
    reader, _ = read()
    assert fake.asked[WELL]["nvmlDeviceGetCurrentClocksEventReasons"] == 1
    assert fake.asked[WELL]["nvmlDeviceGetCurrentClocksThrottleReasons"] == 4
    del fake.nvmlDeviceGetTemperatureV  # as in an old pynvml
    reader, samples = read()
    assert samples[0]["temperature_c"] is not None
    assert "temperature_c" not in reader.samples.unsupported


def test_pcie_is_measured_now_and_then_where_its_counter_has_32_bits(replay):
    fake = replay()
    reader, samples = read(times=range(12))
    assert [s["pcie_tx_bytes_per_s"] for s in samples] == [1_500_000, *[None] * 9, 2_500_000, None]
    assert samples[0]["pcie_rx_bytes_per_s"] == 700_000
    assert reader.slow_method == "20 ms in every 10th sample"
    assert fake.asked[WELL]["nvmlDeviceGetPcieThroughput 0"] == 2
    assert "pcie_tx_bytes_per_s" not in reader.samples.unsupported


def test_pcie_from_its_counter_where_there_is_one(replay):
    def counting(session):
        calls = session["gpus"][WELL]["calls"]
        for field in (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES):
            calls[f"nvmlDeviceGetFieldValues {field} 0"] = [{"value": n * 10**9, "type": 3} for n in range(4)]

    replay(counting)
    reader, samples = read()
    assert [s["pcie_rx_bytes_per_s"] for s in samples] == [None, 10**9, 10**9, 10**9]
    assert reader.slow_method == "counter"


def test_a_device_that_tells_nothing_gives_nulls_and_reasons(replay):
    replay(lambda session: session["gpus"][WELL].update(calls={}))
    reader, samples = read()
    assert set(samples[1].values()) == {None}
    assert set(reader.samples.unsupported) >= set(samples[1]) - {"xids"}
    assert reader.slow_method is None


def test_a_lost_gpu_ends_its_own_samples_only(replay):
    fake = replay()
    reader, samples = read(LOST)
    assert reader.samples.lost == "GPU is lost"
    asked = dict(fake.asked[LOST])
    assert set(reader.read(20.0).values()) == {None}
    assert fake.asked[LOST] == asked
    assert samples[1]["power_w"] == 500


def test_gpus_are_found_by_uuid_or_bus_never_by_index(replay):
    replay().nvmlDeviceGetHandleByIndex = pytest.fail
    assert gpu("GPU-of-a-slice", BUS).samples.constants["name"]
    with pytest.raises(pynvml.NVMLError, match="Not Found"):
        gpu("GPU-none", "00000000:ff:00.0")


def test_torch_devices_in_nvmls_spelling(monkeypatch):
    class Known:
        uuid = "5a2c0b6e-9d1f-4e3a-8b7c-1f2e3d4c5b6a"
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x1B, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Known)
    assert identify(torch.device("cuda", 3)) == GpuId(WELL, BUS)
    assert identify(torch.device("cpu")) is None
