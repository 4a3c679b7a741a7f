"""`python -m disttrain.data pack`: documents to tokens, the manifest, and what is refused."""

import hashlib
import json
import os
import re

import numpy as np
import pytest

from disttrain.config.sections.model import DataConfig
from disttrain.data.__main__ import main
from disttrain.engine.kinds import build_source
from disttrain.records.json_files import read_json


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text("first")
    lines = ['{"text": "zw\\u00f6lf"}', "", '{"text": "last", "id": 3}', '{"text": ""}']
    (folder / "b" / "c.jsonl").write_text("\n".join(lines))
    (folder / ".hidden").write_text("no")
    (folder / "empty.txt").write_text("")
    return folder


def test_documents_become_bytes_with_separators(tmp_path, texts, capsys):
    assert main(["pack", str(texts), "--out", str(tmp_path / "packed")]) == 0
    content = "first\0zwölf\0last\0".encode()
    assert (tmp_path / "packed" / "tokens.bin").read_bytes() == content
    manifest = read_json(tmp_path / "packed" / "manifest.json")
    assert (manifest["tokens"], manifest["documents"], manifest["text_bytes"]) == (18, 3, 15)
    assert manifest["sha256"] == hashlib.sha256(content).hexdigest()
    assert "18 tokens of 3 documents, 0.83 bytes per token, vocabulary 256" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "texts"]


def test_only_regular_files_of_a_folder_are_packed(tmp_path, texts):
    (texts / "dangling.txt").symlink_to("nowhere")
    os.mkfifo(texts / "fifo.txt")
    (texts / "linked.txt").symlink_to("a.txt")
    assert main(["pack", str(texts), "--out", str(tmp_path / "packed")]) == 0
    assert (tmp_path / "packed" / "tokens.bin").read_bytes() == "first\0zwölf\0last\0first\0".encode()


def test_a_packed_folder_needs_only_its_path(tmp_path, texts):
    (texts / "long.txt").write_text("abc" * 100)
    main(["pack", str(texts), "--out", str(tmp_path / "packed")])
    options = {"path": str(tmp_path / "packed"), "seq_len": 8, "valid_share": 0.1}
    source = build_source(DataConfig(kind="tokens", **options))
    manifest = read_json(tmp_path / "packed" / "manifest.json")
    assert (source.classes, source.record.sha256) == (256, manifest["sha256"])
    assert source.bytes_per_token == manifest["text_bytes"] / manifest["tokens"]
    assert bytes(source.train[0][0].tolist()) == b"first\0zw"


def test_tokens_of_a_local_tokenizer_round_trip(tmp_path, texts):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    made.train_from_iterator(["first", "last"], trainer)
    folder = str(tmp_path / "tokenizer")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>").save_pretrained(folder)
    assert main(["pack", str(texts), "--out", str(tmp_path / "packed"), "--tokenizer", folder]) == 0
    manifest = read_json(tmp_path / "packed" / "manifest.json")
    tokens = np.fromfile(tmp_path / "packed" / "tokens.bin", manifest["dtype"])
    assert (manifest["dtype"], manifest["vocab"]) == ("uint16", made.get_vocab_size())
    assert len(tokens) == manifest["tokens"] < 15
    ends = np.flatnonzero(tokens == manifest["separator"])
    parts = [made.decode(part.tolist()) for part in np.split(tokens, ends)]
    assert parts == ["first", "zwölf", "last", ""]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ({"a.jsonl": '{"text": "x"}\n{"text": '}, [], r"a\.jsonl:2 is not valid JSON"),
        ({"a.jsonl": '{"body": "x"}'}, [], r"a\.jsonl:1 has no text under 'text' \(it has: body\); give"),
        ({"a.jsonl": "[1]"}, [], r"a\.jsonl:1 has no text under 'text' \(it has: list\)"),
        ({"a.txt": b"ab\xff"}, [], r"a\.txt' is not UTF-8 text \(byte 2\)"),
        ({"a.txt": ""}, [], r"the input holds no text"),
        ({}, [], r"holds no files"),
        ({"a.txt": "x"}, ["--tokenizer", "/nowhere"], r"--tokenizer='/nowhere' is no folder"),
        ({"a.txt": "x"}, ["--out", "."], r"--out '\.' exists; give a new folder"),
        ({"a.txt": "x"}, ["nowhere"], r"'nowhere' does not exist; give files or folders of text"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, content, options, message
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    out = [] if "--out" in options else ["--out", "out"]
    assert main(["pack", *out, "in", *options]) == 2
    problem = capsys.readouterr().err
    assert re.search(rf"^error: .*{message}.*\n$", problem)
    assert problem.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_folder_that_does_not_fit_its_manifest_is_refused(tmp_path, texts):
    main(["pack", str(texts), "--out", str(tmp_path / "packed")])
    options = {"kind": "tokens", "path": str(tmp_path / "packed"), "seq_len": 4}
    with pytest.raises(ValueError, match=r"data\.vocab=300, but the tokens of .* have vocab=256"):
        build_source(DataConfig(**options, vocab=300))
    with open(tmp_path / "packed" / "tokens.bin", "ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=r"tokens\.bin has 19 bytes, not those of 18 tokens"):
        build_source(DataConfig(**options))
    (tmp_path / "packed" / "manifest.json").write_text(json.dumps({"tokens": 3}))
    with pytest.raises(ValueError, match=r"manifest\.json is not that of a packed folder"):
        build_source(DataConfig(**options))


def test_validation_tokens_of_a_packed_folder_of_their_own(tmp_path, texts):
    for name in ("train", "valid"):
        main(["pack", str(texts), "--out", str(tmp_path / name)])
    options = {"kind": "tokens", "path": str(tmp_path / "train"), "seq_len": 4}
    source = build_source(DataConfig(**options, valid_path=str(tmp_path / "valid")))
    assert len(source.train) == len(source.valid) == 4
    assert source.record.sha256 == read_json(tmp_path / "train" / "manifest.json")["sha256"]
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "raw.bin")
    with pytest.raises(ValueError, match=r"data\.vocab=50, but the tokens of .*valid' have vocab=256"):
        build_source(
            DataConfig(
                kind="tokens", path=str(tmp_path / "raw.bin"), vocab=50, seq_len=4,
                valid_path=str(tmp_path / "valid"),
            )
        )  # fmt: skip


def test_raw_tokens_need_a_vocabulary(tmp_path):
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(ValueError, match=r"^data\.vocab is needed by data\.kind=tokens"):
        build_source(DataConfig(kind="tokens", path=str(tmp_path), seq_len=4))
