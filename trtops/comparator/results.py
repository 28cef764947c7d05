"""What runs leave, and what comparisons of them leave: by runner, iteration and output; saved in the field's format."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MutableMapping,
    Sequence,
    ValuesView,
)
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from trtops import config, errors, json
from trtops.comparator.arrays import is_torch, to_numpy
from trtops.comparator.streams import IterationWriter, PathLike, iterate_files
from trtops.json import Decoder, Encoder

if TYPE_CHECKING:
    from trtops.comparator.judgements import CompareResult, Threshold

__all__ = ["AccuracyResult", "AccuracyResults", "IterationResult", "LazyArray", "RunResults"]

Aggregation = Literal["per_sample", "average"]
Match: TypeAlias = "CompareResult | bool"
RunnerPair: TypeAlias = tuple[str, str]
T = TypeVar("T")
Thresholds: TypeAlias = "Threshold | Mapping[str, Threshold]"


class LazyArray:
    """An array that may wait in a temporary file: one larger than ``trtops.config.ARRAY_SWAP_THRESHOLD_MB``.

    Attributes:
        arr: The array, or None while it is in a file.
    """

    __slots__ = ("__weakref__", "_path", "arr")

    def __init__(self, arr: Any) -> None:
        """Hold a numpy array or torch tensor; large ones go to a file, which goes away with this object."""
        self.arr = arr
        self._path: Path | None = None
        limit = config.ARRAY_SWAP_THRESHOLD_MB
        if limit >= 0 and isinstance(arr, np.ndarray) and arr.nbytes > limit << 20:
            handle, name = tempfile.mkstemp(suffix=".npz")
            os.close(handle)
            self._path = Path(name)
            weakref.finalize(self, self._path.unlink, missing_ok=True)
            json.save_json(arr, self._path)
            self.arr = None

    def load(self) -> Any:
        """The array; read anew each time if it waits in a file."""
        return self.arr if self._path is None else json.load_json(self._path)

    def __deepcopy__(self, memo: object) -> LazyArray:
        array = self.load()
        return LazyArray(array.clone() if is_torch(array) else np.array(array))

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyArray, (self.load(),)


@Encoder.register(LazyArray)
def _encode_lazy(lazy: LazyArray) -> dict[str, Any]:
    return {"values": lazy.load()}


@Decoder.register(LazyArray, alias="LazyNumpyArray")
def _decode_lazy(members: dict[str, Any]) -> LazyArray:
    values = members["values"]
    if not isinstance(values, np.ndarray) and not is_torch(values):
        raise errors.FormatError(f"a LazyArray holds a {type(values).__name__} where an array was expected")
    return LazyArray(values)


class IterationResult(MutableMapping[str, Any]):
    """The outputs of one inference by name, in the model's order: arrays in host memory (or torch tensors).

    Attributes:
        runtime: Seconds that the inference took, or None if not known.
        runner_name: Who made them.
        dct: The outputs as they are kept.
    """

    __slots__ = ("dct", "runner_name", "runtime")

    def __init__(
        self,
        outputs: Mapping[str, Any] | None = None,
        runtime: float | None = None,
        runner_name: str | None = None,
    ) -> None:
        """Hold outputs; the arrays are not copied.

        Args:
            outputs: Arrays by output name.
            runtime: Seconds that the inference took.
            runner_name: Who made them; ``custom_runner`` if not given.
        """
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

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IterationResult({dict(self)!r}, runtime={self.runtime!r}, runner_name={self.runner_name!r})"


@Encoder.register(IterationResult)
def _encode_iteration(result: IterationResult) -> dict[str, Any]:
    return {"outputs": result.dct, "runtime": result.runtime, "runner_name": result.runner_name}


@Decoder.register(IterationResult)
def _decode_iteration(members: dict[str, Any]) -> IterationResult:
    outputs, runtime = members["outputs"], members["runtime"]
    if not isinstance(outputs, dict) or not all(
        isinstance(o, (LazyArray, np.ndarray)) or is_torch(o) for o in outputs.values()
    ):
        raise errors.FormatError("the outputs of an IterationResult are no arrays by name")
    if runtime is not None and not isinstance(runtime, (int, float)):
        raise errors.FormatError(f"the runtime of an IterationResult is {runtime!r:.80}; expected seconds")
    return IterationResult(outputs, runtime, str(members["runner_name"]))


class RunResults:
    """The iterations of each runner, in the order in which they ran: a list of pairs that also answers to names.

    ``results["runner"]`` is the runner's list of :class:`IterationResult`, ``results[0]`` the pair of name and list.
    Two runners may have the same name; a name then means the first.

    Attributes:
        lst: The pairs.
    """

    def __init__(self, lst: Iterable[tuple[str, list[IterationResult]]] | None = None) -> None:
        """Hold pairs of a runner's name and its iterations."""
        self.lst: list[tuple[str, list[IterationResult]]] = [] if lst is None else list(lst)

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
        """Put in another run's runners, in the place of those of the same name; returns the results themselves."""
        for name, iterations in other.items():
            self[name] = iterations
        return self

    def add(
        self, out_list: Iterable[Mapping[str, Any]], runtime: float | None = None, runner_name: str | None = None
    ) -> None:
        """Put in a runner from plain outputs.

        Args:
            out_list: The outputs of each iteration: arrays by name.
            runtime: Seconds that each inference took.
            runner_name: The runner; ``custom_runner`` if not given.
        """
        iterations = [IterationResult(outputs, runtime, runner_name) for outputs in out_list]
        self["custom_runner" if runner_name is None else runner_name] = iterations

    def append(self, pair: tuple[str, list[IterationResult]]) -> None:
        """Put a runner behind the others, even if there is one of its name."""
        self.lst.append(pair)

    def extend(self, pairs: Iterable[tuple[str, list[IterationResult]]]) -> None:
        """Put runners behind the others."""
        self.lst.extend(pairs)

    @overload
    def __getitem__(self, key: str) -> list[IterationResult]: ...
    @overload
    def __getitem__(self, key: int) -> tuple[str, list[IterationResult]]: ...
    @overload
    def __getitem__(self, key: slice) -> RunResults: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, int):
            return self.lst[key]
        if isinstance(key, slice):
            return RunResults(self.lst[key])
        for name, iterations in self.lst:
            if name == key:
                return iterations
        raise errors.ComparisonError(f"There are no results of a runner {key!r}. {errors.near(key, self.keys())}")

    def __setitem__(self, key: str | int, value: Any) -> None:
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

    def __iter__(self) -> Iterator[tuple[str, list[IterationResult]]]:
        return iter(self.lst)

    def __len__(self) -> int:
        return len(self.lst)

    def __eq__(self, other: object) -> bool:
        return self.lst == other.lst if isinstance(other, RunResults) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RunResults({self.lst!r})"

    def split(self) -> Iterator[RunResults]:
        """One result per iteration, each with the runners that have it."""
        for index in range(max(map(len, self.values()), default=0)):
            yield RunResults((name, [its[index]]) for name, its in self.lst if index < len(its))

    @staticmethod
    def concat(runs: Iterable[RunResults]) -> RunResults:
        """Join what :meth:`split` took apart: the iterations of runners of the same name, one behind the other.

        Runners that share a name within one run stay apart, matched by their order.
        """
        joined: dict[tuple[str, int], list[IterationResult]] = {}
        for run in runs:
            seen: dict[str, int] = {}
            for name, iterations in run.items():
                seen[name] = seen.get(name, 0) + 1
                joined.setdefault((name, seen[name]), []).extend(iterations)
        return RunResults((name, iterations) for (name, _), iterations in joined.items())

    def to_json(self) -> str:
        """The results as JSON text in the field's format."""
        return json.to_json(self)

    @staticmethod
    def from_json(src: str | bytes) -> RunResults:
        """Read what :meth:`to_json` wrote.

        Raises:
            FormatError: If the text is damaged, or holds something else.
        """
        return _expect(RunResults, json.from_json(src), "the text")

    def save(self, dest: PathLike | IO[str] | IO[bytes]) -> None:
        """Save to a path, or as JSON to an open file.

        A path that ends in ``.npz`` gets trtops's fast format, any other the field's JSON; see :mod:`trtops.json`.
        """
        json.save_json(self, dest, "inference results")

    def save_iterations(self, directory: PathLike) -> None:
        """Save to a new or empty directory, one file per iteration, as :meth:`load_streaming` reads them.

        Raises:
            ConfigError: If the directory holds something, or its name has an ending.
        """
        if (writer := IterationWriter[RunResults](directory, description="inference results")).single_file:
            raise errors.ConfigError(f"{directory} has an ending, which names a single file. Use save() for that.")
        for run in self.split():
            writer.append(run)

    @staticmethod
    def load(src: PathLike | IO[str] | IO[bytes]) -> RunResults:
        """Load what :meth:`save` or :meth:`save_iterations` wrote, here or in the field's tool.

        Raises:
            FormatError: If the file is damaged, or holds something else.
        """
        if isinstance(src, (str, os.PathLike)) and os.path.isdir(src):
            return RunResults.concat(RunResults.load_streaming(src))
        return _expect(RunResults, json.load_json(src, "inference results"), str(src))

    @staticmethod
    def load_streaming(path: PathLike | Sequence[PathLike], allow_dirs: bool = True) -> Iterator[RunResults]:
        """Load one iteration at a time.

        Args:
            path: A directory of iterations, of which one is in memory at a time; or a file, which is loaded whole; or
                several of these, one behind the other.
            allow_dirs: Whether directories are taken.

        Yields:
            Results with one iteration per runner.

        Raises:
            FormatError: If a file is damaged, or holds something else.
        """
        return iterate_files(path, lambda file: RunResults.load(file).split(), allow_dirs)


@Encoder.register(RunResults)
def _encode_run(results: RunResults) -> dict[str, Any]:
    return {"lst": results.lst}


@Decoder.register(RunResults)
def _decode_run(members: dict[str, Any]) -> RunResults:
    pairs = [(str(name), list(iterations)) for name, iterations in members["lst"]]
    if not all(isinstance(i, IterationResult) for _, iterations in pairs for i in iterations):
        raise errors.FormatError("the iterations of a RunResults are no IterationResults")
    return RunResults(pairs)


def _expect(kind: type[T], found: object, where: str) -> T:
    if not isinstance(found, kind):
        hint = " It may hold inputs: load it with trtops.json.load_json." if isinstance(found, (list, dict)) else ""
        raise errors.FormatError(f"{where} holds a {type(found).__name__}; expected {kind.__name__}.{hint}")
    return found


class AccuracyResult(MutableMapping[RunnerPair, list[dict[str, Match]]]):
    """What one compare function found: per pair of runners and iteration, a match per output.

    A match is true or false, or something with a truth value that knows its numbers, such as an
    :class:`~trtops.comparator.judgements.OutputCompareResult`. The whole is true if everything matched.

    Attributes:
        dct: The matches.
        aggregation: ``per_sample`` judges every iteration, ``average`` each number's mean over all iterations.
    """

    def __init__(
        self,
        dct: Mapping[RunnerPair, list[dict[str, Match]]] | None = None,
        aggregation: Aggregation = "per_sample",
    ) -> None:
        """Hold matches by pair of runners' names."""
        self.dct: dict[RunnerPair, list[dict[str, Match]]] = dict(dct or {})
        self.aggregation: Aggregation = aggregation

    def __getitem__(self, pair: RunnerPair) -> list[dict[str, Match]]:
        try:
            return self.dct[pair]
        except KeyError:
            known = ", ".join(map(repr, self.dct)) or "none"
            raise KeyError(f"{pair!r} was not compared; compared: {known}") from None

    def __setitem__(self, pair: RunnerPair, iterations: list[dict[str, Match]]) -> None:
        self.dct[pair] = iterations

    def __delitem__(self, pair: RunnerPair) -> None:
        del self.dct[pair]

    def __iter__(self) -> Iterator[RunnerPair]:
        return iter(self.dct)

    def __len__(self) -> int:
        return len(self.dct)

    def __bool__(self) -> bool:
        if self.aggregation == "average":
            return all(bool(m) for pair in self for m in self.average_results(pair).values())
        return all(bool(m) for iterations in self.values() for matches in iterations for m in matches.values())

    def __repr__(self) -> str:
        return f"AccuracyResult({self.dct!r}, aggregation={self.aggregation!r})"

    def _pair(self, pair: RunnerPair | None) -> RunnerPair:
        if pair is None:
            if not self.dct:
                raise errors.ComparisonError("Nothing was compared: there are no pairs of runners.")
            return next(iter(self.dct))
        return pair

    def stats(self, runner_pair: RunnerPair | None = None) -> tuple[int, int, int]:
        """How many iterations matched, mismatched, and were there in all.

        Args:
            runner_pair: The runners' names; the first pair if not given.
        """
        iterations = self[self._pair(runner_pair)]
        matched = sum(all(bool(m) for m in matches.values()) for matches in iterations)
        return matched, len(iterations) - matched, len(iterations)

    def percentage(self, runner_pair: RunnerPair | None = None) -> float:
        """The share of iterations that matched, between 0 and 1; 1 if there were none.

        Args:
            runner_pair: The runners' names; the first pair if not given.
        """
        if not self.dct:
            return 1.0
        matched, _, total = self.stats(runner_pair)
        return matched / total if total else 1.0

    def output_names(self) -> list[str]:
        """The outputs that were compared, in order of appearance."""
        return list(dict.fromkeys(name for its in self.values() for matches in its for name in matches))

    def metric_fields(self) -> list[str]:
        """Names of the numbers that the matches carry; none if they are bare truth values."""
        for iterations in self.values():
            for matches in iterations:
                for match in matches.values():
                    if not isinstance(match, bool):
                        return match.metric_fields()
        return []

    def average_results(self, runner_pair: RunnerPair | None = None) -> dict[str, CompareResult]:
        """Each output's numbers averaged over the iterations, with the thresholds they were judged by.

        Args:
            runner_pair: The runners' names; the first pair if not given.

        Raises:
            ComparisonError: If an iteration has no numbers for an output, as after a mismatch of shapes.
        """
        iterations = self[self._pair(runner_pair)]
        averages = {}
        for name in dict.fromkeys(name for matches in iterations for name in matches):
            found = [matches[name] for matches in iterations if name in matches]
            results = [match for match in found if not isinstance(match, bool)]
            if len(results) < len(found) or not results[0].metric_fields():
                raise errors.ComparisonError(
                    f"Output {name!r} cannot be averaged: at least one iteration has no numbers for it (its shapes "
                    "differed, or the compare function only says yes or no). Judge per sample instead."
                )
            averages[name] = results[0].average(results)
        return averages

    def describe_average(self, runner_pair: RunnerPair | None = None) -> dict[str, tuple[str, bool]]:
        """A line of words and a verdict per output for :meth:`average_results`, where its result has one.

        Args:
            runner_pair: The runners' names; the first pair if not given.
        """
        described = {name: result.describe() for name, result in self.average_results(runner_pair).items()}
        return {name: line for name, line in described.items() if line is not None}

    def reevaluate(self, thresholds: Thresholds, aggregation: Aggregation | None = None) -> AccuracyResult:
        """Judge the stored numbers by other thresholds, in place.

        Args:
            thresholds: One for all outputs, or by output with ``""`` for the others.
            aggregation: Judge per sample or averages from now on; as before if not given.

        Returns:
            The result itself.

        Raises:
            ComparisonError: If an output has no threshold, or no numbers for it.
        """
        changes: list[tuple[CompareResult, Threshold]] = []
        for iterations in self.values():
            for matches in iterations:
                for name, match in matches.items():
                    changes.append((_with_numbers(name, match), _threshold_for(name, thresholds)))
        for match, threshold in changes:
            missing = [f for f in threshold.metric_fields() if f not in match.metric_fields()]
            if missing:
                raise errors.ComparisonError(
                    f"{type(threshold).__name__} needs {', '.join(missing)}; the results have {', '.join(match.metric_fields())}."
                )
        for match, threshold in changes:
            match.set_thresholds(threshold)
        self.aggregation = aggregation or self.aggregation
        return self


def _with_numbers(name: str, match: Match) -> CompareResult:
    if isinstance(match, bool) or not match.metric_fields():
        raise errors.ComparisonError(
            f"Output {name!r} cannot be judged again: no numbers were stored for it (its shapes differed, or the compare "
            "function only says yes or no). Compare the outputs again."
        )
    return match


def _threshold_for(name: str, thresholds: Thresholds) -> Threshold:
    if not isinstance(thresholds, Mapping):
        return thresholds
    found = thresholds.get(name, thresholds.get(""))
    if found is None:
        raise errors.ComparisonError(
            f"There is no threshold for output {name!r}. Add it, or one under '' for all others."
        )
    return found


class AccuracyResults:
    """One :class:`AccuracyResult` per compare function; true if each is.

    Where there is one only, it also answers as that one: ``results[pair]``, ``stats``, ``percentage`` and its like, as
    older scripts expect.

    Attributes:
        lst: The results.
    """

    def __init__(self, lst: Iterable[AccuracyResult] | None = None) -> None:
        """Hold results."""
        self.lst = [] if lst is None else list(lst)

    def __bool__(self) -> bool:
        return all(bool(result) for result in self.lst)

    def __iter__(self) -> Iterator[Any]:
        """The results; of a single one, as in older releases, use :meth:`keys`, :meth:`values` or :meth:`items`."""
        return iter(self.lst)

    def __len__(self) -> int:
        return len(self.lst)

    @overload
    def __getitem__(self, key: int) -> AccuracyResult: ...
    @overload
    def __getitem__(self, key: RunnerPair) -> list[dict[str, Match]]: ...
    def __getitem__(self, key: int | RunnerPair) -> Any:
        return self.lst[key] if isinstance(key, int) else self._only()[key]

    def __repr__(self) -> str:
        return f"AccuracyResults({self.lst!r})"

    def _only(self) -> AccuracyResult:
        if len(self.lst) != 1:
            raise errors.ComparisonError(
                f"There are {len(self.lst)} compare functions' results; say which, such as results[0]."
            )
        return self.lst[0]

    def keys(self) -> KeysView[RunnerPair]:
        """The pairs of runners, if there is one result."""
        return self._only().keys()

    def values(self) -> ValuesView[list[dict[str, Match]]]:
        """The matches, if there is one result."""
        return self._only().values()

    def items(self) -> ItemsView[RunnerPair, list[dict[str, Match]]]:
        """The pairs of runners and their matches, if there is one result."""
        return self._only().items()

    def stats(self, runner_pair: RunnerPair | None = None) -> tuple[int, int, int]:
        """As :meth:`AccuracyResult.stats`, if there is one result."""
        return self._only().stats(runner_pair)

    def percentage(self, runner_pair: RunnerPair | None = None) -> float:
        """As :meth:`AccuracyResult.percentage`, if there is one result."""
        return self._only().percentage(runner_pair)

    def output_names(self) -> list[str]:
        """The outputs that any function compared, in order of appearance."""
        return list(dict.fromkeys(name for result in self.lst for name in result.output_names()))

    def reevaluate(
        self, thresholds: Thresholds | Sequence[Thresholds], aggregation: Aggregation | None = None
    ) -> AccuracyResults:
        """Judge the stored numbers by other thresholds, in place; results that no threshold is for are dropped.

        Args:
            thresholds: One or several, each for the result whose numbers it names, and each for all outputs or by
                output with ``""`` for the others.
            aggregation: Judge per sample or averages from now on; as before if not given.

        Returns:
            The results themselves.

        Raises:
            ComparisonError: If a threshold fits no result, or not all of one. Nothing is changed then.
        """
        wanted = (
            [thresholds]
            if isinstance(thresholds, Mapping) or not isinstance(thresholds, Sequence)
            else list(thresholds)
        )
        left, chosen = list(self.lst), []
        for threshold in wanted:
            fields = _fields_of(threshold)
            match = next((r for r in left if r.metric_fields() == fields), None)
            if match is None:
                known = "; ".join(", ".join(r.metric_fields()) or "no numbers" for r in self.lst)
                raise errors.ComparisonError(f"No result has {', '.join(fields)}; the results have: {known}.")
            left.remove(match)
            chosen.append((match, threshold))
        self.lst = [match.reevaluate(threshold, aggregation) for match, threshold in chosen]
        return self

    def to_json(self) -> str:
        """The results as JSON text in the field's format."""
        return json.to_json(self)

    @staticmethod
    def from_json(src: str | bytes) -> AccuracyResults:
        """Read what :meth:`to_json` wrote.

        Raises:
            FormatError: If the text is damaged, or holds something else.
        """
        return _expect_accuracy(json.from_json(src), "the text")

    def save(self, dest: PathLike | IO[str] | IO[bytes]) -> None:
        """Save to a path or an open file; see :meth:`RunResults.save`."""
        json.save_json(self, dest, "accuracy results")

    @staticmethod
    def load(src: PathLike | IO[str] | IO[bytes]) -> AccuracyResults:
        """Load what :meth:`save` wrote, here or in the field's tool.

        Raises:
            FormatError: If the file is damaged, or holds something else.
        """
        return _expect_accuracy(json.load_json(src, "accuracy results"), str(src))


def _expect_accuracy(found: object, where: str) -> AccuracyResults:
    return AccuracyResults([found]) if isinstance(found, AccuracyResult) else _expect(AccuracyResults, found, where)


def _fields_of(thresholds: Thresholds) -> list[str]:
    if isinstance(thresholds, Mapping):
        if not thresholds:
            raise errors.ComparisonError("The thresholds by output are empty.")
        return next(iter(thresholds.values())).metric_fields()
    return thresholds.metric_fields()


@Encoder.register(AccuracyResult)
def _encode_accuracy(result: AccuracyResult) -> dict[str, Any]:
    return {"lst": [[list(pair), its] for pair, its in result.dct.items()], "aggregation": result.aggregation}


@Decoder.register(AccuracyResult)
def _decode_accuracy(members: dict[str, Any]) -> AccuracyResult:
    if members["aggregation"] not in ("per_sample", "average"):
        raise errors.FormatError(f"the aggregation of an AccuracyResult is {members['aggregation']!r:.80}")
    content = {(str(first), str(second)): list(iterations) for (first, second), iterations in members["lst"]}
    if not all(isinstance(matches, dict) for iterations in content.values() for matches in iterations):
        raise errors.FormatError("the matches of an AccuracyResult are not by output")
    return AccuracyResult(content, members["aggregation"])


@Encoder.register(AccuracyResults)
def _encode_accuracies(results: AccuracyResults) -> dict[str, Any]:
    return {"lst": results.lst}


@Decoder.register(AccuracyResults)
def _decode_accuracies(members: dict[str, Any]) -> AccuracyResults:
    results = members["lst"]
    if not all(isinstance(result, AccuracyResult) for result in results):
        raise errors.FormatError("an AccuracyResults holds something else than AccuracyResults")
    return AccuracyResults(results)


PostprocessFunction: TypeAlias = Callable[[IterationResult], IterationResult]
CompareFunction: TypeAlias = Callable[[IterationResult, IterationResult], Mapping[str, Match]]
