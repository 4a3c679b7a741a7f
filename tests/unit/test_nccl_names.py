"""Lists of NCCL_SOCKET_IFNAME and NCCL_IB_HCA: names, prefixes, exclusion, ports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.records.nccl_names import permits

ALL = ["mlx5_1", "mlx5_10", "mlx5_2", "eth0"]


@pytest.mark.parametrize(
    ("value", "permitted"),
    [
        *((value, ALL) for value in ("", ",", "=")),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("^mlx5_1", ["mlx5_2", "eth0"]),
        ("^=mlx5_1", ["mlx5_10", "mlx5_2", "eth0"]),
        ("=^mlx5_1", []),  # the name is `^mlx5_1`
        ("eth,mlx5_2", ["mlx5_2", "eth0"]),
        ("mlx5_2:1:0:0", ["mlx5_2"]),  # port, rail, plane
    ],
)
def test_names(value, permitted):
    assert [name for name in ALL if permits(value, name)] == permitted


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        ("mlx5_1", [1, 2]),
        ("mlx5_1:2:0", [2]),
        ("mlx5_1:1,mlx5_1:2", [1, 2]),
        ("^mlx5_1:1", [2]),
        ("=mlx5_1:", []),  # NCCL reads an absent number as 0
    ],
)
def test_ports(value, ports):
    assert [port for port in (1, 2) if permits(value, "mlx5_1", port)] == ports


@given(st.text(max_size=12), st.text(max_size=6), st.none() | st.integers(0, 9))
def test_any_text_is_read_and_exclusion_is_the_opposite(value, name, port):
    if value.strip("=,:^"):
        assert permits(value, name, port) in (True, False)
    names = "".join(character for character in value if character not in ":,=^")
    if names:
        assert permits(names, name) is not permits(f"^{names}", name)
