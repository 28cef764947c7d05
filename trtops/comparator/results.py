"""Results of runs: outputs by runner, iteration and name, saved in Polygraphy's format."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from trtops import config, errors, json
from trtops.comparator.arrays import to_numpy
from trtops.comparator.streams import PathLike, iterate_files, load_saved
from trtops.json import Decoder, Encoder
from trtops.torch_tensors import is_torch

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class LazyArray:
    """An array, kept in a temporary file if it is larger than ``trtops.config.ARRAY_SWAP_THRESHOLD_MB``."""

    __slots__ = ("__weakref__", "_path", "arr")

    def __init__(self, arr: Any) -> None:
        """Hold a numpy array or torch tensor; the file of a large one is deleted with this object."""
        self.arr = arr
        self._path: Path | None = None
        limit = config.ARRAY_SWAP_THRESHOLD_MB
        if limit >= 0 and isinstance(arr, np.ndarray) and arr.nbytes > limit << 20:
            import tempfile

            from trtops.system.processes import temporary_prefix

            # The name starts with a prefix that the cleaning of temporary files recognizes if this process is killed.
            handle, name = tempfile.mkstemp(prefix=temporary_prefix("arrays"), suffix=".npz")
            os.close(handle)
            self._path = Path(name)
            # Not __del__: a finalizer also runs when the interpreter exits.
            weakref.finalize(self, self._path.unlink, missing_ok=True)
            json.save_json(arr, self._path)
            self.arr = None

    def load(self) -> Any:
        """The array, read from its file if it is in one."""
        return self.arr if self._path is None else json.load_json(self._path)

    def __deepcopy__(self, memo: object) -> LazyArray:
        array = self.load()
        return LazyArray(array.clone() if is_torch(array) else np.array(array))

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyArray, (self.load(),)


Encoder.register(LazyArray)(lambda lazy: {"values": lazy.load()})


@Decoder.register(LazyArray, alias="LazyNumpyArray")
def _decode_lazy(members: dict[str, Any]) -> LazyArray:
    values = members["values"]
    if not isinstance(values, np.ndarray) and not is_torch(values):
        raise errors.FormatError(f"a LazyArray holds a {type(values).__name__} where an array was expected")
    return LazyArray(values)


class IterationResult(MutableMapping[str, Any]):
    """The outputs of one inference by name, in the model's order: arrays in host memory (or torch tensors)."""

    __slots__ = ("dct", "runner_name", "runtime")

    def __init__(
        self, outputs: Mapping[str, Any] | None = None, runtime: float | None = None, runner_name: str | None = None
    ) -> None:
        """Hold outputs; the arrays are not copied. ``runner_name`` defaults to ``custom_runner``."""
        self.dct: dict[str, LazyArray] = {}
        self.runtime = runtime
        self.runner_name = "custom_runner" if runner_name is None else runner_name
        if outputs is not None:
            lazy = outputs.dct if isinstance(outputs, IterationResult) else outputs
            for name, array in lazy.items():
                self[name] = array

    def __getitem__(self, name: str) -> Any:
        try:
            return self.dct[name].load()
        except KeyError:
            raise KeyError(f"{self.runner_name} has no output {name!r}. {errors.near(name, self.dct)}") from None

    def __setitem__(self, name: str, array: Any) -> None:
        self.dct[name] = array if isinstance(array, LazyArray) else LazyArray(array)

    def __delitem__(self, name: str) -> None:
        del self.dct[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.dct)

    def __len__(self) -> int:
        return len(self.dct)

    def __contains__(self, name: object) -> bool:
        return name in self.dct

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IterationResult):
            return NotImplemented
        if (self.runtime, self.runner_name, list(self)) != (other.runtime, other.runner_name, list(other)):
            return False
        return all(np.array_equal(to_numpy(array), to_numpy(other[name])) for name, array in self.items())

    def __repr__(self) -> str:
        return f"IterationResult({dict(self)!r}, runtime={self.runtime!r}, runner_name={self.runner_name!r})"


Encoder.register(IterationResult)(
    lambda result: {"outputs": result.dct, "runtime": result.runtime, "runner_name": result.runner_name}
)


@Decoder.register(IterationResult)
def _decode_iteration(members: dict[str, Any]) -> IterationResult:
    outputs, runtime = members["outputs"], members["runtime"]
    if not isinstance(outputs, dict) or not all(
        isinstance(o, (LazyArray, np.ndarray)) or is_torch(o) for o in outputs.values()
    ):
        raise errors.FormatError("the outputs of an IterationResult are not arrays by name")
    if runtime is not None and not isinstance(runtime, (int, float)):
        raise errors.FormatError(f"the runtime of an IterationResult is {runtime!r:.80}; expected seconds")
    return IterationResult(outputs, runtime, str(members["runner_name"]))


class SavedList(UserList[T]):
    """A list of results, saved in Polygraphy's format; ``lst`` is the plain list."""

    _DESCRIPTION: ClassVar[str]

    # Scripts of Polygraphy pass `lst`, `elem` and `elems` by name.
    def __init__(self, lst: Iterable[T] | None = None) -> None:
        """Hold results."""
        super().__init__(() if lst is None else lst)

    @property
    def lst(self) -> list[T]:
        """The results."""
        return self.data

    def append(self, elem: T) -> None:
        """Add a result at the end, even if there is another one of its name."""
        self.data.append(elem)

    def extend(self, elems: Iterable[T]) -> None:
        """Add results at the end."""
        self.data.extend(elems)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data!r})"

    def to_json(self) -> str:
        """The results as JSON text in Polygraphy's format."""
        return json.to_json(self)

    @classmethod
    def from_json(cls, src: str | bytes) -> Self:
        """Read the text of :meth:`to_json`; raises FormatError if it is damaged, or of another kind."""
        return cls._expect(json.from_json(src), "the text")

    def save(self, dest: PathLike | IO[str] | IO[bytes]) -> None:
        """Save to a path or an open file: ``.npz`` in our fast format, anything else as Polygraphy's JSON."""
        json.save_json(self, dest, self._DESCRIPTION)

    @classmethod
    def load(cls, src: PathLike | IO[str] | IO[bytes]) -> Self:
        """Load a file of :meth:`save`, of trtops or Polygraphy; raises FormatError as :meth:`from_json`."""
        return cls._expect(json.load_json(src, cls._DESCRIPTION), str(src))

    @classmethod
    def _expect(cls, decoded: object, where: str) -> Self:
        if isinstance(decoded, cls):
            return decoded
        hint = " It may hold inputs: load it with trtops.json.load_json." if isinstance(decoded, (list, dict)) else ""
        raise errors.FormatError(
            f"{where}: JSON cannot be decoded into a {cls.__name__}; it holds a {type(decoded).__name__}.{hint}"
        )


class RunResults(SavedList[tuple[str, list[IterationResult]]]):
    """The iterations of each runner, in order of execution: a list of pairs, also indexed by name.

    ``results["runner"]`` is the runner's list of :class:`IterationResult`, ``results[0]`` the pair of name and list. If
    two runners have the same name, the name means the first.

    >>> results = RunResults()
    >>> results.add([{"y": np.ones(3)}], runner_name="golden")
    >>> results.save("outputs.json")
    >>> RunResults.load("outputs.json")["golden"][0]["y"].tolist()
    [1.0, 1.0, 1.0]
    """

    _DESCRIPTION = "inference results"

    def items(self) -> Iterator[tuple[str, list[IterationResult]]]:
        """Pairs of a runner's name and its iterations."""
        return iter(self.lst)

    def keys(self) -> Iterator[str]:
        """The runners' names."""
        return (name for name, _ in self.lst)

    def values(self) -> Iterator[list[IterationResult]]:
        """The runners' iterations."""
        return (iterations for _, iterations in self.lst)

    def update(self, other: Mapping[str, list[IterationResult]] | RunResults) -> RunResults:
        """Add another run's runners, and return the results themselves.

        A mapping replaces runners of the same name. Those of a run get a number, ``name (2)``, since the default names
        of runners are the same in every process.
        """
        for name, iterations in other.items():
            taken, free = set(self.keys() if isinstance(other, RunResults) else ()), name
            numbers = itertools.count(2)
            while free in taken:
                free = f"{name} ({next(numbers)})"
            self[free] = iterations
        return self

    def add(
        self, out_list: Iterable[Mapping[str, Any]], runtime: float | None = None, runner_name: str | None = None
    ) -> None:
        """Add a runner from plain outputs: arrays by name for each iteration."""
        iterations = [IterationResult(outputs, runtime, runner_name) for outputs in out_list]
        self["custom_runner" if runner_name is None else runner_name] = iterations

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            return self.lst[key]
        if isinstance(key, slice):
            return RunResults(self.lst[key])
        for name, iterations in self.lst:
            if name == key:
                return iterations
        raise errors.ComparisonError(f"{key!r} does not exist in this RunResults. {errors.near(key, self.keys())}")

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, int):
            self.lst[key] = value
            return
        for index, (name, _) in enumerate(self.lst):
            if name == key:
                self.lst[index] = (key, value)
                return
        self.lst.append((key, value))

    def __contains__(self, key: object) -> bool:
        return any(key in (name, (name, iterations)) for name, iterations in self.lst)

    def __eq__(self, other: object) -> bool:
        return self.lst == other.lst if isinstance(other, RunResults) else NotImplemented

    def split(self) -> Iterator[RunResults]:
        """One result per iteration, each with the runners of this iteration."""
        for index in range(max(map(len, self.values()), default=0)):
            yield RunResults((name, [its[index]]) for name, its in self.lst if index < len(its))

    @staticmethod
    def concat(runs: Iterable[RunResults]) -> RunResults:
        """Join iterations of runners of the same name, the inverse of :meth:`split`.

        Runners that share a name within one run are matched by their order.
        """
        joined: dict[tuple[str, int], list[IterationResult]] = {}
        for run in runs:
            seen: dict[str, int] = {}
            for name, iterations in run.items():
                seen[name] = seen.get(name, 0) + 1
                joined.setdefault((name, seen[name]), []).extend(iterations)
        return RunResults((name, iterations) for (name, _), iterations in joined.items())

    @classmethod
    def load(cls, src: PathLike | IO[str] | IO[bytes]) -> Self:
        """Load a file, or a directory with a file per iteration, saved here or in Polygraphy.

        An ``.npz`` archive of numpy with an array per output is one iteration of a runner with the archive's name.
        """
        if isinstance(src, (str, os.PathLike)) and os.path.isdir(src):
            return cls(RunResults.concat(RunResults.load_streaming(src)))
        if isinstance(src, (str, os.PathLike)) and os.fspath(src).endswith(".npz"):
            saved = load_saved(src, cls._DESCRIPTION)
            if isinstance(saved, dict):
                return cls([(Path(src).stem, [IterationResult(saved)])])
            return cls._expect(saved, str(src))
        return super().load(src)

    @staticmethod
    def load_streaming(path: PathLike | Sequence[PathLike], allow_dirs: bool = True) -> Iterator[RunResults]:
        """Load results one iteration at a time, from a directory of iterations, a file, or several of these.

        Raises FormatError if a file is damaged or of another kind, or a directory is not accepted (``allow_dirs``).
        """
        return iterate_files(path, lambda file: RunResults.load(file).split(), allow_dirs)


Encoder.register(RunResults)(lambda results: {"lst": results.lst})


@Decoder.register(RunResults)
def _decode_run(members: dict[str, Any]) -> RunResults:
    pairs = [(str(name), list(iterations)) for name, iterations in members["lst"]]
    if not all(isinstance(i, IterationResult) for i in itertools.chain.from_iterable(its for _, its in pairs)):
        raise errors.FormatError("the iterations of a RunResults are not IterationResults")
    return RunResults(pairs)


PostprocessFunction: TypeAlias = Callable[[IterationResult], IterationResult]
