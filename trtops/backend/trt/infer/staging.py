"""Large host arrays on their way to the device: several threads copy them into pinned memory, and pieces are sent at once."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.backend.trt.library import memory

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

CHUNK = 2 << 20
"""Bytes of a full piece; arrays that are no larger are copied and sent as a whole."""
_FIRST_CHUNK = 256 << 10
"""Bytes of the first piece. Pieces double from here: the bus idles until the first one is staged."""
_HELPERS = 2
"""Threads beside the caller's. Of 0 to 7 threads with pieces of 0.5 to 4 MiB, two with 2 MiB were the fastest for 25 MB on a
host of 16 cores (H200); more of them wait for one another."""


class Stager:
    """Copies host arrays into pinned memory, and sends finished pieces to the device meanwhile.

    Threads help since numpy releases the interpreter lock while it copies. The caller's thread copies pieces too: waking a
    thread takes as long as copying a piece. It alone calls CUDA, whose current device belongs to a thread.
    """

    def __init__(self, name: str) -> None:
        """Name the threads, which start with the first array."""
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def upload(
        self, array: np.ndarray[Any, Any], pinned: np.ndarray[Any, Any], device: int, stream: memory.Stream
    ) -> None:
        """Copy an array to the device.

        Args:
            array: What to copy, contiguous, in any host memory.
            pinned: Pinned host memory of the same size, contiguous. The device still reads it when this returns: leave it
                unchanged until the stream has got past the copies.
            device: Address in device memory.
            stream: Where the copies are queued; whatever is queued on it afterwards finds the array on the device.

        Raises:
            InferenceError: If CUDA refuses a copy.
        """
        from concurrent.futures import ThreadPoolExecutor, wait

        source = array.reshape(-1).view(np.uint8)
        staged = pinned.reshape(-1).view(np.uint8)
        pieces = list(_piece_slices(source.size))
        # Shared by all threads: next() on a list's iterator is atomic, so each piece is taken once, by whoever is free.
        todo = iter(pieces)
        done: queue.SimpleQueue[slice] = queue.SimpleQueue()

        def help_copying() -> None:
            for piece in todo:
                np.copyto(staged[piece], source[piece])
                done.put(piece)

        def send(piece: slice) -> None:
            start, count = piece.start, piece.stop - piece.start
            memory.copy(device + start, base + start, count, "cudaMemcpyHostToDevice", stream)

        base = staged.ctypes.data
        unsent = len(pieces)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_HELPERS, thread_name_prefix=self._name)
        helpers = [self._pool.submit(help_copying) for _ in range(_HELPERS)]
        try:
            for piece in todo:
                np.copyto(staged[piece], source[piece])
                send(piece)
                unsent -= 1
                # Pieces may be sent in any order: they do not overlap, and the stream finishes all of them before the engine.
                while not done.empty():
                    send(done.get())
                    unsent -= 1
            for _ in range(unsent):
                send(done.get())
        except BaseException:
            for _ in todo:
                pass  # leave the helpers nothing to take
            wait(helpers)  # the caller may free or reuse the pinned memory as soon as this raises
            raise

    def close(self) -> None:
        """End the threads; the next array starts others."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _piece_slices(size: int) -> Iterator[slice]:
    """Slices that cover so many bytes, doubling in length from the first to :data:`CHUNK`."""
    start, step = 0, _FIRST_CHUNK
    while start < size:
        yield slice(start, min(start + step, size))
        start, step = start + step, min(2 * step, CHUNK)
