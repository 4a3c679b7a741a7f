"""Text files to a file of tokens, which `data.kind: tokens` maps into memory.

A packed folder holds `tokens.bin`, the tokens of all documents as raw numbers, and `manifest.json`. A
separator token follows each document. A `.jsonl` file has a document per line, every other file is one
document; the files of a folder are read in the order of their relative paths. Torch is not imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from disttrain.data.corpus import Tokenizer, files_below, load_tokenizer
from disttrain.errors import ConfigError
from disttrain.records.dataset import MANIFEST, TOKENS, PackedTokens
from disttrain.records.json_files import write_json

_AT_ONCE = 256
"""Documents that are encoded together: a fast tokenizer encodes them in parallel."""


def pack(inputs: Sequence[str], out: Path, tokenizer: str = "bytes", field: str = "text") -> PackedTokens:
    """Write the packed folder `out`, which appears under its name when it is complete.

    `field` is the key of the text in a line of JSON. Raises `ConfigError` for input that cannot be read, an
    existing `out`, or input without text; nothing is left behind.
    """
    if out.exists():
        raise ConfigError(f"--out {str(out)!r} exists; give a new folder")
    loaded = load_tokenizer(tokenizer, "--tokenizer")
    files = [file for name in inputs for file in _files(name)]
    temporary = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        record = _write(temporary, loaded, tokenizer, _documents(files, field))
        os.rename(temporary, out)
    except OSError as error:
        raise ConfigError(f"--out {str(out)!r} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return record


def _write(folder: Path, tokenizer: Tokenizer, name: str, documents: Iterable[bytes]) -> PackedTokens:
    digest, tokens, text_bytes, count = hashlib.sha256(), 0, 0, 0
    end = np.array([tokenizer.separator], tokenizer.dtype)
    with open(folder / TOKENS, "wb") as file:
        remaining = iter(documents)
        while group := list(islice(remaining, _AT_ONCE)):
            for ids in tokenizer.encode(group):
                for piece in (ids, end):
                    digest.update(piece.tobytes())
                    file.write(piece.tobytes())
                    tokens += len(piece)
            text_bytes += sum(map(len, group))
            count += len(group)
        file.flush()
        os.fsync(file.fileno())
    if not text_bytes:
        raise ConfigError("the input holds no text")
    record = PackedTokens(
        tokenizer=name if name == "bytes" else Path(name).name,
        dtype=np.dtype(tokenizer.dtype).name,
        vocab=tokenizer.vocab,
        separator=tokenizer.separator,
        tokens=tokens,
        documents=count,
        text_bytes=text_bytes,
        sha256=digest.hexdigest(),
    )
    write_json(folder / MANIFEST, record.model_dump(mode="json"))
    return record


def _files(name: str) -> list[Path]:
    root = Path(name)
    if not root.exists():
        raise ConfigError(f"{name!r} does not exist; give files or folders of text")
    files = [file for file in map(root.joinpath, files_below(root)) if file.is_file()]
    if not files:
        raise ConfigError(f"{name!r} holds no files")
    return files


def _documents(files: Iterable[Path], field: str) -> Iterator[bytes]:
    """The documents of the files that are not empty. Raises `ConfigError`."""
    for file in files:
        try:
            if file.suffix == ".jsonl":
                yield from _lines(file, field)
            elif content := file.read_bytes():
                content.decode()
                yield content
        except OSError as error:
            raise ConfigError(f"cannot read {str(file)!r}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{str(file)!r} is not UTF-8 text (byte {error.start})") from None


def _lines(file: Path, field: str) -> Iterator[bytes]:
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
            except ValueError:
                raise ConfigError(f"{file}:{number} is not valid JSON") from None
            text = document.get(field) if isinstance(document, dict) else None
            if not isinstance(text, str):
                keys = ", ".join(document) if isinstance(document, dict) else type(document).__name__
                raise ConfigError(
                    f"{file}:{number} has no text under {field!r} (it has: {keys}); give --field"
                )
            if text:
                yield text.encode("utf-8", errors="replace")
