"""`python -m disttrain.data pack`: text files to a file of tokens for `data.kind: tokens`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from disttrain.data.pack import pack
from disttrain.errors import EXIT_BAD_INPUT, ConfigError


def main(argv: list[str]) -> int:
    """Exit code: 0, or 2 for invalid input."""
    parser = argparse.ArgumentParser(prog="python -m disttrain.data", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("pack", help="write a packed folder of tokens", allow_abbrev=False)
    verb.add_argument("inputs", nargs="+", metavar="FILE_OR_FOLDER", help="text files, .jsonl files, folders")
    verb.add_argument("--out", type=Path, required=True, help="the folder to create")
    verb.add_argument("--tokenizer", default="bytes", help="bytes, or a local Hugging Face tokenizer folder")
    verb.add_argument("--field", default="text", help="key of the text in a line of a .jsonl file")
    given = parser.parse_args(argv)
    try:
        made = pack(given.inputs, given.out, given.tokenizer, given.field)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    print(
        f"{given.out}: {made.tokens:,} tokens of {made.documents:,} documents, "
        f"{made.text_bytes / made.tokens:.2f} bytes per token, vocabulary {made.vocab:,}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
