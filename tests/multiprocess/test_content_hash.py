"""One rank reads the data to identify it; the others wait for its hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from disttrain.data.content_hash import shared_content_sha256
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
