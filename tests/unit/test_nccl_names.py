"""Lists of NCCL_SOCKET_IFNAME and NCCL_IB_HCA: names, prefixes, exclusion, ports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records.nccl_names import parse_names, permits

ALL = ["mlx5_1", "mlx5_10", "mlx5_2", "eth0"]


@pytest.mark.parametrize(
    ("value", "permitted"),
    [
        ("", ALL),
        (",", ALL),
        ("=", ALL),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_", []),
        ("^mlx5_1", ["mlx5_2", "eth0"]),
        ("^=mlx5_1", ["mlx5_10", "mlx5_2", "eth0"]),
        ("=^mlx5_1", []),  # the name is `^mlx5_1`
        ("eth,mlx5_2", ["mlx5_2", "eth0"]),
        ("mlx5_2:1,eth", ["mlx5_2", "eth0"]),
        ("mlx5_2:1:0:0", ["mlx5_2"]),  # port, rail, plane
    ],
)
def test_names(value: str, permitted: list[str]) -> None:
    assert [name for name in ALL if permits(value, name)] == permitted


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        ("mlx5_1", [1, 2]),
        ("mlx5_1:2", [2]),
        ("mlx5_1:2:0", [2]),
        ("mlx5_1:1,mlx5_1:2", [1, 2]),
        ("^mlx5_1:1", [2]),
        ("=mlx5_1:", []),  # NCCL reads an absent number as 0
    ],
)
def test_ports(value: str, ports: list[int]) -> None:
    assert [port for port in (1, 2) if permits(value, "mlx5_1", port)] == ports


NAMES = st.text(st.sampled_from("ab_01"), min_size=1, max_size=4)
LISTS = st.lists(NAMES, min_size=1, max_size=3)


@given(LISTS, NAMES)
def test_exclusion_is_the_opposite(names: list[str], name: str) -> None:
    for listed in (",".join(names), "=" + ",".join(names)):
        assert permits(listed, name) is not permits(f"^{listed}", name)


@given(LISTS, NAMES)
def test_an_exact_list_permits_its_names_and_a_list_of_prefixes_at_least_these(
    names: list[str], name: str
) -> None:
    listed = ",".join(names)
    assert permits(f"={listed}", name) is (name in names)
    assert permits(listed, name) is any(name.startswith(each) for each in names)


@given(LISTS, LISTS, NAMES)
def test_a_longer_list_permits_what_either_part_permits(
    first: list[str], second: list[str], name: str
) -> None:
    either = permits(",".join(first), name) or permits(",".join(second), name)
    assert permits(",".join([*first, *second]), name) is either


@given(st.text(max_size=12), st.text(max_size=6), st.none() | st.integers(0, 9))
def test_any_text_is_read(value: str, name: str, port: int | None) -> None:
    assert permits(value, name, port) in (True, False)
    assert all(entry.name for entry in parse_names(value))
