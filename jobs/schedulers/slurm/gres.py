"""Generic resources (GRES) in the spellings of Slurm's commands and sites. Pure; standard library only.

| spelling | where |
| --- | --- |
| `gpu:h100:4`, `gpu:4`, `gpu` | `--gres`, gres.conf |
| `gpu:nvidia_h100_80gb_hbm3:4(S:0-1)`, `gpu:h100:4(IDX:0-3)` | sinfo, scontrol |
| `gres/gpu=8`, `gres/gpu:h100=8`, `gres:gpu:4` | AllocTRES, TresPerNode |
| `h100:4`, `4`, `a100:1,v100:3`, `h100=4` | `--gpus-per-node`, `--gpus` |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_COUNT = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)
_SCALES = "KMGTP"
_EMPTY = ("", "(null)", "N/A")
_FLAGS = ("no_consume",)


@dataclass(frozen=True)
class Gres:
    """One entry of a list of generic resources."""

    name: str
    """`gpu`, `shard`, `nvme`; in lower case."""
    type: str | None
    count: int


def parse_gres(text: str) -> list[Gres]:
    """The entries of a list such as `gpu:h100:4(S:0-1),nvme:1`. An entry without a count has one."""
    return [_entry(part) for part in _parts(text)]


def parse_gpus(text: str) -> list[Gres]:
    """The entries of a list of GPUs alone, such as `h100:4` or `4`."""
    return [_entry(f"gpu:{part}") for part in _parts(text)]


def count_gpus(entries: Iterable[Gres]) -> int | None:
    """Number of GPUs; None without an entry of GPUs.

    An entry without a type counts the GPUs of all types where both are given, as in AllocTRES.
    """
    gpus = [each for each in entries if each.name == "gpu"]
    if not gpus:
        return None
    of_all_types = [each.count for each in gpus if each.type is None]
    return of_all_types[0] if of_all_types else sum(each.count for each in gpus)


def gpus_of_tres(text: str) -> int | None:
    """Number of GPUs in AllocTRES: 8 for `billing=8,gres/gpu=8,gres/gpu:h100=8`; None without `gres/gpu`."""
    return count_gpus(_entry(part) for part in _parts(text) if part.startswith("gres/"))


def with_remedy(refusal: str) -> str:
    """A refusal of sbatch, with the next step where the cluster does not know the requested GPUs."""
    if "invalid generic resource" not in refusal.lower():
        return refusal
    return f"{refusal}; if Slurm manages no GPUs of these nodes, give --slurm gpus=none"


def _parts(text: str) -> list[str]:
    listed = re.sub(r"\([^)]*\)", "", "" if text.strip() in _EMPTY else text)  # (S:0-1), (IDX:0,2)
    return [part.strip() for part in listed.split(",") if part.strip()]


def _entry(text: str) -> Gres:
    name, *rest = re.split(r"[:=]", re.sub(r"^gres[/:]", "", text))
    words = [name, *(word for word in rest if word not in _FLAGS)]
    last = _COUNT.fullmatch(words[-1]) if len(words) > 1 else None
    count = 1
    if last is not None:
        count = int(last[1]) * 1024 ** (_SCALES.index(last[2].upper()) + 1 if last[2] else 0)
        words.pop()
    return Gres(words[0].lower(), ":".join(words[1:]) or None, count)
