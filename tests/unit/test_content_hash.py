"""The content hash: every byte counts, at any size, and one rank computes it for all."""

import hashlib

import numpy as np
import pytest
import torch

from disttrain.build_by_kind import build_source
from disttrain.config.sections.data import DataConfig
from disttrain.data import content_hash
from disttrain.data.content_hash import content_sha256, shared_content_sha256
from disttrain.errors import ConfigError
from disttrain.runtime.process_group import World


@pytest.fixture
def _small_blocks(monkeypatch):
    """Content above 1000 bytes is hashed by blocks of 100 bytes."""
    monkeypatch.setattr(content_hash, "_HASHED_AT_ONCE", 1000)
    monkeypatch.setattr(content_hash, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(content_hash, "_PIECE_BYTES", 30)


@pytest.fixture
def files(tmp_path):
    def write(stream, sizes):
        paths = [tmp_path / f"{number}.bin" for number in range(len(sizes))]
        for path, part in zip(paths, np.split(stream, np.cumsum(sizes)[:-1]), strict=True):
            path.write_bytes(part.astype(np.uint8).tobytes())
        return paths

    return write


@pytest.mark.usefixtures("_small_blocks")
def test_small_content_has_the_hash_of_its_bytes(files):
    stream = np.arange(1000) % 251
    expected = hashlib.sha256(stream.astype(np.uint8).tobytes()).hexdigest()
    assert content_sha256(files(stream, [1000])) == expected
    assert content_sha256(files(stream, [1, 0, 999])) == expected


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize("sizes", [[2_000], [400, 1_200, 30, 0, 370]])
def test_each_byte_of_large_content_counts(files, sizes):
    stream = np.arange(2000) % 251
    whole = content_sha256(files(stream, sizes))
    assert content_sha256(files(stream, sizes)) == whole
    for at in (0, 99, 100, 399, 400, 1_599, 1_999):
        changed = stream.copy()
        changed[at] = 255
        assert content_sha256(files(changed, sizes)) != whole
    assert content_sha256(files(stream, [*sizes[:-1], sizes[-1] - 1, 1])) != whole


def test_a_token_file_is_identified_by_its_bytes(files):
    [path] = files(np.arange(1000) % 251, [1000])
    source = build_source(DataConfig(kind="tokens", path=str(path), vocab=256, dtype="uint8", seq_len=10))
    assert source.record.sha256 == content_sha256([path])
    assert source.record.hashed_bytes is None


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    alone = World(0, 1, 0, 1, torch.device("cpu"), None)
    with pytest.raises(ConfigError, match=r"^data: .*No such file"):
        shared_content_sha256([tmp_path / "gone"], alone)
