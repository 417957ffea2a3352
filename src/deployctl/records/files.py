"""Writing a file so that a reader, or a crash, sees all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, replace: bool = True) -> None:
    """Write ``data`` to ``path``: a temporary file beside it, flushed to the disk, then renamed over.

    ``mode`` holds whatever the umask is. With ``replace`` False an existing file stays and FileExistsError is raised,
    even when two writers race. Raises OSError (disk full, no permission); nothing is left behind then.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if replace:
            Path(temporary).replace(path)
        else:
            _rename_to_free_name(Path(temporary), path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
    _sync_directory(path.parent)


def _rename_to_free_name(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike rename, this fails when the name is taken
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: the check and the rename are two steps there
        if path.exists():
            raise FileExistsError(path) from None
        temporary.replace(path)


def _sync_directory(folder: Path) -> None:
    # The rename itself lives in the directory; some file systems refuse the fsync, and then there is nothing to do.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
