"""Input data of ops: random numbers, saved inputs, folders of arrays, a script, or an iterable."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.common import invoke_from_script
from trtops.calibration.data import FeedDigest
from trtops.comparator.data_loader import DataLoader, cast_feed
from trtops.comparator.streams import load_saved
from trtops.metadata import TensorMetadata, is_dynamic
from trtops.record import Record
from trtops.system.allowed import check_file

if TYPE_CHECKING:
    from trtops.backend.onnx.accepted_inputs import AcceptedInputs
    from trtops.backend.onnx.model import Model

log = logging.getLogger(__name__)

_SUFFIXES = (".json", ".npz", ".npy")
_KINDS = "a .json file of saved inputs, an .npz or .npy file, a folder of these, or a .py script"


@dataclass(frozen=True)
class Feeds:
    """Feeds that can be read any number of times, in the same order, one at a time."""

    source: str
    _open: Callable[[], Iterable[Feed]] = field(repr=False)

    def __iter__(self) -> Iterator[Feed]:
        """Yield feeds: arrays by name, in host memory; InputError for anything else, or no feed."""
        count = 0
        for count, feed in enumerate(self._open(), start=1):
            if not isinstance(feed, Mapping):
                raise errors.InputError(
                    f"{self.source}: item {count} is a {type(feed).__name__}; expected a mapping of names to arrays."
                )
            yield feed
        if not count:
            raise errors.InputError(f"{self.source}: there is no data; expected at least one feed.")

    def first(self, count: int) -> Feeds:
        """The first ``count`` feeds of the source."""
        return Feeds(f"{self.source} (first {count})", lambda: itertools.islice(self._open(), count))

    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and contents of all feeds in order."""
        digest = FeedDigest()
        for feed in self:
            digest.add(feed)
        return digest.hexdigest()


def open_feeds(
    source: str | Path | Iterable[Feed] | None,
    inputs: TensorMetadata,
    *,
    iterations: int = 1,
    seed: int = 1,
    readable: Callable[[], AcceptedInputs] | None = None,
) -> Feeds:
    """Open a data source of any kind. Numbers of another type than the input's are cast, with a warning.

    Args:
        source: None for random data; a path to saved inputs (``.json``), to one feed (``.npz`` with an array per input,
            ``.npy`` for a model with one input), to a folder of such files, or to a script (``loader.py`` or
            ``loader.py:function``, by default ``load_data``); or an iterable of feeds. A
            :class:`~trtops.comparator.DataLoader` first gets the inputs.
        inputs: The model's inputs. Dynamic dimensions of random data get size 1.
        iterations: Number of random feeds.
        seed: Seed of the first one.
        readable: Returns the valid values of integer and string inputs; called only if there are any.

    Raises ConfigError if the path does not exist, or its suffix is unknown.
    """
    if source is None:
        # Random integers index tables in many models, where values out of range crash or read garbage.
        fixed, plain = TensorMetadata(), True
        for name, spec in inputs.items():
            if spec.shape is None:
                what = "type" if spec.dtype is None else "rank"
                raise errors.InputError(
                    f"Input {name!r} has no known {what}, so it needs data. Give a data source, or make it inside the "
                    "model."
                )
            shape = tuple(1 if is_dynamic(dim) else dim for dim in spec.shape)
            if shape != spec.shape:
                log.info("Input %r has shape %s; random data has shape %s.", name, spec.shape, shape)
            fixed.add(name, spec.dtype, shape)
            plain = plain and (spec.dtype is None or spec.dtype.is_floating)
        values = None if plain or readable is None else readable()
        ranges: dict[str, tuple[float | None, float | None]] = {"": (0.0, 1.0), **(values.ranges if values else {})}
        words = values.words if values else {}
        return Feeds(
            f"random data (seed {seed})",
            lambda: DataLoader(seed=seed, iterations=iterations, input_metadata=fixed, val_range=ranges, words=words),
        )
    if isinstance(source, (str, Path)):
        feeds = _from_path(str(source), inputs)
    elif isinstance(source, Iterator):
        kept = list(source)  # an iterator can be read only once
        feeds = Feeds("the given iterator", lambda: kept)
    else:
        feeds = Feeds(f"the given {type(source).__name__}", lambda: source)

    def cast() -> Iterator[Feed]:
        if hasattr(source, "input_metadata"):
            source.input_metadata = inputs
        for feed in feeds._open():
            yield cast_feed(feed, inputs) if isinstance(feed, Mapping) else feed

    return Feeds(feeds.source, cast)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Record):
    """Input data: the base of all configs of ops that read data.

    Attributes:
        data: Where inputs come from (:func:`open_feeds`); random data by default.
        iterations: Number of random feeds.
        seed: Seed of the random data.
    """

    data: str | None = None
    iterations: int = 1
    seed: int = 1

    def open(self, inputs: TensorMetadata) -> Feeds:
        """The feeds of a model with these inputs; errors as in :func:`open_feeds`."""
        return open_feeds(self.data, inputs, iterations=self.iterations, seed=self.seed)

    def open_for(
        self, model: Model, instead: Iterable[Feed] | None = None, inputs: TensorMetadata | None = None
    ) -> Feeds:
        """The feeds of a model, from ``instead`` if it is given; random integers and strings are valid in the model."""
        from trtops.backend.onnx.accepted_inputs import accepted_inputs  # imports onnx

        return open_feeds(
            self.data if instead is None else instead,
            TensorMetadata.of(model.info.inputs) if inputs is None else inputs,
            iterations=self.iterations,
            seed=self.seed,
            readable=lambda: accepted_inputs(model.structure()),
        )


def check_source(source: str | None) -> None:
    """Raise ConfigError for a script that may not be run (:mod:`trtops.system.allowed`)."""
    for script in scripts_of(source):
        check_file(script)


def scripts_of(*sources: str | None) -> list[str]:
    """The scripts among data sources."""
    paths = (_path_and_function(source)[0] for source in sources if source is not None)
    return [str(path) for path in paths if path.suffix == ".py"]


def _path_and_function(text: str) -> tuple[Path, str]:
    script, _, function = text.rpartition(":")
    return (Path(script), function) if script.endswith(".py") else (Path(text), "load_data")


def _from_path(text: str, inputs: TensorMetadata) -> Feeds:
    path, function = _path_and_function(text)
    if not path.exists():
        raise errors.ConfigError(f"Data source {text!r} does not exist. Give a path to {_KINDS}.")
    if path.suffix == ".py":
        check_file(path)

        def called() -> Iterable[Feed]:
            loaded: Any = invoke_from_script(str(path), function)
            if not isinstance(loaded, Iterable):
                kind = type(loaded).__name__
                raise errors.InputError(f"{path}:{function} returned a {kind}; expected an iterable of feeds.")
            return loaded

        return Feeds(text, called)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
        if not files:
            raise errors.InputError(f"{path} has no .npz, .npy or .json file.")
    elif path.suffix not in _SUFFIXES:
        raise errors.ConfigError(f"Data source {text!r} has an unknown suffix. Give a path to {_KINDS}.")
    return Feeds(text, lambda: itertools.chain.from_iterable(_read_file(file, inputs) for file in files))


def _read_file(path: Path, inputs: TensorMetadata) -> Iterable[Feed]:
    loaded = load_saved(path)
    if isinstance(loaded, np.ndarray):
        if len(inputs) != 1:
            raise errors.InputError(
                f"{path} holds one array, and the model has {len(inputs)} inputs; use .npz with their names."
            )
        loaded = {next(iter(inputs)): loaded}
    return [loaded] if isinstance(loaded, Mapping) else loaded
