"""Files that appear whole or not at all, and locks that processes hold on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file to be written, which appears under its name only when the block ends without an error.

    Args:
        path: The file; its folder is made if there is none, and a file that is there already is replaced, behind a link
            where the path is one. Devices and pipes are written to as they are.

    Yields:
        A new binary file in the same folder.

    Raises:
        OSError: If it cannot be written; it names ``path``.
    """
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.part")
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with open(target, "wb") as device:
                yield device
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "xb") as file:
            yield file
        part.replace(target)
    except BaseException as exc:
        part.unlink(missing_ok=True)
        if isinstance(exc, OSError) and exc.errno is not None and str(exc.filename) in ("None", str(part)):
            raise OSError(exc.errno, exc.strerror, str(path)) from exc
        raise


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock for the time of a block, after waiting for whoever holds it now.

    Args:
        path: The lock's own file; it and its folder are made if missing, and it stays. The kernel releases the lock when the
            process ends, however it ends.

    Raises:
        OSError: If the file cannot be made.
    """
    import fcntl  # not on Windows

    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
