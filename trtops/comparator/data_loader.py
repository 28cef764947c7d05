"""Inputs of models: random ones, equal in every run and on every machine, and saved ones."""

import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array, cast_array, closest_name, permuted_axes, to_numpy
from trtops.comparator.streams import PathLike, iterate_files, load_saved
from trtops.extras import require
from trtops.metadata import (
    DEFAULT_SHAPE_VALUE,
    BoundedShape,
    DataType,
    Dim,
    Shape,
    TensorMetadata,
    TensorSpec,
    is_dynamic,
    shape_accepts,
    with_data_types,
)
from trtops.system.limits import check_array
from trtops.torch_tensors import to_torch

Range: TypeAlias = tuple[float | None, float | None]

_log = logging.getLogger(__name__)

# The same as Polygraphy's.
DEFAULT_SEED = 1


class DataLoader:
    """Makes random inputs for a model: a sequence of feeds.

    For the same seed, shapes, dtypes and ranges the arrays are bit for bit those of Polygraphy. ``input_metadata``
    holds the inputs to make, and is set from the runner before a model is run.

    >>> inputs = TensorMetadata().add("x", "float32", (2, 3))
    >>> [(feed["x"].shape, feed["x"].dtype) for feed in DataLoader(iterations=1, input_metadata=inputs)]
    [((2, 3), dtype('float32'))]
    """

    def __init__(
        self,
        seed: int | None = DEFAULT_SEED,
        iterations: int | None = 1,
        input_metadata: Mapping[str, TensorSpec] | None = None,
        val_range: Range | Mapping[str, Range] | None = (0.0, 1.0),
        data_loader_backend_module: Literal["numpy", "torch"] | None = "numpy",
        int_range: tuple[int, int] | None = None,
        float_range: tuple[float, float] | None = None,
        words: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Describe the inputs; None stands for a default.

        Args:
            seed: The first iteration's seed; each next one counts up.
            iterations: The number of iterations.
            input_metadata: Shapes and dtypes to use, by input; ``*`` in a name stands for any text. For an input whose
                value is a shape, the "shape" is its value.
            val_range: Smallest and largest value, both included; or these by input, with ``""`` for the others.
            data_loader_backend_module: What arrays to make: ``numpy`` or ``torch``.
            int_range: Like ``val_range``, for integers and booleans only.
            float_range: Like ``val_range``, for floating-point inputs only.
            words: Values to draw for inputs of strings, by name.
        """
        self.seed = DEFAULT_SEED if seed is None else seed
        self.iterations = 1 if iterations is None else iterations
        self.user_input_metadata: Mapping[str, TensorSpec] = with_data_types(input_metadata or {})
        self.input_metadata: Mapping[str, TensorSpec] | None = None
        self.val_range: Range | Mapping[str, Range] = (0.0, 1.0) if val_range is None else val_range
        self.int_range = int_range
        self.float_range = float_range
        self.words = words or {}
        self.module = data_loader_backend_module or "numpy"
        if self.module not in ("numpy", "torch"):
            raise errors.ConfigError(f"data_loader_backend_module is {self.module!r}; expected 'numpy' or 'torch'.")
        if not 0 <= self.seed < 1 << 32 or self.iterations < 0:
            raise errors.ConfigError(
                f"seed is {self.seed} and iterations {self.iterations}; expected a seed from 0 to 4294967295, and 0 or "
                "more iterations."
            )
        for name in self.val_range if isinstance(self.val_range, Mapping) else ("",):
            self._value_range(name, None)
        for special in (int_range, float_range):
            self._value_range("", special)

    def __len__(self) -> int:
        return self.iterations

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(self.iterations))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The inputs of one iteration, by name: new arrays in host memory.

        Raises IndexError if there are fewer iterations; ConfigError if the shape of an input is not known, or a range
        or dtype is invalid.
        """
        if index >= self.iterations:
            raise IndexError(f"iteration {index} of {self.iterations}")
        input_specs = with_data_types(self.user_input_metadata if self.input_metadata is None else self.input_metadata)
        if not input_specs:
            _log.warning("The data loader has no input metadata, and makes no inputs")
        # Polygraphy draws from numpy's legacy generator, input by input in the model's order; default_rng would give
        # other numbers for the same seed.
        random = np.random.RandomState(self.seed + index)
        self._user_places = {name: position for position, name in enumerate(self.user_input_metadata)}
        self._user_patterns = [name for name in self._user_places if not {"*", "?", "["}.isdisjoint(name)]
        ranges = self.val_range if isinstance(self.val_range, Mapping) else {}
        for option, names in [("input_metadata", self.user_input_metadata), ("val_range", ranges)]:
            for name in names:
                if (
                    name
                    and name not in input_specs
                    and not any(fnmatchcase(input_name, name) for input_name in input_specs)
                ):
                    hint = errors.near(name, input_specs)
                    _log.warning("%s names %r, which is not an input of the model. %s", option, name, hint)
        arrays = {name: self._make_input(name, spec, random) for name, spec in self._completed(input_specs).items()}
        if self.module == "numpy":
            return arrays
        require("torch")
        return {name: to_torch(array) for name, array in arrays.items()}

    def _completed(self, input_specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Give dimensions the size that a requested shape has for the same name."""
        sizes: dict[Dim, Dim] = {}
        for name, spec in input_specs.items():
            requested = self.user_input_metadata.get(name)
            if requested is not None and requested.shape is not None:
                sizes |= zip(spec.shape or (), requested.shape)
        completed = {}
        for name, spec in input_specs.items():
            if name not in self.user_input_metadata and spec.shape is not None:
                shape = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape]
                spec = dataclasses.replace(spec, shape=shape) if shape != [*spec.shape] else spec
            completed[name] = spec
        return completed

    def _make_input(self, name: str, spec: TensorSpec, random: np.random.RandomState) -> Any:
        dtype, shape = spec.dtype, spec.shape
        if shape is None:
            raise errors.ConfigError(f"The shape of input {name!r} is not known. Give one in input_metadata.")
        matching = [p for p in self._user_patterns if fnmatchcase(name, p)]
        if name in self._user_places:
            matching.append(name)
        if matching:
            user = self.user_input_metadata[max(matching, key=lambda pattern: self._user_places[pattern])]
            dtype = user.dtype or dtype
            if user.shape is not None:
                static = not any(map(is_dynamic, user.shape))
                # A vector of integers with as many elements as the user's shape has dimensions: its value is a shape.
                if static and (dtype is None or dtype.is_integral) and tuple(shape) == (len(user.shape),):
                    return np.array(user.shape, None if dtype is None else dtype.numpy())
                if static and shape_accepts(shape, [int(d) for d in user.shape if isinstance(d, int)]):
                    shape = user.shape
                else:
                    text = "Input %r: the requested shape %s is dynamic or does not fit the model's %s; it is not used"
                    _log.warning(text, name, tuple(user.shape), tuple(shape))
        fixed = _static_shape(name, shape)
        # Numbers are drawn in double precision, and scaling them takes as much memory again: 16 bytes an element. Where
        # outputs are as large, keeping and comparing them takes more: `debug build` of a Relu was measured with 49.
        check_array(name, fixed, 48)
        if dtype is not None and (dtype.is_integral or dtype is DataType.BOOL):
            low, high = self._value_range(name, self.int_range)
            cast, of_numpy = int if dtype.is_integral else bool, dtype.numpy()
            first, end = int(cast(low)), int(cast(high)) + 1
            # Numpy does not draw 4-bit integers.
            if of_numpy.isbuiltin == 2:
                return np.asarray(random.randint(first, end, fixed)).astype(of_numpy)
            try:
                return np.array(random.randint(first, end, fixed, of_numpy))
            except ValueError as exc:
                raise errors.ConfigError(f"The range ({first}, {end - 1}) does not fit {of_numpy}: {exc}.") from None
        if dtype is DataType.STRING:
            if name not in self.words:
                raise errors.ConfigError("Random strings cannot be made. Supply string inputs.")
            words = self.words[name]
            return np.asarray(np.array(words, object)[random.randint(0, len(words), fixed)], object)
        low, high = self._value_range(name, self.float_range)
        # Polygraphy's rule: an infinite bound becomes the scale.
        scale, shift = (low, 0.0) if math.isinf(low) else (high - low, low)
        scale = high if math.isinf(high) else scale
        with np.errstate(invalid="ignore", over="ignore"):
            numbers = np.asarray(random.random_sample(fixed) * scale + shift)
            return numbers.astype((dtype or DataType.FLOAT64).numpy())

    def _value_range(self, name: str, special: tuple[float, float] | None) -> tuple[float, float]:
        chosen: Any = special if special is not None else self.val_range
        if isinstance(chosen, Mapping):
            chosen = chosen.get(name, chosen.get("", (0.0, 1.0)))
        low, high = chosen
        low, high = 0.0 if low is None else low, 1.0 if high is None else high
        if not low <= high:
            raise errors.ConfigError(
                f"The range of input {name!r} is ({low}, {high}); its start exceeds its end, or one is not a number."
            )
        return low, high


def _static_shape(name: str, shape: Shape) -> tuple[int, ...]:
    """A shape without dynamic dimensions: the smallest, or else the largest, or else with 1 for each."""
    if not any(map(is_dynamic, shape)):
        return tuple(int(d) for d in shape if isinstance(d, int))
    bounds = (shape.min or shape.max) if isinstance(shape, BoundedShape) else None
    fixed = bounds or tuple(d if isinstance(d, int) and d >= 0 else DEFAULT_SHAPE_VALUE for d in shape)
    _log.warning(
        "Input %r has the dynamic shape %s; data of shape %s is made. Give a shape to change that", name, shape, fixed
    )
    return tuple(fixed)


class StreamingDataLoader:
    """Reads saved inputs one iteration at a time, as a data loader."""

    def __init__(self, paths: PathLike | Sequence[PathLike], allow_dirs: bool = True) -> None:
        """Store the paths; files are read during iteration."""
        self.paths = paths
        self.allow_dirs = allow_dirs

    def __iter__(self) -> Iterator[dict[str, Any]]:
        def read(path: PathLike) -> list[Any]:
            content = load_saved(path)
            return content if isinstance(content, list) else [content]

        return iterate_files(self.paths, read, self.allow_dirs)


class DataLoaderCache:
    """Gives several runners the same inputs, read once from a data loader."""

    def __init__(self, data_loader: Iterable[Mapping[str, Any]]) -> None:
        """Wrap any iterable of inputs by name."""
        self.data_loader = data_loader
        self.cache: list[Mapping[str, Any]] = []
        self.input_metadata: TensorMetadata | None = None
        self._loaded = False

    def set_input_metadata(self, input_metadata: TensorMetadata) -> None:
        """Set the next runner's inputs; the first call reads the data loader. Errors as in :func:`check_feed`."""
        self.input_metadata = with_data_types(input_metadata)
        if hasattr(self.data_loader, "input_metadata"):
            self.data_loader.input_metadata = self.input_metadata
        if not self._loaded:
            self.cache = list(map(check_feed, self.data_loader))
            self._loaded = True
            if not self.cache:
                _log.warning("The data loader gave no inputs")

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, iteration: int) -> dict[str, Any]:
        """One iteration's inputs, adapted to the runner of the last :meth:`set_input_metadata`.

        Raises IndexError if there are fewer iterations; InputError if an input is missing, or does not fit and the data
        loader cannot make one that does.
        """
        feed = self.cache[iteration]
        if self.input_metadata is None:
            return dict(feed)
        make_input = self.data_loader[iteration].get if isinstance(self.data_loader, DataLoader) else None
        return fit_feed(feed, self.input_metadata, make_input)


def check_feed(feed: object) -> Mapping[str, Any]:
    """Return an iteration's inputs; InputError if they are not arrays by name."""
    if isinstance(feed, Mapping) and all(isinstance(name, str) for name in feed):
        return feed
    hint = " Results of runs are turned into inputs by `trtops data merge`." if hasattr(feed, "load_streaming") else ""
    raise errors.InputError(
        f"The data loader gave a {type(feed).__name__}; expected arrays by input name for each iteration.{hint}"
    )


def fit_feed(feed: Mapping[str, Any], inputs: Mapping[str, TensorSpec], make: Any = None) -> dict[str, Any]:
    """Fit inputs to a runner: cast and reshape them if needed and possible.

    ``make`` is called with the name of an input for which nothing fits, and returns an array or None.

    Raises InputError if an input is missing, or an array does not fit the shape and cannot be reshaped.
    """
    fitted = {}
    for index, (name, spec) in enumerate(inputs.items()):
        if name in feed and _fits_spec(feed[name], spec):
            fitted[name] = feed[name]
            continue
        try:
            array = to_numpy(feed[_matching_name(name, index, feed)], f"Input {name!r}")
            if spec.dtype is not None and DataType.of(array.dtype) is not spec.dtype:
                array = cast_array(array, name, spec.dtype)
            if spec.shape is not None and not shape_accepts(spec.shape, array.shape):
                array = _reshape_array(array, name, spec.shape)
            fitted[name] = array
        except errors.InputError:
            generated = None if make is None else make(name)
            if generated is None or not _fits_spec(generated, spec):
                raise
            fitted[name] = generated
    return fitted


def _fits_spec(array: Any, spec: TensorSpec) -> bool:
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return False
    # The name is compared first because it is fast, and this runs for each input of each inference.
    same = spec.dtype is None or str(dtype).removeprefix("torch.") == spec.dtype.value
    return (same or DataType.of(dtype) is spec.dtype) and (
        spec.shape is None or shape_accepts(spec.shape, tuple(array.shape))
    )


def _matching_name(name: str, index: int, feed: Mapping[str, Any]) -> str:
    if name in feed:
        return name
    closest = closest_name(name, index, feed)
    if closest is None:
        raise errors.InputError(f"Input {name!r} is not fed. {errors.near(name, feed)}")
    _log.warning("Input %r is fed with %r, whose name is closest", name, closest)
    return closest


def _reshape_array(array: Array, name: str, shape: Shape) -> Array:
    static_dims = [d for d in shape if isinstance(d, int) and d >= 0]
    missing, rest = len(shape) - len(static_dims), math.prod(static_dims)
    if not missing and sorted(static_dims) == sorted(array.shape):
        moved = np.ascontiguousarray(array.transpose(permuted_axes(array.shape, static_dims)))
    elif missing > 1 or (missing == 1 and (not rest or array.size % rest)) or (not missing and rest != array.size):
        raise errors.InputError(f"Input {name!r} has shape {array.shape}; expected {tuple(shape)}.")
    else:
        moved = array.reshape([d if isinstance(d, int) and d >= 0 else array.size // rest for d in shape])
    _log.warning("Input %r is reshaped from %s to %s", name, array.shape, moved.shape)
    return moved
