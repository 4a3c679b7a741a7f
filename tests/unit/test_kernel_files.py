"""Reading below a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.fabric.kernel_files import FileTree, natural_order, parse_float, parse_integer


def test_links_stay_within_the_root(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret\n")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/inside").write_text(" text \n")
    (root / "etc/away").symlink_to(tmp_path / "outside")
    (root / "etc/near").symlink_to("inside")
    tree = FileTree(root)
    assert (tree.text("/etc/away"), tree.exists("/etc/away")) == (None, False)
    assert tree.text("/etc/near") == "text"
    assert tree.real_path("/etc/near") == "/etc/inside"
    assert tree.text("/../outside") is None
    assert tree.text("/etc/\0") is None


def test_names_are_in_the_order_of_their_numbers() -> None:
    assert sorted(["mlx5_10", "mlx5_2", "mlx5_bond_0"], key=natural_order) == [
        "mlx5_2",
        "mlx5_10",
        "mlx5_bond_0",
    ]


@pytest.mark.parametrize(
    ("text", "number"),
    [("0x15b3", 0x15B3), ("-1", -1), ("25000", 25000), ("x", None), (None, None), ("²", None), ("0x", None)],
)
def test_integers(text: str | None, number: int | None) -> None:
    assert parse_integer(text) == number


def test_floats() -> None:
    assert parse_float("2.5 GT/s PCIe") == 2.5
    assert parse_float("400 Gb/sec (4X NDR)") == 400
    assert parse_float("Unknown") is None
