"""Generic resources in the spellings of sites and of Slurm's commands."""

from __future__ import annotations

import pytest

from jobs.schedulers.slurm.commands import Gres, count_gpus, gpus_of_tres, parse_gpus, parse_gres


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("gpu", [Gres("gpu", None, 1)]),
        ("gpu:4", [Gres("gpu", None, 4)]),
        ("gpu:h100", [Gres("gpu", "h100", 1)]),
        ("gpu:h100:4", [Gres("gpu", "h100", 4)]),
        ("GPU:H100:4", [Gres("gpu", "H100", 4)]),
        ("gpu:nvidia_h100_80gb_hbm3:4(S:0-1)", [Gres("gpu", "nvidia_h100_80gb_hbm3", 4)]),
        ("gpu:h100:4(IDX:0,2-3),nvme:1(IDX:0)", [Gres("gpu", "h100", 4), Gres("nvme", None, 1)]),
        ("gpu:a100_3g.20gb:2,gpu:1g.5gb+me", [Gres("gpu", "a100_3g.20gb", 2), Gres("gpu", "1g.5gb+me", 1)]),
        ("gres:gpu:4", [Gres("gpu", None, 4)]),
        ("gres/gpu:h100=4", [Gres("gpu", "h100", 4)]),
        ("gpu:no_consume:4", [Gres("gpu", None, 4)]),
        ("lustre:2K, shard:8", [Gres("lustre", None, 2048), Gres("shard", None, 8)]),
        ("no_consume", [Gres("no_consume", None, 1)]),
        ("(null)", []),
        ("N/A", []),
        ("", []),
    ],
)  # fmt: skip
def test_lists_of_generic_resources(text: str, entries: list[Gres]) -> None:
    assert parse_gres(text) == entries


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("4", 4), ("h100:4", 4), ("h100=4", 4), ("a100:1,v100:3", 4), ("nvidia_h100_80gb_hbm3:8", 8), ("0", 0)],
)
def test_lists_of_gpus_alone(text: str, gpus: int) -> None:
    assert count_gpus(parse_gpus(text)) == gpus


def test_only_entries_of_gpus_are_counted() -> None:
    assert count_gpus(parse_gres("shard:8,nvme:1")) is None
    assert count_gpus(parse_gres("nvme:1,gpu:h100:2,gpu:a100:2")) == 4


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("billing=8,cpu=8,gres/gpu=4,mem=1G,node=2", 4),
        ("gres/gpu:a100=2,gres/gpu:h100=3", 5),
        ("gres/gpu=5,gres/gpu:a100=2,gres/gpu:h100=3", 5),
        ("billing=8,cpu=8,gres/gpumem=80G", None),
        ("", None),
    ],
)
def test_gpus_of_an_allocation(tres: str, gpus: int | None) -> None:
    assert gpus_of_tres(tres) == gpus
