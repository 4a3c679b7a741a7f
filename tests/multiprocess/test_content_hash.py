"""One rank reads the data to identify it; the others wait for its hash. Each node compares some places."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from disttrain.build_by_kind import build_source
from disttrain.config.sections.data import DataConfig
from disttrain.data.content_hash import shared_content_sha256
from disttrain.data.training_data import refuse_unequal_data
from disttrain.runtime.process_group import World
from tests.support.ranks import RankFailed

pytestmark = pytest.mark.multiprocess


def hash_of(world: World, path: Path) -> str:
    return shared_content_sha256([path if world.rank == 0 else Path("/nowhere")], world)


def test_one_rank_reads_for_all(two_ranks, tmp_path):
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"abc")
    assert two_ranks.call(hash_of, path) == [hashlib.sha256(b"abc").hexdigest()] * 2


def test_all_ranks_refuse_what_that_one_cannot_read(two_ranks, tmp_path):
    with pytest.raises(RankFailed, match=r"(?s)rank 0:.*No such file.*rank 1:.*No such file"):
        two_ranks.call(hash_of, tmp_path / "gone")


def compare(world: World, paths: list[Path]) -> None:
    """Each rank stands for a node, with a file of its own."""
    path = str(paths[world.rank])
    config = DataConfig(kind="tokens", path=path, vocab=256, seq_len=8, dtype="uint8", valid_share=0)
    refuse_unequal_data(build_source(config, world), world)


def test_a_node_with_other_files_of_the_same_size_is_refused(two_ranks, tmp_path):
    one, same, other = (tmp_path / name for name in ("one.bin", "same.bin", "other.bin"))
    tokens = bytes(range(256)) * 4096
    one.write_bytes(tokens)
    same.write_bytes(tokens)
    other.write_bytes(tokens[: 1 << 19] + tokens[: 1 << 19][::-1])
    two_ranks.call(compare, [one, same])
    with pytest.raises(RankFailed, match="files of rank 1 have other content than rank 0's"):
        two_ranks.call(compare, [one, other])
