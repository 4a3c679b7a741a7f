"""Text and packed tokens: what is read, how it is split, what is recorded, and input that is refused."""

import hashlib
import math
import os
import platform
import re

import numpy as np
import pytest

from disttrain.data import text, tokens
from disttrain.data.__main__ import main
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json


@pytest.fixture
def folder(tmp_path):
    """Twenty files of 50..430 bytes, no two alike, in a tree, beside files that are left out."""
    rng = np.random.default_rng(0)
    for index in range(20):
        file = tmp_path / "in" / f"part{index % 3}" / f"{index:02d}.txt"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_bytes(rng.integers(97, 123, 50 + 20 * index, np.uint8).tobytes())
    (tmp_path / "in" / ".git").mkdir()
    for name in (".git/index.txt", ".hidden.txt"):
        (tmp_path / "in" / name).write_bytes(b"g" * 1000)
    (tmp_path / "in" / "copy.txt").write_bytes(file.read_bytes())
    (tmp_path / "in" / "empty.txt").touch()
    return tmp_path / "in"


def contents(folder):
    files = sorted(folder.rglob("[!.]*.txt"), key=lambda file: file.relative_to(folder).as_posix())
    return [
        *dict.fromkeys(
            file.read_bytes() for file in files if ".git" not in file.parts and file.stat().st_size
        )
    ]


def split(folder, share):
    """The source, and the bytes of its splits."""
    source = text.build(path=str(folder), seq_len=8, valid_share=share)
    return source, source.train.tokens.tobytes(), source.valid and source.valid.tokens.tobytes()


def test_the_default_corpus_is_the_standard_library():
    source = text.build(seq_len=128)
    record = source.record
    assert (record.name, record.version) == ("python-stdlib", platform.python_version())
    assert record.bytes > 3_000_000
    assert 4 < record.unigram_entropy_bits < 5.5
    assert b"def namedtuple(" in source.train.tokens.tobytes() + source.valid.tokens.tobytes()
    assert (source.task, source.shape, source.classes, source.bytes_per_token) == ("language", (128,), 256, 1)
    assert len(source.valid.tokens) / record.bytes == pytest.approx(0.05, rel=0.01)


def test_whole_files_are_held_out_by_their_content(folder):
    source, train, valid = split(folder, 0.2)
    files = contents(folder)
    held_out = [content for content in files if content in valid]
    assert valid == b"".join(held_out)
    assert train == b"".join(content for content in files if content not in held_out)
    assert 0.1 < len(valid) / (len(train) + len(valid)) <= 0.2
    record = source.record
    assert record.sha256 == hashlib.sha256(b"".join(files)).hexdigest()
    assert record.bytes == len(train) + len(valid)
    assert folder.parent.name not in record.model_dump_json()
    for file in folder.rglob("part*/*.txt"):
        file.rename(folder / f"{99 - int(file.stem)}.txt")
    _, _, renamed = split(folder, 0.2)
    assert renamed != valid  # read in another order, ...
    assert {content for content in files if content in renamed} == {*held_out}  # ... the same files


def test_without_a_share_nothing_is_held_out(folder):
    source, train, valid = split(folder, 0)
    assert (train, valid, source.valid) == (b"".join(contents(folder)), None, None)


@pytest.mark.parametrize(("sizes", "held_out"), [([400], 40), ([60, 2000, 40], 20)])
def test_where_no_file_fits_the_end_of_the_last_one_is_held_out_at_most_half(tmp_path, sizes, held_out):
    for index, size in enumerate(sizes):
        (tmp_path / f"{index}.txt").write_bytes(bytes(range(index, index + 20)) * (size // 20))
    whole = b"".join(contents(tmp_path))
    _, train, valid = split(tmp_path, 0.1 if len(sizes) == 1 else 0.015)
    assert (train, valid) == (whole[:-held_out], whole[-held_out:])


def test_a_pattern_selects_files(folder):
    (folder / "notes.md").write_bytes(b"m" * 1000)
    assert text.build(path=str(folder), seq_len=8, pattern="*.md").record.bytes == 1000


@pytest.mark.parametrize(
    ("files", "bits"),
    [
        ([b"abcd" * 10], 2),
        ([b"aa", b"ab"], -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))),
        ([b"aaaa"], 0),
    ],
)
def test_unigram_entropy_against_hand_figures(files, bits):
    assert text.unigram_entropy_bits(files) == pytest.approx(bits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/nowhere/at/all"}, r"data\.path='/nowhere/at/all' does not exist"),
        ({"pattern": "*.nothing"}, "nothing to read in the standard library"),
        ({"path": "."}, r"nothing to read in data\.path='\.'"),
        ({"seq_len": 50_000_000}, r"data\.seq_len=50000000 .* the training split"),
        ({"tokenizer": "byte"}, r"data\.tokenizer='byte' is no folder"),
    ],
)
def test_bad_options_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ConfigError, match=message):
        text.build(**options)


# --- `python -m disttrain.data pack` ---


@pytest.fixture
def documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text("first")
    lines = ['{"text": "zw\\u00f6lf"}', "", '{"text": "last", "id": 3}', '{"text": ""}']
    (folder / "b" / "c.jsonl").write_text("\n".join(lines))
    (folder / ".hidden").write_text("no")
    (folder / "empty.txt").touch()
    (folder / "dangling.txt").symlink_to("nowhere")
    os.mkfifo(folder / "fifo.txt")
    return folder


@pytest.fixture
def packed(documents):
    assert main(["pack", "in", "--out", "packed"]) == 0
    return documents.parent / "packed"


def tokenized(**options):
    return tokens.build(**{"path": "packed", "seq_len": 4, "valid_share": 0.25} | options)


def test_documents_become_bytes_with_separators(packed, capsys):
    content = "first\0zwölf\0last\0".encode()
    assert (packed / "tokens.bin").read_bytes() == content
    manifest = read_json(packed / "manifest.json")
    assert (manifest["tokens"], manifest["documents"], manifest["text_bytes"]) == (18, 3, 15)
    assert manifest["sha256"] == hashlib.sha256(content).hexdigest()
    assert sorted(path.name for path in packed.parent.iterdir()) == ["in", "packed"]
    assert main(["pack", "in", "--out", "again"]) == 0
    assert "18 tokens of 3 documents, 0.83 bytes per token, vocabulary 256" in capsys.readouterr().out


def test_a_packed_folder_needs_only_its_path(packed):
    source = tokenized()
    manifest = read_json(packed / "manifest.json")
    assert (source.classes, source.record.sha256) == (256, manifest["sha256"])
    assert source.bytes_per_token == 15 / 18
    assert bytes(source.train[0][0].tolist()) == b"firs"
    assert tokenized(valid_path="packed").record.sha256 == manifest["sha256"]
    (packed.parent / "raw.bin").write_bytes(b"x" * 20)
    mixed = tokenized(valid_path="raw.bin")
    assert mixed.record.sha256 == mixed.files_sha256 != manifest["sha256"]


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (None, {"vocab": 300}, r"data\.vocab=300, but the tokens of 'packed' have vocab=256"),
        (None, {"path": "raw.bin", "vocab": 50, "valid_path": "packed"}, r"data\.vocab=50, .* vocab=256"),
        ("tokens.bin", {}, "tokens.bin has 1 bytes, not those of 18 tokens"),
        ("manifest.json", {}, "manifest.json is not that of a packed folder"),
    ],
)
def test_a_folder_that_does_not_fit_its_manifest_or_the_options_is_refused(packed, damage, options, message):
    np.arange(50, dtype=np.uint16).tofile("raw.bin")
    if damage:
        (packed / damage).write_text("3")
    with pytest.raises(ConfigError, match=message):
        tokenized(**options)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({"a.jsonl": '{"text": "x"}\n{"text": '}, [], r"a\.jsonl:2 is not valid JSON"),
        ({"a.jsonl": '{"body": "x"}'}, [], r"a\.jsonl:1 has no text under 'text' \(it has: body\)"),
        ({"a.jsonl": "[1]"}, [], r"a\.jsonl:1 has no text under 'text' \(it has: list\)"),
        ({"a.txt": b"ab\xff"}, [], r"a\.txt' is not UTF-8 text \(byte 2\)"),
        ({"a.txt": ""}, [], "the input holds no text"),
        ({}, [], "holds no files"),
        ({"a.txt": "x"}, ["--tokenizer", "/nowhere"], "--tokenizer='/nowhere' is no folder"),
        ({"a.txt": "x"}, ["--out", "."], r"--out '\.' exists"),
        ({"a.txt": "x"}, ["nowhere"], "'nowhere' does not exist"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, content, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for name, given in content.items():
        (tmp_path / "in" / name).write_bytes(given if isinstance(given, bytes) else given.encode())
    assert main(["pack", "--out", "out", "in", *options]) == 2
    assert re.fullmatch(rf"error: .*{message}.*\n", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_tokens_of_a_local_tokenizer_are_packed_and_counted_in_bits_per_byte(documents):
    transformers, made = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    tokenizer = made.Tokenizer(made.models.BPE())
    tokenizer.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = made.decoders.ByteLevel()
    alphabet = made.pre_tokenizers.ByteLevel.alphabet()
    options = {"initial_alphabet": alphabet, "special_tokens": ["<end>"], "show_progress": False}
    tokenizer.train_from_iterator(["first", "last"], made.trainers.BpeTrainer(vocab_size=300, **options))
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    whole.save_pretrained("tokenizer")
    assert main(["pack", "in", "--out", "packed", "--tokenizer", "tokenizer"]) == 0
    manifest = read_json(documents.parent / "packed" / "manifest.json")
    stream = np.fromfile("packed/tokens.bin", manifest["dtype"])
    assert (manifest["dtype"], manifest["vocab"]) == ("uint16", tokenizer.get_vocab_size())
    parts = np.split(stream, np.flatnonzero(stream == manifest["separator"]))
    assert [tokenizer.decode(part.tolist()) for part in parts] == ["first", "zwölf", "last", ""]
    (documents / "a.txt").write_text("first last zwölf first")
    source = text.build(path="in/a.txt", seq_len=1, valid_share=0, tokenizer="tokenizer")
    assert source.bytes_per_token == 23 / len(source.train.tokens) > 1.2
    assert source.classes == tokenizer.get_vocab_size()
