"""The data of an evaluation: its inputs, and the model's outputs for them.

Inputs are random numbers, saved inputs, folders of arrays, a script, or an iterable.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.backend.base import Feed, ProfiledFeed
from trtops.backend.common import invoke_from_script
from trtops.backend.onnxrt.runner import reference_runner
from trtops.calibration.data import ArraysInMemory, DataSource, FeedDigest, data_source
from trtops.comparator.arrays import as_arrays, cast_feed, copied, subset
from trtops.comparator.data_loader import DataLoader
from trtops.comparator.report import ComparisonReport, iterations_of
from trtops.comparator.results import RunResults
from trtops.comparator.streams import load_saved
from trtops.extras import require
from trtops.metadata import DEFAULT_SHAPE_VALUE, DataType, TensorMetadata, is_dynamic, shape_accepts
from trtops.ops.evaluation.shapes import OTHER, ShapePoint, points, profile_of, spanning, with_profiles
from trtops.record import Config, Record, setting
from trtops.spec import IN_MEMORY, BuildConfig, OptimizationProfile, Rounding
from trtops.system.allowed import check_file, split_script
from trtops.system.processes import temporary_prefix
from trtops.torch_tensors import in_host_memory
from trtops.verdict import Verdict

if TYPE_CHECKING:
    from trtops.backend.base import BaseRunner
    from trtops.backend.onnx.model import Model


log = logging.getLogger(__name__)

_KEPT_BYTES = 1 << 28  # of feeds in memory
_DATA_SUFFIXES = (".json", ".npz", ".npy")
_KINDS = "a .json file of saved inputs, an .npz or .npy file, a folder of these, or a .py script"


class _Buffer:
    """The feeds of a source that were read so far; each reader continues where others stopped."""

    def __init__(self) -> None:
        self._feeds: list[Feed] = []
        self._rest: Iterator[Feed] | None = None
        self._size = 0  # bytes

    def read(self, open_source: Callable[[], Iterable[Feed]]) -> Iterator[Feed]:
        """Yield all feeds of a source; open it again if they do not fit in memory."""
        position = 0
        while self._size <= _KEPT_BYTES:
            if position < len(self._feeds):
                yield self._feeds[position]
                position += 1
                continue
            if self._rest is None:
                self._rest = iter(open_source())
            try:
                feed = next(self._rest)
            except StopIteration:
                return
            except BaseException:  # another reader must not take the feeds before an error for all
                self._feeds, self._rest, self._size = [], None, 0
                raise
            self._feeds.append(feed)
            self._size += sum(np.asarray(array).nbytes for array in feed.values())
        if self._rest is not None:  # too large: this reader continues, others begin again
            feeds, source = self._feeds, self._rest
            self._feeds, self._rest = [], None
            yield from itertools.chain(feeds[position:], source)
        else:
            yield from itertools.islice(open_source(), position, None)


@dataclass(frozen=True)
class Feeds:
    """Feeds for any number of readings, in the same order, one at a time.

    Up to 256 MiB of them stay in memory: a script may take minutes to make them.
    """

    source: str
    _open: Callable[[], Iterable[Feed]] = field(repr=False)
    random: bool = False
    assumed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of random data that are not given
    _buffer: _Buffer = field(default_factory=_Buffer, init=False, repr=False, compare=False)

    def __iter__(self) -> Iterator[Feed]:
        """Yield feeds: arrays by name, in host memory; InputError for anything else, or no feed."""
        return self._buffer.read(self._checked)

    def _checked(self) -> Iterator[Feed]:
        count = 0
        for count, feed in enumerate(self._open(), start=1):
            if not isinstance(feed, Mapping):
                raise errors.InputError(
                    f"{self.source}: item {count} is a {type(feed).__name__}; expected a mapping of names to arrays."
                )
            yield in_host_memory(feed)
        if not count:
            raise errors.InputError(f"{self.source}: there is no data; expected at least one feed.")

    def first(self, count: int) -> Feeds:
        """The first ``count`` feeds of the source."""
        return replace(self, source=f"{self.source} (first {count})", _open=lambda: itertools.islice(self, count))

    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and contents of all feeds in order."""
        digest = FeedDigest()
        for feed in self:
            digest.add(feed)
        return digest.hexdigest()


def open_feeds(
    source: DataSource | Feeds,
    inputs: TensorMetadata,
    *,
    input_shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    profiles: Sequence[OptimizationProfile] = (),
    added: bool = True,
) -> Feeds:
    """Open a data source for inputs of a model. Numbers of another type than the input's are cast, with a warning.

    The source is a path to saved inputs (``.json``), to one feed (``.npz`` with an array per input, ``.npy`` for one
    input), to a folder of such files, or to a script (``loader.py`` or ``loader.py:function``, by default
    ``load_data``); or an iterable of feeds. A :class:`~trtops.comparator.DataLoader` first gets the inputs.

    The data must have the ``input_shapes`` unless there are profiles. Data for the shapes of these is ``added``.

    Raises ConfigError if the path does not exist, its suffix is unknown, or shapes do not fit the model.
    """
    is_open = isinstance(source, Feeds)  # then its feeds are not read again
    feeds = source if isinstance(source, Feeds) else _opened(data_source(source), inputs)
    required_shapes = {} if profiles else input_shapes

    def cast() -> Iterator[Feed]:
        for feed in feeds if is_open else feeds._open():
            if not isinstance(feed, Mapping):
                yield feed  # refused where it is read
                continue
            for name, dims in required_shapes.items():
                shape = np.shape(feed.get(name, ()))
                if not shape_accepts(dims, shape):
                    raise errors.InputError(
                        f"{feeds.source}: input {name!r} has shape {shape}, and {tuple(dims)} is asked for in "
                        "input_shapes. Leave input_shapes out: given data has its own shapes."
                    )
            yield cast_feed(feed, inputs)

    if not profiles:
        return Feeds(feeds.source, cast)
    return Feeds(feeds.source, lambda: with_profiles(cast(), inputs, profiles, added=added))


def _opened(source: str, inputs: TensorMetadata) -> Feeds:
    if not isinstance(source, ArraysInMemory):
        return _from_path(source, inputs)
    arrays = source.feeds

    def read() -> Iterable[Feed]:
        if hasattr(arrays, "input_metadata"):
            arrays.input_metadata = inputs
        return arrays

    return arrays if isinstance(arrays, Feeds) else Feeds(source, read)


def _random_feeds(
    config: DataConfig, inputs: TensorMetadata, profiles: Sequence[OptimizationProfile], model: Model | None
) -> Feeds:
    """Random data of every shape to evaluate, with the sizes of :func:`trtops.ops.evaluation.shapes.points`.

    Sizes that nothing determines are halved until the model runs: a transformer may have few positions.
    """
    from trtops.backend.onnx.accepted_inputs import accepted_inputs  # imports onnx

    accepted = None if model is None else accepted_inputs(model.structure())
    seed, val_range = config.seed, config.val_range
    for name in filter(None, val_range):
        errors.check_known(name, list(inputs), "val_range: the model has no input")
    # Both signs, since a fault that needs negative numbers is invisible in 0..1. Random integers index tables in
    # many models, where values out of range crash or read garbage.
    ranges = {"": (0.0, 1.0)}
    for name, spec in inputs.items():
        if spec.dtype is None or (spec.dtype.is_floating and spec.dtype is not DataType.FLOAT8E8M0):
            ranges[name] = (-1.0, 1.0)
    ranges |= {} if accepted is None else accepted.ranges
    if "" in val_range:
        ranges = {}
    ranges |= val_range
    described = "".join(f", {name or 'values'} from {low:g} to {high:g}" for name, (low, high) in val_range.items())
    words = {} if accepted is None else accepted.words

    def random(planned: Sequence[ShapePoint]) -> Iterator[Feed]:
        first = seed
        for number, point in enumerate(planned):
            metadata = TensorMetadata()
            for name, shape in point.shapes.items():
                metadata.add(name, inputs[name].dtype, shape)
            count = 1 if number else config.iterations
            loader = DataLoader(first, count, metadata, ranges, words=words)
            loader.input_metadata = inputs
            first += count
            yield from (ProfiledFeed(feed, point.profile, point.point) for feed in loader)

    other = OTHER
    # A profile of one shape may have been made of assumed sizes (DataConfig.profiled).
    if model is not None and all(bounds.min == bounds.max for profile in profiles for bounds in profile.shapes):
        points_of = partial(points, inputs, config.input_shapes, (), accepted)
        other = _size_that_runs(points_of, random, partial(_runs, model))
    planned = points(inputs, config.input_shapes, profiles, accepted, other)
    assumed = {name: planned[0].shapes[name] for name in planned[0].assumed}
    return Feeds(f"random data (seed {seed}{described})", lambda: random(planned), random=True, assumed=assumed)


def _size_that_runs(
    points_of: Callable[[int], list[ShapePoint]],
    feeds_of: Callable[[list[ShapePoint]], Iterator[Feed]],
    runs: Callable[[Feed], bool],
) -> int:
    """Return the largest working size, 64 or a half of it and so on, for undetermined dimensions.

    64 if there is no such dimension, or the model runs at no size.
    """
    size, planned = OTHER, points_of(OTHER)
    while planned[0].assumed and size > 1:
        smaller = points_of(size // 2)
        if smaller[0].shapes == planned[0].shapes:
            break
        if runs(next(feeds_of(planned))):
            return size
        size, planned = size // 2, smaller
    return size if size == 1 and runs(next(feeds_of(planned))) else OTHER


def _data_of_saved_outputs(
    config: DataConfig, golden: str, inputs: TensorMetadata, profiles: Sequence[OptimizationProfile]
) -> Feeds:
    """The random data of a plain ``trtops run``: as many feeds as there are saved outputs, with 1 for unknown sizes."""
    seed, input_shapes = config.seed, config.input_shapes

    def made() -> Iterator[Feed]:
        shapes = TensorMetadata()
        for name, shape in input_shapes.items():
            shapes.add(name, None, shape)
        loader = DataLoader(seed, len(iterations_of(RunResults.load(golden), "golden")), shapes)
        loader.input_metadata = inputs
        yield from (ProfiledFeed(feed, profile_of(feed, profiles)) for feed in loader)

    assumed: dict[str, tuple[int, ...]] = {}
    for name, spec in inputs.items():
        if name not in input_shapes and spec.shape and any(map(is_dynamic, spec.shape)):
            fixed = (size if isinstance(size, int) and size >= 0 else DEFAULT_SHAPE_VALUE for size in spec.shape)
            assumed[name] = tuple(fixed)
    return Feeds(f"random data of `trtops run` (seed {seed})", made, random=True, assumed=assumed)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Input data: the base of all configs with data.

    Attributes:
        data: Where inputs come from (:func:`open_feeds`); random data by default.
        input_shapes: Shapes of random data, by input; by default those of optimization profiles, or sizes that the
            model suggests, with 2 for a batch, and for other dynamic dimensions 64 or the first half of it, half of
            that, and so on, at which the model runs.
        input_dtypes: Types of the inputs of a PyTorch module without data, by input, such as ``int64`` (default:
            float32). ONNX models declare theirs.
        iterations: Number of random feeds.
        seed: Seed of the random data.
        val_range: Smallest and largest random value by input, with ``""`` for the others; by default between the values
            that the model accepts, or else from -1 to 1, and 0 or 1 for integers.
    """

    data: str | None = setting(None, convert=data_source, file="reads")
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, metadata={"keyword": "shapes"})
    input_dtypes: Mapping[str, str] = field(default_factory=dict)
    iterations: int = setting(2, least=1)
    seed: int = 1
    val_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def profiled(
        self,
        build: BuildConfig,
        model: Model,
        calibration: str | Feeds | None = None,
        instead: Feeds | None = None,
    ) -> BuildConfig:
        """The build, with a profile of the shapes of this and calibration data if it is TensorRT's and has no profiles.

        TensorRT's own default is 1 for each dynamic dimension, on which the data does not run.
        """
        if build.profiles or build.backend != "tensorrt":
            return build
        feeds, inputs = self.open_for(model, instead), TensorMetadata.of(model.info.inputs)
        other = () if calibration is None or not build.calibrates else open_feeds(calibration, inputs)
        return replace(build, profiles=spanning(itertools.chain(feeds, other), inputs))

    def open_for(
        self,
        model: Model | None,
        instead: Feeds | None = None,
        inputs: TensorMetadata | None = None,
        profiles: Sequence[OptimizationProfile] = (),
    ) -> Feeds:
        """The feeds of a model (default: from the config); random data has values accepted by the model.

        Data for every shape of the ``profiles`` follows. An engine without a model needs ``inputs``. With saved
        ``golden`` outputs, profiles add no data, since there are no outputs for it, and random data is what
        ``trtops run`` and Polygraphy make by default. Errors as in :func:`open_feeds`.
        """
        # Before anything is built or run: golden outputs and limits come from ONNX Runtime.
        require(
            *(["onnxruntime"] if model else []), *(["matplotlib"] if getattr(self, "plots", "") == "always" else [])
        )
        source, golden = self.data if instead is None else instead, getattr(self, "golden", None)  # of a CheckConfig
        if inputs is None:
            inputs = TensorMetadata.of(model.info.inputs if model else ())
        if source is not None:
            shapes = self.input_shapes
            return open_feeds(source, inputs, input_shapes=shapes, profiles=profiles, added=golden is None)
        if golden is not None:
            return _data_of_saved_outputs(self, golden, inputs, profiles)
        return _random_feeds(self, inputs, profiles, model)


_ran: dict[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], bool] = {}  # by digest of the model, and shapes


def _runs(model: Model, feed: Feed) -> bool:
    """True if a model runs on a feed, as far as its shapes decide, or does not even load."""
    key = model.info.sha256, tuple((name, np.shape(array)) for name, array in feed.items())
    if key not in _ran:
        _ran[key] = True
        try:
            with reference_runner(model) as reference:
                reference.infer(feed)
        except errors.InferenceError:
            _ran[key] = False
        except errors.TrtopsError as exc:  # reported where the model is needed
            log.debug("%s does not load: %s", model.name, exc)
    return _ran[key]


def check_source(source: str | None) -> None:
    """Raise ConfigError for a forbidden script (:mod:`trtops.system.allowed`)."""
    for script in scripts_of(source):
        check_file(script)


def scripts_of(*sources: str | None) -> list[str]:
    """The scripts among data sources."""
    scripts: list[str] = []
    for source in filter(None, sources):
        path, _ = split_script(source)
        scripts += [path] if path.endswith(".py") else []
    return scripts


def _from_path(text: str, inputs: TensorMetadata) -> Feeds:
    script, function = split_script(text)
    path, function = Path(script), function or "load_data"
    if text.startswith(IN_MEMORY):
        raise errors.ConfigError(f"The data were {text} of another process. Save them, and give the path to {_KINDS}.")
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
        files = sorted(file for file in path.iterdir() if file.suffix in _DATA_SUFFIXES)
        if not files:
            raise errors.InputError(f"{path} has no .npz, .npy or .json file.")
    elif path.suffix not in _DATA_SUFFIXES:
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


# Rounding errors: relative to the number, for INT8 relative to the largest of its tensor. They are half a step; for
# FP32 a whole one, because FP32 weights cannot be moved by less.
UNITS: dict[Rounding, float] = {
    "fp32": 2.0**-23, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4, "int8": 1 / 254,
}  # fmt: skip

_MAX_LISTED_OVERFLOWS = 3  # overflowing tensors in messages


def collect(runner: BaseRunner, feeds: Iterable[Feed]) -> RunResults:
    """The outputs of an active runner for each feed, copied. All are kept in memory."""
    results = RunResults()
    # Copied, because the arrays belong to the runner, which may overwrite them.
    results.add([copied(runner.infer(feed)) for feed in feeds], runner_name=runner.name)
    return results


def golden_outputs(model: Model, feeds: Iterable[Feed], golden: str | None) -> RunResults:
    """The golden outputs: those of a file, or the model's own from ONNX Runtime."""
    if golden is not None:
        return RunResults.load(golden)
    # Closed at once, because each session of a large model takes as much memory as it has weights.
    with reference_runner(model) as reference, naming_assumed(model, feeds):
        return collect(reference, feeds)


@contextlib.contextmanager
def naming_assumed(model: Model, feeds: Iterable[Feed]) -> Iterator[None]:
    """Turn an inference error on random data of assumed shapes into an InputError asking for shapes."""
    try:
        yield
    except errors.InferenceError as exc:
        assumed = feeds.assumed if isinstance(feeds, Feeds) else {}
        if not assumed:
            raise
        shown = " ".join(f"{name}:[{','.join(map(str, shape))}]" for name, shape in assumed.items())
        raise errors.InputError(
            f"{model.name} does not run on random data of the assumed shapes {shown}. Give shapes that it accepts "
            f"with --input-shapes, or data. {exc}"
        ) from None


def moved_reference(model: Model, feeds: Sequence[Feed], precision: Rounding, *, seed: int = 1) -> RunResults | None:
    """The reference's outputs with weights and inputs moved at random by up to one rounding unit of a precision.

    Scales of Resize and limits of Range stay, since they make shapes. None for models that are too large to be changed
    in memory.
    """
    import onnx

    from trtops.backend.onnx import walk
    from trtops.backend.onnx.model import is_large
    from trtops.backend.onnxrt.runner import reference_outputs

    def moved(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.dtype.kind != "f" or not array.size:
            return array
        with np.errstate(over="ignore"):  # masks are filled with the lowest number, which may move beyond it
            return np.asarray(
                array + random.uniform(-1, 1, array.shape) * UNITS[precision] * np.abs(array), array.dtype
            )

    if is_large(model.structure()):
        return None
    proto, random = model.proto(), np.random.default_rng(seed)
    floating = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    first = {"Resize": 1, "Upsample": 1, "Range": 0}
    unmoved = set[str]()
    for node in walk.nodes(proto):
        unmoved.update(node.input[first[node.op_type] :] if node.op_type in first else ())
    for tensor in proto.graph.initializer:
        if tensor.name not in unmoved and tensor.data_type in floating:
            array = moved(onnx.numpy_helper.to_array(tensor))
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    inputs = list(map(as_arrays, feeds))
    for feed in inputs:
        for name, array in feed.items():
            feed[name] = moved(array)
    results = RunResults()
    results.add(reference_outputs(proto, inputs))
    return results


Overflows: TypeAlias = tuple[tuple[str, float], ...]
"""Tensors with values that 16 bit does not hold, and the largest of each."""


# Engines of ONNX Runtime compute 16 bit in FP32, where an activation that overflows in FP16 does not overflow. For them
# the model is run once more with each 16-bit result rounded as a GPU rounds (trtops.backend.onnx.emulation), and the
# largest value of each tensor is read before it is rounded.
@dataclass(frozen=True, kw_only=True)
class Emulation(Record):
    """A model evaluated in 16 bit, rounded as a GPU rounds."""

    precision: Literal["fp16", "bf16"]
    report: ComparisonReport
    overflows: Overflows = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if an output does not meet the tolerances, or a tensor overflows."""
        return "bad" if self.overflows or not self.report else "good"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is bad, one sentence each."""
        problems: list[str] = []
        for tensor, peak in self.overflows[:_MAX_LISTED_OVERFLOWS]:
            problems.append(f"{tensor!r} overflows, {peak:,.0f} > 65,504")
        if len(self.overflows) > _MAX_LISTED_OVERFLOWS:
            problems.append(f"{len(self.overflows) - _MAX_LISTED_OVERFLOWS} more tensors overflow")
        problems += self.report.reasons
        return tuple(f"in {self.precision.upper()} as a GPU rounds it: {problem}" for problem in problems)

    def sentence(self) -> str:
        """The evaluation in a line."""
        measured = self.report.statistics.values()
        worst = max((statistics.nrmse or 0.0 for statistics in measured if statistics.agreement is None), default=0.0)
        outcome = f"{self.verdict}; relative error {worst:.3g}" if self.report.outputs else "no output can be compared"
        return (
            f"{self.precision.upper()} as a GPU rounds it, emulated: {outcome}, "
            f"overflowing tensors: {len(self.overflows)}."
        )


def run_in_16_bit(
    model: Model, precision: Literal["fp16", "bf16"], feeds: Iterable[Feed], keep: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], Overflows]:
    """The outputs of a model in 16 bit for each feed, and the overflowing tensors, in order of execution.

    Raises BackendError if the rewritten model does not run.
    """
    from trtops.backend.onnx.emulation import LARGEST_FLOAT16, emulate_low_precision, watch_peaks
    from trtops.backend.onnx.precision import lower_precision
    from trtops.backend.onnxrt.runner import reference_outputs

    with tempfile.TemporaryDirectory(prefix=temporary_prefix("emulated")) as folder:
        low = lower_precision(model.proto(lean=True), precision, exclude=keep, weights=Path(folder)).model
        emulate_low_precision(low)
        outputs = [value.name for value in low.graph.output]
        peaks = watch_peaks(low) if precision == "fp16" else {}
        # Without optimizations, which could remove the rounding, and crash on some models in 16 bit.
        results = reference_outputs(low, list(feeds))
    overflows: list[tuple[str, float]] = []
    for tensor, peak in peaks.items():
        largest = max(float(arrays[peak]) for arrays in results)
        # A value rounds to infinity from half a step (16) above the largest float16.
        if largest >= LARGEST_FLOAT16 + 16:
            overflows.append((tensor, largest))
    return [subset(arrays, outputs) for arrays in results], tuple(overflows)


def all_numbers(results: RunResults, name: str) -> npt.NDArray[np.float64] | None:
    """All numbers of an output; None if an iteration lacks it, or it does not hold numbers."""
    arrays: list[npt.NDArray[np.float64]] = []
    for iteration in results[0][1]:
        array = np.asarray(iteration.get(name, ""))
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            return None
        arrays.append(array.astype(np.float64).ravel())
    return np.concatenate(arrays)


def root_mean_square(difference: npt.NDArray[np.float64]) -> float:
    """Root mean square; infinite if an element is NaN or infinite, 0 without elements."""
    if not difference.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        value = float(np.sqrt(np.mean(np.square(difference))))
    return value if math.isfinite(value) else math.inf
