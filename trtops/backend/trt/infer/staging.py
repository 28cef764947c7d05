"""Large host arrays on their way to the device: copied into pinned memory by several threads, and sent on in pieces."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops.backend.trt.library import memory

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

CHUNK = 2 << 20
"""Bytes that are sent at a time, once it runs; smaller arrays are copied and sent as a whole."""
_FIRST_CHUNK = 256 << 10
"""Bytes of the first piece. Pieces double from here, so that the bus soon has something to do."""
_HELPERS = 2
"""Threads beside the caller's. Two with pieces of 2 MiB were the fastest of 0 to 7 with 0.5 to 4 MiB, for 25 MB on a host of
16 cores (H200); more of them wait for one another."""


class Stager:
    """Copies host arrays into pinned memory and sends them to the device at the same time.

    Numpy lets go of the interpreter lock while it copies. The caller's thread copies pieces like the helpers do, since
    waking a thread takes as long as copying a piece; and it alone speaks to CUDA.
    """

    def __init__(self, name: str) -> None:
        """Name the threads; they start with the first array."""
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def upload(
        self, array: np.ndarray[Any, Any], pinned: np.ndarray[Any, Any], device: int, stream: memory.Stream
    ) -> None:
        """Copy an array to the device.

        Args:
            array: What to copy, contiguous, in any host memory.
            pinned: Pinned host memory of the same size, contiguous. It is still being read when this returns.
            device: Address in device memory.
            stream: Takes the copies; what it is given afterwards finds the array on the device.

        Raises:
            InferenceError: If CUDA refuses a copy.
        """
        from concurrent.futures import ThreadPoolExecutor, wait

        source = array.reshape(-1).view(np.uint8)
        staged = pinned.reshape(-1).view(np.uint8)
        pieces = list(_pieces(source.size))
        todo = iter(pieces)  # shared: whoever is free takes the next piece
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
                while not done.empty():
                    send(done.get())
                    unsent -= 1
            for _ in range(unsent):
                send(done.get())
        except BaseException:
            for _ in todo:
                pass  # nothing more to take
            wait(helpers)  # nobody writes into the pinned memory any more
            raise

    def close(self) -> None:
        """End the threads; the next array starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _pieces(size: int) -> Iterator[slice]:
    start, step = 0, _FIRST_CHUNK
    while start < size:
        yield slice(start, min(start + step, size))
        start, step = start + step, min(2 * step, CHUNK)
