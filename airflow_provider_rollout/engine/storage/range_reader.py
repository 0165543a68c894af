"""A seekable file over ranged reads.

Receives: a call that reads a range of one version of an object.        Hands on: what pyarrow and the decompressors take for a file.
Invariant: each read is short and repeatable, so a reader that waits for hours holds no connection.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

__all__ = ["RangeReader"]


class RangeReader(io.RawIOBase):
    """A file of a known size; ``read_range(start, end)`` gives its bytes, and blocks."""

    def __init__(self, size_bytes: int, read_range: Callable[[int, int], bytes]) -> None:
        self._size_bytes = size_bytes
        self._read_range = read_range
        self._offset = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; costs nothing until the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size_bytes}[whence]
        self._offset = max(0, base + offset)
        return self._offset

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there is something."""
        end = min(self._offset + len(buffer), self._size_bytes)
        if end <= self._offset:
            return 0
        data = self._read_range(self._offset, end)
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)
