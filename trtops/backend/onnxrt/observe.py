"""Every tensor of a model, as ONNX Runtime computes it on the CPU without optimizing: computed once, kept within a limit.

The model is run piece by piece, so that no more than one piece's tensors are in memory beside what the limit allows; the
rest lies in files in a temporary folder.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.submodel import Array, Arrays, Cutter
from trtops.backend.onnxrt.reference import SessionFromMemory, reference_outputs
from trtops.backend.onnxrt.runner import OnnxrtRunner
from trtops.metadata import DataType, Dim, TensorSpec
from trtops.processes import temporary_prefix

DEFAULT_LIMIT_BYTES = 2 << 30
_FIRST_PIECE = 64


class Observed:
    """The values of a model's tensors for some feeds. Filled by one thread, then safe to read from several.

    Implements :class:`trtops.backend.onnx.submodel.Values`. Its temporary folder goes when it is closed or collected.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """Start empty.

        Args:
            limit_bytes: How much to keep in memory; what is put beyond that goes to files.
        """
        self._limit = limit_bytes
        self._held = 0
        self._kept: dict[str, list[Array | _Spilled]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._file_numbers = itertools.count()

    def put(self, arrays: Mapping[str, Array]) -> int:
        """Add the tensors of one feed, which are not copied unless they go to a file; returns their bytes."""
        total = 0
        for name, array in arrays.items():
            array = np.asarray(array)
            total += array.nbytes
            kept: Array | _Spilled = array
            if array.dtype.kind not in "OUS":  # text is small, and numpy writes it as pickle
                if self._held + array.nbytes > self._limit:
                    kept = self._spill(array)
                else:
                    self._held += array.nbytes
            self._kept.setdefault(name, []).append(kept)
        return total

    def arrays(self, name: str) -> list[Array]:
        """The values of a tensor, one per feed; to be read only.

        Raises:
            InvalidModelError: If it was not observed.
        """
        kept = self._kept.get(name)
        if kept is None:
            raise errors.InvalidModelError(f"Nothing is known of tensor {name!r}. {errors.near(name, self._kept)}")
        return [k.load() if isinstance(k, _Spilled) else k for k in kept]

    def spec(self, name: str) -> TensorSpec:
        """Dtype and shape; a dimension that differs between feeds is None.

        Raises:
            InvalidModelError: If the tensor was not observed.
        """
        arrays = self.arrays(name)
        dtype = DataType.of(arrays[0].dtype)
        shape: tuple[Dim, ...] | None = arrays[0].shape
        if any(array.ndim != len(arrays[0].shape) for array in arrays):
            shape = None
        elif any(array.shape != shape for array in arrays):
            shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*(a.shape for a in arrays)))
        return TensorSpec(name, dtype, shape)

    def constant(self, name: str) -> Array | None:
        """The value, if it is the same for every feed."""
        first, *others = self.arrays(name)
        return first if all(np.array_equal(first, other) for other in others) else None

    def feeds(self, names: Sequence[str]) -> list[Arrays]:
        """The observed arrays of these tensors, one dict per feed."""
        return _by_feed({name: self.arrays(name) for name in names}, max(map(len, self._kept.values()), default=0))

    def golden(self, model: onnx.ModelProto, feeds: Sequence[Arrays], names: Sequence[str]) -> list[Arrays]:
        """The same for outputs: what was observed in the whole model holds for any part of it."""
        return self.feeds(names)

    def close(self) -> None:
        """Remove the temporary folder; nothing can be read any more."""
        self._kept.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def _spill(self, array: Array) -> _Spilled:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("observed"))
        path = Path(self._folder.name, f"{next(self._file_numbers)}.npy")
        # As bytes, since numpy does not know bfloat16 and its kin in its own format.
        np.save(path, np.ascontiguousarray(array).reshape(-1).view(np.uint8), allow_pickle=False)
        return _Spilled(path, array.dtype, array.shape)


class _Spilled:
    """An array in a file."""

    __slots__ = ("dtype", "path", "shape")

    def __init__(self, path: Path, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape

    def load(self) -> Array:
        stored: Array = np.load(self.path, mmap_mode="c", allow_pickle=False)
        array: Array = stored.view(np.ndarray).view(self.dtype).reshape(self.shape)
        return array


class RandomInputs:
    """Observed dtypes and shapes with random numbers: floats between 0 and 1 where a sub-model is cut off.

    Integers and booleans keep their observed values, since an index drawn at random points nowhere. Implements
    :class:`trtops.backend.onnx.submodel.Values`.
    """

    def __init__(self, observed: Observed, seed: int = 1) -> None:
        """Take dtypes, shapes and integers from what was observed; draw the rest with a seed."""
        self._observed = observed
        self._seed = seed
        self.spec = observed.spec
        self.constant = observed.constant

    def feeds(self, names: Sequence[str]) -> list[Arrays]:
        """Random arrays for floats, observed ones for the rest; the same for the same names."""
        generator = np.random.default_rng(self._seed)

        def draw(array: Array) -> Array:
            if not DataType.of(array.dtype).is_floating:
                return array
            drawn: Array = np.asarray(generator.random(array.shape, np.float32))
            return drawn.astype(array.dtype)

        return [{name: draw(array) for name, array in feed.items()} for feed in self._observed.feeds(names)]

    def golden(self, model: onnx.ModelProto, feeds: Sequence[Arrays], names: Sequence[str]) -> list[Arrays]:
        """What ONNX Runtime computes for the random inputs without optimizing; raises as :func:`reference_outputs`."""
        return reference_outputs(model, feeds)


def observe(cutter: Cutter, feeds: Sequence[Feed], *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Observed:
    """Compute every tensor of a model that something reads.

    Args:
        cutter: The model.
        feeds: Input arrays by name, one mapping per feed; not copied.
        limit_bytes: How much to keep in memory.

    Raises:
        InputError: If a feed does not fit the model.
        BackendError: If ONNX Runtime has no kernel for a node, or fails; the message says where.
    """
    observed = Observed(limit_bytes)
    for feed in feeds:
        missing = [name for name in cutter.inputs if name not in feed]
        if missing:
            raise errors.MissingInputError(
                f"Input {missing[0]!r} is not fed; expected {', '.join(map(repr, cutter.inputs))}."
            )
        observed.put({name: np.asarray(feed[name]) for name in cutter.inputs})
    may_part = cutter.may_part_after()
    # A session costs milliseconds and every tensor of its piece is in memory at once, so pieces are as long as the limit
    # allows: longer after one that took little, shorter after one that took much.
    start, length = 0, _FIRST_PIECE
    while start < len(cutter.order):
        end = min(start + length, len(cutter.order))
        while not may_part[end - 1]:  # a sequence cannot be handed from one session to the next
            end += 1
        used = _observe_piece(cutter, cutter.order[start:end], observed, len(feeds))
        start = end
        if used < limit_bytes // 8:
            length *= 2
        elif used > limit_bytes // 2:
            length = max(1, length // 2)
    return observed


def _observe_piece(cutter: Cutter, nodes: Sequence[int], observed: Observed, count: int) -> int:
    """Run some nodes on what is known already, and add what they make; returns the bytes added."""
    piece = cutter.cut(nodes, observed, expose="all")
    used = 0
    with OnnxrtRunner(SessionFromMemory(piece.proto, optimized=False), "observation") as runner:
        for feed in _by_feed({name: observed.arrays(name) for name in piece.inputs}, count):
            used += observed.put(runner.infer(feed))
    return used


def _by_feed(arrays: Mapping[str, Sequence[Array]], count: int) -> list[Arrays]:
    return [{name: values[i] for name, values in arrays.items()} for i in range(count)]
