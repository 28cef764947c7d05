"""Computes every tensor of a model with ONNX Runtime on the CPU, without optimizations, in bounded memory.

The model is run piece by piece: only one piece's tensors are in memory in addition to the limit. The rest is in files
in a temporary folder.
"""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.submodel import Array, Arrays, Cutter, Values
from trtops.backend.onnxrt.runner import OnnxrtRunner, SessionFromMemory
from trtops.metadata import DataType, Dim, TensorSpec
from trtops.system.processes import temporary_prefix

DEFAULT_LIMIT_BYTES = 2 << 30
_FIRST_PIECE = 64


class Observed(Values):
    """The values of a model's tensors for some feeds. Filled by one thread, then safe to read from several."""

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """Start empty; arrays beyond ``limit_bytes`` go to files."""
        self._limit = limit_bytes
        self._in_memory = 0
        self._arrays: dict[str, list[Array]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file_numbers = itertools.count()

    def put(self, arrays: Mapping[str, Array]) -> int:
        """Add the tensors of one feed, copied only if they go to a file, and return their bytes."""
        total = 0
        for name, array in arrays.items():
            array = np.asarray(array)
            total += array.nbytes
            # Strings are small, and their bytes are not in the array.
            if array.dtype.kind not in "OUS":
                if self._in_memory + array.nbytes > self._limit:
                    array = self._to_file(array)
                else:
                    self._in_memory += array.nbytes
            self._arrays.setdefault(name, []).append(array)
        return total

    def arrays(self, name: str) -> list[Array]:
        """Return the values of a tensor, one per feed; they must not be changed."""
        if name not in self._arrays:
            raise errors.InvalidModelError(f"Tensor {name!r} was not observed. {errors.near(name, self._arrays)}")
        return self._arrays[name]

    def spec(self, name: str) -> TensorSpec:
        """Return dtype and shape; dimensions differing between feeds are None."""
        shapes = [array.shape for array in self.arrays(name)]
        shape: tuple[Dim, ...] | None = None
        if len(set(map(len, shapes))) == 1:
            shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes))
        return TensorSpec(name, DataType.of(self.arrays(name)[0].dtype), shape)

    def constant(self, name: str) -> Array | None:
        """Return the value if it is the same for every feed."""
        first, *others = self.arrays(name)
        return first if all(np.array_equal(first, other) for other in others) else None

    def feeds(self, names: Sequence[str]) -> list[Arrays]:
        """Return the observed arrays of these tensors, one dict per feed."""
        if not names:
            return [{} for _ in range(max(map(len, self._arrays.values()), default=0))]
        return [dict(zip(names, arrays)) for arrays in zip(*map(self.arrays, names))]

    def close(self) -> None:
        """Remove the temporary folder; otherwise it is removed with this object."""
        self._arrays.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def _to_file(self, array: Array) -> Array:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("observed"))
        path = Path(self._folder.name, str(next(self._file_numbers)))
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(path)
        mapped: Array = np.memmap(path, np.uint8, "r").view(np.ndarray).view(array.dtype).reshape(array.shape)
        return mapped


def observe(cutter: Cutter, feeds: Sequence[Feed], *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Observed:
    """Compute every tensor of a model with a reader; at most ``limit_bytes`` are kept in memory.

    InputError if a feed does not fit the model, BackendError if ONNX Runtime cannot run a node; the message names it.
    """
    observed = Observed(limit_bytes)
    for feed in feeds:
        missing = [name for name in cutter.inputs if name not in feed]
        if missing:
            raise errors.InputError(f"Input {missing[0]!r} is not fed; expected {', '.join(map(repr, cutter.inputs))}.")
        observed.put({name: np.asarray(feed[name]) for name in cutter.inputs})
    may_part = cutter.may_part_after()
    # Every session costs milliseconds, but all tensors of its piece are in memory at once. So pieces become longer
    # after one that took little memory, and shorter after one that took much.
    start, length = 0, _FIRST_PIECE
    while start < len(cutter.order):
        end = min(start + length, len(cutter.order))
        # A sequence cannot be passed from one session to the next.
        while not may_part[end - 1]:
            end += 1
        piece = cutter.cut(cutter.order[start:end], observed, expose="all")
        used = 0
        with OnnxrtRunner(SessionFromMemory(piece.proto, optimized=False), "observation") as runner:
            for feed in observed.feeds(piece.inputs):
                used += observed.put(runner.infer(feed))
        start = end
        if used < limit_bytes // 8:
            length *= 2
        elif used > limit_bytes // 2:
            length = max(1, length // 2)
    return observed
