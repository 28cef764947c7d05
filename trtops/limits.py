"""How much may be taken to look at what others made: memory for arrays and graphs, and nodes that a graph comes to.

A file of two kilobytes can ask for any number of bytes: by a declared shape, by nodes that double what they read, by an
archive that is mostly zeros. What can be told beforehand is evaluated before it is allocated. Native code runs with a limit on
the memory of this process, so that it fails as if there were no more, and the machine goes on.

``TRTOPS_MEMORY_LIMIT`` and ``TRTOPS_NODE_LIMIT`` set other limits.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator

from trtops import errors

MEMORY = "TRTOPS_MEMORY_LIMIT"
NODES = "TRTOPS_NODE_LIMIT"

_MEMORY_BYTES = 7 << 28  # with what a process has itself, it stays below 2 GiB
_NODES = 200_000
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_lock = threading.Lock()
_users = 0
_before = (0, 0)


def memory_limit() -> int:
    """Bytes that looking at a file of others may take beyond the file's own: ``TRTOPS_MEMORY_LIMIT``, or 1.75 GiB.

    Raises:
        ConfigError: If the variable is no number of bytes.
    """
    text = os.environ.get(MEMORY) or str(_MEMORY_BYTES)
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not int(found[1]):
        raise errors.ConfigError(f"{MEMORY} is {text!r}; expected bytes, as in 4G or 512M.")
    return int(found[1]) * _UNITS[found[2]]


def node_limit() -> int:
    """Nodes that a model may come to once its functions are expanded: ``TRTOPS_NODE_LIMIT``, or two hundred thousand.

    Raises:
        ConfigError: If the variable is no number.
    """
    text = os.environ.get(NODES) or str(_NODES)
    if not text.isdecimal() or len(text) > 15:
        raise errors.ConfigError(f"{NODES} is {text!r}; expected a whole number.")
    return int(text)


def check_memory(what: str, size: int, own: int = 0) -> None:
    """Refuse to allocate more than the limit.

    Args:
        what: What would take it, for the message.
        size: Its bytes.
        own: Bytes that it is allowed beyond the limit: of a file that has them itself.

    Raises:
        InputError: If it would be too much.
    """
    limit = memory_limit()
    if size > limit + own:
        raise errors.InputError(
            f"{what} would take {in_gib(size)} of memory; at most {in_gib(limit + own)} is taken here. If that is meant, set "
            f"{MEMORY} to more."
        )


def in_gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):.3g} GiB"


@contextlib.contextmanager
def limited_memory(own: int = 0) -> Iterator[None]:
    """Let this process have no more memory than the limit beyond what it has now, for the time of a block.

    Beyond it native code fails with ``bad_alloc``, and Python with ``MemoryError``. Blocks may be nested and run in several
    threads; the outermost sets the limit. Does nothing where the system has no such limit.

    Args:
        own: Bytes beyond the limit: of weights that have to be loaded anyway.
    """
    global _users
    with _lock:
        if not _users:
            _set_limit(memory_limit() + own)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _unset_limit()


def bytes_of_files(path: str | os.PathLike[str]) -> int:
    """Bytes of a file and of those beside it, among which a model's external data is."""
    with contextlib.suppress(OSError), os.scandir(os.path.dirname(os.path.abspath(path))) as files:
        return sum(file.stat().st_size for file in files if file.is_file())
    return 0


def too_much(what: str) -> str:
    """What is said when the limit was hit."""
    return f"{what} takes more than {in_gib(memory_limit())} of memory. If that is meant, set {MEMORY} to more."


def _set_limit(more: int) -> None:
    global _before
    try:
        import resource
    except ImportError:  # Windows
        return
    _before = resource.getrlimit(resource.RLIMIT_DATA)
    hard = _before[1]
    # Memory that is reserved and never used, as CUDA and thread stacks have it, does not count as data.
    wanted = _data_bytes() + more
    if _before[0] == resource.RLIM_INFINITY or wanted < _before[0]:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _unset_limit() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, _before)


def _data_bytes() -> int:
    """What counts as data now (proc_pid_status(5))."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 1 << 40
