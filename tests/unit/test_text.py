"""The text source: what is read, how it is split, what is recorded, what is refused."""

import hashlib
import math
import platform

import numpy as np
import pytest

from disttrain.data import text
from disttrain.errors import ConfigError


@pytest.fixture(scope="module")
def stdlib():
    return text.build(seq_len=128)


@pytest.fixture
def folder(tmp_path):
    """Twenty files of 50..430 bytes, no two alike, in a tree."""
    rng = np.random.default_rng(0)
    for index in range(20):
        file = tmp_path / f"part{index % 3}" / f"{index:02d}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(rng.integers(97, 123, 50 + 20 * index, np.uint8).tobytes())
    return tmp_path


def contents(folder):
    return [
        file.read_bytes()
        for file in sorted(folder.rglob("*.txt"), key=lambda f: f.relative_to(folder).as_posix())
    ]


def bytes_of(windows):
    return windows.tokens.tobytes()


def test_default_corpus_is_the_standard_library(stdlib):
    record = stdlib.record
    assert record.name == "python-stdlib"
    assert record.version == platform.python_version()
    assert record.bytes > 3_000_000
    assert 4 < record.unigram_entropy_bits < 5.5
    assert b"def namedtuple(" in bytes_of(stdlib.train) + bytes_of(stdlib.valid)
    assert (stdlib.task, stdlib.shape, stdlib.classes, stdlib.bytes_per_token) == (
        "language",
        (128,),
        256,
        1.0,
    )
    assert len(stdlib.valid.tokens) / record.bytes == pytest.approx(0.05, rel=0.01)
    assert record.train_samples == len(stdlib.train)


def test_default_corpus_is_the_same_each_time(stdlib):
    again = text.build(seq_len=128)
    assert again.record == stdlib.record
    assert bytes_of(again.valid) == bytes_of(stdlib.valid)


def test_the_record_never_names_a_path(folder):
    record = text.build(path=str(folder), seq_len=8).record
    assert str(folder) not in record.model_dump_json()
    assert folder.name not in record.model_dump_json()


def test_split_is_by_whole_files_and_loses_nothing(folder):
    source = text.build(path=str(folder), seq_len=8, valid_share=0.2)
    files = contents(folder)
    train, valid = bytes_of(source.train), bytes_of(source.valid)
    held_out = [content for content in files if content in valid]
    assert valid == b"".join(held_out)
    assert train == b"".join(content for content in files if content not in held_out)
    assert 0.1 < len(valid) / (len(train) + len(valid)) <= 0.2


def test_split_follows_content_not_names(folder):
    valid = bytes_of(text.build(path=str(folder), seq_len=8, valid_share=0.2).valid)
    held_out = {content for content in contents(folder) if content in valid}
    for file in list(folder.rglob("*.txt")):
        file.rename(folder / f"{99 - int(file.stem)}.txt")
    renamed = bytes_of(text.build(path=str(folder), seq_len=8, valid_share=0.2).valid)
    assert renamed != valid  # read in another order, ...
    assert {content for content in contents(folder) if content in renamed} == held_out  # ... the same files


def test_copies_are_read_once(folder):
    before = text.build(path=str(folder), seq_len=8)
    (folder / "copy.txt").write_bytes(contents(folder)[3])
    (folder / "empty.txt").write_bytes(b"")
    after = text.build(path=str(folder), seq_len=8)
    assert after.record.bytes == before.record.bytes


def test_sha256_is_of_the_files_one_after_another(folder):
    record = text.build(path=str(folder), seq_len=8).record
    assert record.sha256 == hashlib.sha256(b"".join(contents(folder))).hexdigest()
    (folder / "part0" / "00.txt").write_bytes(b"changed" * 10)
    assert text.build(path=str(folder), seq_len=8).record.sha256 != record.sha256


def test_pattern_and_hidden_files(folder):
    total = text.build(path=str(folder), seq_len=8).record.bytes
    (folder / "notes.md").write_bytes(b"m" * 1000)
    (folder / ".git").mkdir()
    (folder / ".git" / "index.txt").write_bytes(b"g" * 1000)
    assert text.build(path=str(folder), seq_len=8, pattern="*.txt").record.bytes == total
    assert text.build(path=str(folder), seq_len=8).record.bytes == total + 1000


def test_nothing_but_empty_files_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match=r"nothing to read in data\.path"):
        text.build(path=str(tmp_path))


def test_one_file_is_split_at_its_end(tmp_path):
    file = tmp_path / "book.txt"
    file.write_bytes(bytes(range(100)) * 4)
    source = text.build(path=str(file), seq_len=8, valid_share=0.1)
    assert bytes_of(source.train) == file.read_bytes()[:360]
    assert bytes_of(source.valid) == file.read_bytes()[360:]


def test_no_validation_on_request(folder):
    source = text.build(path=str(folder), seq_len=8, valid_share=0)
    assert source.valid is None
    assert source.record.valid_samples == 0
    assert bytes_of(source.train) == b"".join(contents(folder))


def test_every_byte_is_predicted_once(tmp_path):
    (tmp_path / "abc.txt").write_bytes(b"abcdefghijk")
    train = text.build(path=str(tmp_path), seq_len=3, valid_share=0).train
    pairs = [(bytes(x.tolist()), bytes(y.tolist())) for x, y in (train[i] for i in range(len(train)))]
    assert pairs == [(b"abc", b"bcd"), (b"def", b"efg"), (b"ghi", b"hij")]


def test_fetching_a_batch_equals_fetching_its_samples(stdlib):
    indices = [5, 0, 999, 5]
    for (x, y), index in zip(stdlib.train.__getitems__(indices), indices, strict=True):
        expected_x, expected_y = stdlib.train[index]
        assert x.equal(expected_x)
        assert y.equal(expected_y)


def test_unigram_entropy_against_hand_figures():
    assert text.unigram_entropy_bits([b"abcd" * 10]) == pytest.approx(2)
    assert text.unigram_entropy_bits([b"aa", b"ab"]) == pytest.approx(
        -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    )
    assert text.unigram_entropy_bits([b"aaaa"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/nowhere/at/all"}, r"data\.path='/nowhere/at/all' does not exist"),
        ({"pattern": "*.nothing"}, r"nothing to read in the standard library"),
        (
            {"seq_len": 50_000_000},
            r"data\.seq_len=50000000 needs 50000001 tokens, but the training split has",
        ),
        ({"tokenizer": "byte"}, r"data\.tokenizer='byte' is no folder; allowed: bytes"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        text.build(**options)
    assert "\n" not in str(caught.value)


def test_local_tokenizer_keeps_bits_per_byte_right(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index in range(4):
        (corpus / f"{index}.txt").write_text(f"file {index} says größer things than that. " * 30)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([(corpus / "0.txt").read_text()], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "tokenizer")

    source = text.build(path=str(corpus), seq_len=8, valid_share=0.3, tokenizer=str(tmp_path / "tokenizer"))

    held_out = [
        f for f in corpus.iterdir() if tokenizer.decode(source.valid.tokens.tolist()) == f.read_text()
    ]
    assert len(held_out) == 1
    assert source.bytes_per_token == held_out[0].stat().st_size / len(source.valid.tokens)
    assert source.bytes_per_token > 1.5
    assert source.classes == tokenizer.get_vocab_size()
