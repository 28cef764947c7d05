"""Copies large host arrays to the device in pieces: threads copy them into pinned memory while pieces are sent."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.backend.trt.library import memory

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Bytes of a full piece; smaller arrays are copied and sent in one piece.
CHUNK = 2 << 20
# Bytes of the first piece. Sizes double from here, so that the bus does not wait long for the first one.
_FIRST_CHUNK = 256 << 10
# Additional threads. With 25 MB on a host of 16 cores (H200), two threads with pieces of 2 MiB were the fastest of 0 to
# 7 threads with pieces of 0.5 to 4 MiB.
_HELPERS = 2


class Stager:
    """Copies host arrays into pinned memory, and sends complete pieces to the device at the same time."""

    def __init__(self, name: str) -> None:
        """Set the name of the threads; they start with the first array."""
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def upload(
        self, array: np.ndarray[Any, Any], pinned: np.ndarray[Any, Any], device: int, stream: memory.Stream
    ) -> None:
        """Copy an array to the device.

        Args:
            array: Contiguous, in any host memory.
            pinned: Contiguous pinned host memory of the same size. The device still reads it after this returns: do not
                change it before the stream has finished the copies.
            device: Address in device memory.
            stream: The stream of the copies; later work on it finds the array on the device.

        Raises InferenceError if CUDA refuses a copy.
        """
        from concurrent.futures import ThreadPoolExecutor, wait

        source = array.reshape(-1).view(np.uint8)
        staged = pinned.reshape(-1).view(np.uint8)
        base = staged.ctypes.data
        pieces = list(_piece_slices(source.size))
        # Shared by all threads: next() on a list iterator is atomic, so each piece is taken once.
        todo = iter(pieces)
        done: queue.SimpleQueue[slice] = queue.SimpleQueue()

        def help_copying() -> None:
            for piece in todo:
                np.copyto(staged[piece], source[piece])
                done.put(piece)

        def send(piece: slice) -> None:
            start, count = piece.start, piece.stop - piece.start
            memory.copy(device + start, base + start, count, "cudaMemcpyHostToDevice", stream)

        # Threads help because numpy releases the interpreter lock while it copies. The caller's thread copies as well,
        # since waking a thread takes as long as copying a piece. Only this thread calls CUDA, whose current device is
        # set per thread.
        unsent = len(pieces)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_HELPERS, thread_name_prefix=self._name)
        helpers = [self._pool.submit(help_copying) for _ in range(_HELPERS)]
        try:
            for piece in todo:
                np.copyto(staged[piece], source[piece])
                send(piece)
                unsent -= 1
                # The order of pieces does not matter: they do not overlap, and the stream finishes all of them first.
                while not done.empty():
                    send(done.get())
                    unsent -= 1
            for _ in range(unsent):
                send(done.get())
        except BaseException:
            # Take the remaining pieces, so that the helpers stop, and wait: the caller may free the pinned memory.
            for _ in todo:
                pass
            wait(helpers)
            raise

    def close(self) -> None:
        """Stop the threads; the next array starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _piece_slices(size: int) -> Iterator[slice]:
    """Slices covering ``size`` bytes; their length doubles up to :data:`CHUNK`."""
    start, step = 0, _FIRST_CHUNK
    while start < size:
        yield slice(start, min(start + step, size))
        start, step = start + step, min(2 * step, CHUNK)
