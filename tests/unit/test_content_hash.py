"""The content hash: sizes and 64 places of the files count."""

from pathlib import Path

import numpy as np

from disttrain.config.sections.model import DataConfig
from disttrain.data.tokens import content_sha256
from disttrain.engine.kinds import build_source


def files(folder: Path, stream: np.ndarray, sizes: list[int]) -> list[Path]:
    paths = [folder / f"{number}.bin" for number in range(len(sizes))]
    for path, part in zip(paths, np.split(stream, np.cumsum(sizes)[:-1]), strict=True):
        path.write_bytes(part.astype(np.uint8).tobytes())
    return paths


def test_each_byte_of_a_small_file_and_each_size_count(tmp_path):
    sizes = [2_000]
    stream = np.arange(2000) % 251
    whole = content_sha256(files(tmp_path, stream, sizes))
    assert content_sha256(files(tmp_path, stream, sizes)) == whole
    for at in (0, 99, 100, 399, 400, 1_599, 1_999):
        changed = stream.copy()
        changed[at] = 255
        assert content_sha256(files(tmp_path, changed, sizes)) != whole
    assert content_sha256(files(tmp_path, stream, [400, 1_200, 30, 0, 370])) != whole


def test_large_content_is_read_at_64_places(tmp_path):
    stream = np.zeros(1 << 20)
    whole = content_sha256(files(tmp_path, stream, [1 << 20]))
    for at, counts in ((0, True), (4095, True), (4096, False), ((1 << 20) * 63 // 64, True)):
        changed = stream.copy()
        changed[at] = 255
        assert (content_sha256(files(tmp_path, changed, [1 << 20])) != whole) is counts


def test_a_token_file_is_identified_by_its_content(tmp_path):
    [path] = files(tmp_path, np.arange(1000) % 251, [1000])
    source = build_source(DataConfig(kind="tokens", path=str(path), vocab=256, dtype="uint8", seq_len=10))
    assert source.record.sha256 == content_sha256([path])
