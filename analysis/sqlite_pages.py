"""What an SQLite file holds besides its rows: deleted rows stay readable in its free pages and in the gaps of the others.

Source: sqlite.org/fileformat2.html, sections 1.5 (the freelist) and 1.6 (b-tree pages).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_INTERIOR: Final = (2, 5)
_LEAF: Final = (10, 13)


def leftover_bytes(path: Path) -> int:
    """How many bytes of an SQLite file belong to no row and are not zero."""
    return sum(int(np.count_nonzero(space)) for space in _unused(np.memmap(path, np.uint8, "r")))


def wipe_leftovers(path: Path) -> None:
    """Zeroes what belongs to no row; SQLite never reads it. VACUUM alone leaves bits of rows that it moved."""
    file = np.memmap(path, np.uint8, "r+")
    for space in _unused(file):
        space[:] = 0
    file.flush()


def _unused(file: Bytes) -> Iterator[Bytes]:
    """Views of all bytes that no row, index entry or list of pages uses."""
    head = file[:100].tobytes()
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    pages = file[: len(file) // size * size].reshape(-1, size)
    free: set[int] = set()
    trunk = int.from_bytes(head[32:36], "big")
    while 0 < trunk <= len(pages) and trunk not in free:
        following, count, *leaves = pages[trunk - 1].view(">u4").tolist()
        count = min(count, len(leaves))
        free |= {trunk, *leaves[:count]}
        yield pages[trunk - 1, 8 + 4 * count :]
        yield from (pages[leaf - 1] for leaf in leaves[:count] if 0 < leaf <= len(pages))
        trunk = following
    for number, page in enumerate(pages, 1):
        if number not in free:
            yield from _gaps(page, 100 if number == 1 else 0)


def _gaps(page: Bytes, start: int) -> Iterator[Bytes]:
    """The unused parts of a page whose header is at ``start``; none of one that is no b-tree page."""
    kind = int(page[start])
    if kind not in (*_INTERIOR, *_LEAF):
        return
    block, n_cells, content = (_number(page, start + at) for at in (1, 3, 5))
    yield page[start + (12 if kind in _INTERIOR else 8) + 2 * n_cells : content or len(page)]
    while 0 < block < len(page) - 4:
        following, length = _number(page, block), _number(page, block + 2)
        yield page[block + 4 : block + length]
        block = following if following > block else 0


def _number(page: Any, at: int) -> int:
    return int(page[at]) << 8 | int(page[at + 1])
