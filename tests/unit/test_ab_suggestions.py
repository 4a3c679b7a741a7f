"""The variables that an A/B experiment without arguments compares."""

from __future__ import annotations

from jobs.arms.plan import suggestions
from jobs.fabric.detect import detect
from tests.support.fabric_trees import tree


def test_a_fast_ethernet_has_variables_for_speed_alone(tmp_path):
    fabric = detect(tree("ethernet_25g", tmp_path))
    assert suggestions(fabric, 2, 4) == {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
    assert suggestions(fabric, 1, 4) == {}
    assert suggestions(fabric, 2, 0) == {}


def test_variables_for_correct_data_and_names_of_devices_are_left_out(tmp_path):
    found = suggestions(detect(tree("cxi", tmp_path)), 2, 4)
    assert found
    assert not {"NCCL_NET", "NCCL_LL128_C2C", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG"} & set(found)


def test_most_networks_have_none(tmp_path):
    assert suggestions(detect(tree("ndr", tmp_path)), 2, 8) == {}
