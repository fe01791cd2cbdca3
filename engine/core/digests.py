"""Digests of a core's files: sha256, in pieces, so that large files hash on all processors."""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PIECE = 4 << 20
"""Bytes per piece of a large file."""


def bytes_digest(data: bytes | memoryview) -> str:
    """Return the sha256 of ``data`` in hex."""
    return hashlib.sha256(data).hexdigest()


def pieces(data: memoryview) -> list[memoryview]:
    """Cut ``data`` into the pieces that are hashed on their own (at least one)."""
    return [data[i : i + PIECE] for i in range(0, max(len(data), 1), PIECE)]


def combine(piece_digests: Iterable[bytes]) -> str:
    """Return a file's digest from the sha256 digests of its pieces.

    A file of one piece has its plain sha256; a larger one has the sha256 of the concatenated
    piece digests (a hash list), which lets the pieces be hashed in parallel.
    """
    digests = list(piece_digests)
    return digests[0].hex() if len(digests) == 1 else hashlib.sha256(b"".join(digests)).hexdigest()


def piece_digest(piece: memoryview) -> bytes:
    """Return the sha256 of one piece. Releases the GIL while hashing."""
    return hashlib.sha256(piece).digest()


def content_digest(data: bytes | memoryview) -> str:
    """Return the file digest of ``data`` (see ``combine``), on the calling thread."""
    return combine(map(piece_digest, pieces(memoryview(data))))


def file_digest(path: Path, threads: int = 4) -> str:
    """Return the file digest of ``path`` (see ``combine``), reading it once."""
    size = path.stat().st_size
    starts = range(0, max(size, 1), PIECE)

    def digest_at(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(PIECE)).digest()

    with ThreadPoolExecutor(threads) as executor:
        return combine(executor.map(digest_at, starts))


def root_digest(manifest: dict[str, Any]) -> str:
    """Return the digest of the whole core: of the manifest in canonical JSON without its root.

    The manifest carries the table of all other files with their digests, so the root covers
    every byte of the core. Canonical: sorted keys, no white space, ASCII.
    """
    body = {key: value for key, value in manifest.items() if key != "root_digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return bytes_digest(text.encode("ascii"))
