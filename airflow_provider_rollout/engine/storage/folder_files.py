"""Files of a folder that serves as an object store: whole or not there.

Receives: paths and bytes.        Hands on: versions.
Invariants: a file appears whole under its name or not at all; it is written under a hidden name beside its place first, which readers of a
folder pass over and a killed process may leave behind. Nothing is fsynced: a killed process loses nothing, a power failure may.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

__all__ = ["delete_files", "is_temporary", "write_file"]

_SUFFIX = ".writing"


def is_temporary(path: str) -> bool:
    """Whether a path is that of a file being written."""
    return path.endswith(_SUFFIX) and path.rpartition("/")[2].startswith(".")


def write_file(path: Path, data: bytes, *, new: bool) -> str:
    """Write a file and give its version as obstore does; a new one must not exist.

    Raises:
        FileExistsError: it is to be new, and exists.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{path.parent} or a folder above it is a file") from None
    temporary = path.with_name(f".{uuid.uuid4().hex[:12]}{_SUFFIX}")
    try:
        with temporary.open("xb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            status = os.fstat(file.fileno())
        if new:
            path.hardlink_to(temporary)  # unlike a rename, it fails when the path exists
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"'


def delete_files(files: Iterable[Path]) -> None:
    """Delete files; absent ones are fine."""
    for file in files:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            file.unlink()
