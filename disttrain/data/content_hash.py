"""SHA-256 of 64 places of files: cheap enough for every rank, whatever the size of the data."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

_PLACES = 64
_PLACE_BYTES = 4096


def content_sha256(files: Sequence[Path]) -> str:
    """SHA-256 of the sizes of the files and of 4 KiB at each of 64 places, evenly spaced over their bytes.

    Changes between these places are not noticed; of one file of up to 256 KiB, every byte counts. Raises
    `OSError`.
    """
    sizes = [file.stat().st_size for file in files]
    digest = hashlib.sha256(json.dumps(sizes).encode())
    ends = list(itertools.accumulate(sizes))
    total = ends[-1] if ends else 0
    for place in range(_PLACES if total else 0):
        at = place * total // _PLACES
        number = bisect.bisect_right(ends, at)
        with open(files[number], "rb") as stream:
            stream.seek(at - (ends[number] - sizes[number]))
            digest.update(stream.read(_PLACE_BYTES))
    return digest.hexdigest()
