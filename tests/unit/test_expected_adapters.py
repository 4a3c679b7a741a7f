"""Adapters that NCCL should use: those for computing, within the settings of user and site."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jobs.fabric.choose_adapters import expected_adapters, expected_ports
from jobs.fabric.detect import detect
from jobs.fabric.software import Process
from tests.support.fabric_trees import tree


def ports(kind: str, folder: Path, **settings: str) -> list[str]:
    return list(expected_ports(detect(tree(kind, folder), Process()), settings))


def numbered(*numbers: int) -> list[str]:
    return [f"mlx5_{number}/1" for number in numbers]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, numbered(*range(8))),  # mlx5_8 is as fast, but for storage
        ({"NCCL_IB_HCA": "mlx5"}, numbered(*range(8))),
        ({"NCCL_IB_HCA": "=mlx5_1:1,mlx5_2:2"}, numbered(1)),
        ({"NCCL_IB_HCA": "^=mlx5_0,mlx5_9"}, numbered(*range(1, 8))),
        ({"NCCL_IB_HCA": "=mlx5_8,mlx5_9"}, numbered(8, 9)),  # the user wants the others
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_IB_DISABLE": "01 "}, []),
        ({"NCCL_IB_DISABLE": "0"}, numbered(*range(8))),
        ({"NCCL_IB_DISABLE": "0 "}, numbered(*range(8))),
        ({"NCCL_IB_DISABLE": "0\r"}, numbered(*range(8))),
        ({"NCCL_IB_DISABLE": ""}, numbered(*range(8))),
        ({"NCCL_NET": "Socket"}, []),
    ],
)
def test_adapters_for_computing_within_the_settings(
    tmp_path: Path, settings: dict[str, str], found: list[str]
) -> None:
    assert ports("hdr_mixed", tmp_path, **settings) == found


def test_dead_and_degraded_adapters_are_not_expected(tmp_path: Path) -> None:
    assert ports("dead_hca", tmp_path) == numbered(0, 1, 2, 4, 5, 7)


def test_lists_of_hcas_do_not_apply_to_efa(tmp_path: Path) -> None:
    fabric = detect(tree("efa_p5", tmp_path), Process())
    chosen = expected_adapters(fabric, {"NCCL_IB_HCA": "=mlx5_0"})
    assert chosen == fabric.compute_adapters
    assert len(chosen) == 32


def test_without_adapters_none_is_expected(tmp_path: Path) -> None:
    assert ports("ethernet_25g", tmp_path) == []


def test_the_switch_of_nccls_own_transport_does_not_apply_to_efa(tmp_path: Path) -> None:
    fabric = detect(tree("efa_p5", tmp_path), Process())
    assert len(expected_adapters(fabric, {"NCCL_IB_DISABLE": "1"})) == 32


def test_a_slower_port_that_the_user_names_is_expected_at_its_rate(tmp_path: Path) -> None:
    fabric = detect(tree("hdr_mixed", tmp_path), Process())
    first = fabric.adapters[0]
    slower = dataclasses.replace(first.ports[0], number=2, rate_gbit_per_s=100.0)
    two_ports = dataclasses.replace(first, ports=(*first.ports, slower))
    settings = {"NCCL_IB_HCA": f"={first.name}:2"}
    fabric = dataclasses.replace(fabric, adapters=(two_ports, *fabric.adapters[1:]))
    assert expected_ports(fabric, settings) == (f"{first.name}/2",)
    assert [each.rate_gbit_per_s for each in expected_adapters(fabric, settings)] == [100.0]
