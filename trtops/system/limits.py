"""Limits on memory and time for files from untrusted sources.

A file of two kilobytes can request any amount of memory: by a declared shape, by nodes that double their input, by an
archive of zeros. Known sizes are checked before allocation; native code runs with a limit on this process' memory.
"""

import contextlib
import math
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence

from trtops import errors

if sys.platform != "win32":
    import resource

MEMORY = "TRTOPS_MEMORY_LIMIT"
TIME = "TRTOPS_TIME_LIMIT"
MAX_DIMENSIONS = 32  # of arrays in numpy 1; numpy 2 allows 64
_REMEDY = f"If this is intended, set {MEMORY} to a higher value."

_TRIAL_SECONDS = 30.0
_lock = threading.Lock()
_users = 0
_before = (0, 0)


def time_limit() -> float:
    """Time limit in seconds for loading a model, or one inference: ``TRTOPS_TIME_LIMIT`` (default: 600)."""
    text = os.environ.get(TIME) or "600"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise errors.ConfigError(f"{TIME} is {text!r}; expected seconds, such as 600.")
    return seconds


def trial_limit() -> float:
    """Time limit in seconds for running a model only to check or fold it: the time limit if it is set, else 30."""
    return time_limit() if os.environ.get(TIME) else _TRIAL_SECONDS


@contextlib.contextmanager
def limited_time(seconds: float | None) -> Iterator[None]:
    """Set the time limit during a block, also for child processes; None keeps it."""
    before = os.environ.get(TIME)
    try:
        if seconds is not None:
            os.environ[TIME] = str(seconds)
        time_limit()  # reports an invalid one
        yield
    finally:
        os.environ.pop(TIME, None)
        if before is not None:
            os.environ[TIME] = before


def too_slow(subject: str, seconds: float) -> str:
    """The message after native code exceeded its time limit."""
    remedy = f"If this is intended, set --timeout or {TIME} to more seconds."
    return f"{subject} did not finish within {seconds:g} s. {remedy}"


def memory_limit() -> int:
    """Limit in bytes for reading a file, beyond its own size: ``TRTOPS_MEMORY_LIMIT`` (default: 1.75 GiB)."""
    # With the process' own memory, the default stays below 2 GiB.
    text = os.environ.get(MEMORY) or "1792M"
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or not int(match[1]):
        raise errors.ConfigError(f"{MEMORY} is {text!r}; expected bytes, such as 4G or 512M.")
    return int(match[1]) << 10 * " kmgt".index(match[2] or " ")


def check_memory(subject: str, size: int, allowance: int = 0) -> None:
    """Raise InputError if ``size`` bytes exceed the limit plus ``allowance``, such as the size of the file itself."""
    limit = memory_limit() + allowance
    if size > limit:
        sizes = f"{size / (1 << 30):.3g} GiB of memory; the limit is {limit / (1 << 30):.3g} GiB"
        raise errors.InputError(f"{subject} would take {sizes}. {_REMEDY}")


def check_array(name: str, shape: Sequence[int], element_bytes: int) -> None:
    """Raise InputError if random data of a shape cannot be an array, or would take too much memory."""
    if len(shape) > MAX_DIMENSIONS:
        raise errors.InputError(f"Input {name!r} has {len(shape)} dimensions; arrays have at most {MAX_DIMENSIONS}.")
    if min(shape, default=0) < 0:
        raise errors.InputError(f"Input {name!r} has the shape {tuple(shape)}, with negative sizes.")
    check_memory(f"Random data for input {name!r} of shape {tuple(shape)}", element_bytes * math.prod(shape))


def too_much(subject: str) -> str:
    """The message after native code ran out of memory under :func:`limited_memory`."""
    return f"{subject} takes more than {memory_limit() / (1 << 30):.3g} GiB of memory. {_REMEDY}"


@contextlib.contextmanager
def limited_memory(allowance: int = 0) -> Iterator[None]:
    """Limit how much memory this process may add during a block to the limit and ``allowance`` bytes, such as weights.

    Beyond it, native code fails with ``bad_alloc`` and Python with ``MemoryError``. Blocks may be nested and may run in
    several threads; the outermost one sets the limit. No effect where the system has no such limit.
    """
    global _users, _before
    if sys.platform == "win32":
        yield
        return
    with _lock:
        if not _users:
            # RLIMIT_DATA does not count reserved but unused memory, such as that of CUDA and thread stacks.
            _before = resource.getrlimit(resource.RLIMIT_DATA)
            with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:
                used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
                allowed = used + memory_limit() + allowance
                if _before[0] == resource.RLIM_INFINITY or allowed < _before[0]:
                    resource.setrlimit(resource.RLIMIT_DATA, (allowed, _before[1]))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                resource.setrlimit(resource.RLIMIT_DATA, _before)


def bytes_of_files(path: str | os.PathLike[str]) -> int:
    """Total size of a file and its siblings, such as a model's external data."""
    with contextlib.suppress(OSError), os.scandir(os.path.dirname(os.path.abspath(path))) as files:
        return sum(file.stat().st_size for file in files if file.is_file())
    return 0
