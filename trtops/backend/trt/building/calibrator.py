"""INT8 calibrators: TensorRT's four algorithms with any data loader.

They exist up to TensorRT 10.16; from 11 on the model needs Q/DQ nodes for INT8.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.describe.layers import inputs_of
from trtops.backend.trt.library import dtypes, memory
from trtops.backend.trt.lines import Feature
from trtops.calibration.data import FeedDigest
from trtops.metadata import DataType, TensorMetadata, check_feed, with_data_types
from trtops.system.files import open_atomically, read_open_file, write_open_file
from trtops.torch_tensors import from_torch, is_torch

if TYPE_CHECKING:
    from trtops.backend.trt.building.profile import Profile, ShapeTuple

log = logging.getLogger(__name__)


def Calibrator(
    data_loader: Iterable[Mapping[str, Any]],
    cache: str | os.PathLike[str] | IO[bytes] | None = None,
    BaseClass: type | str | None = None,
    batch_size: int | None = None,
    quantile: float | None = None,
    regression_cutoff: float | None = None,
    algo: Any = None,
) -> Any:
    """Create a calibrator for ``CreateConfig(int8=True, calibrator=...)`` or for TensorRT itself.

    Each batch is copied to device memory once; the next batch overwrites it. TensorRT calibrates in FP32: arrays of
    other numbers are converted. A data loader with an ``input_metadata`` gets it from ``CreateConfig`` and from
    ``EngineFromNetwork``.

    Args:
        data_loader: Iterable of feeds: numpy arrays, ``DeviceView``, torch tensors or device addresses (``int``) by
            input name. Data in device memory must be FP32. A generator works for one calibration only.
        cache: Path or open file of the calibration cache; read if it exists and is readable, written otherwise. A file
            that is open for reading only stays as it is.
        BaseClass: One of TensorRT's calibrator classes, or its name (default: ``trt.IInt8EntropyCalibrator2``).
        batch_size: Ignored with explicit batch.
        quantile: For ``IInt8LegacyCalibrator``: the quantile used as range (default: 0.5).
        regression_cutoff: For ``IInt8LegacyCalibrator`` (default: 0.5).
        algo: For ``IInt8Calibrator``: the algorithm (default: entropy 2).

    >>> calibrator = Calibrator([dict(np.load("feed.npz"))], cache="model.cache")  # doctest: +SKIP
    >>> config = CreateConfig(int8=True, calibrator=calibrator)  # doctest: +SKIP

    Returns an instance of ``BaseClass`` and of :class:`CalibrationBatches`.
    Raises UnsupportedFeatureError if this release has no calibrators.
    """
    library.line().require(Feature.CALIBRATOR)
    trt = library.load()
    base: Any = BaseClass or "IInt8EntropyCalibrator2"
    if isinstance(base, str):
        errors.check_known(base, dir(trt), f"{library.line().name} has no calibrator")
        base = getattr(trt, base)

    class TensorRTCalibrator(CalibrationBatches, base):  # type: ignore[misc]
        """Called from C++ during calibration."""

        is_trtops_calibrator = True
        is_polygraphy_calibrator = True
        make_func = staticmethod(Calibrator)

        def __init__(self) -> None:
            # Not super(): without this call on the class itself the bindings crash when TensorRT calls back.
            base.__init__(self)
            CalibrationBatches.__init__(self, data_loader, cache)
            self.batch_size = batch_size or 1

        if base is trt.IInt8LegacyCalibrator:

            def get_quantile(self) -> float:
                return 0.5 if quantile is None else quantile

            def get_regression_cutoff(self) -> float:
                return 0.5 if regression_cutoff is None else regression_cutoff

            def read_histogram_cache(self, length: int) -> None:
                return None

            def write_histogram_cache(self, ptr: Any, length: int) -> None:
                return None

        if base is trt.IInt8Calibrator:

            def get_algorithm(self) -> Any:
                return trt.CalibrationAlgoType.ENTROPY_CALIBRATION_2 if algo is None else algo

    return TensorRTCalibrator()


class CalibrationBatches:
    """Gives batches to TensorRT and stores the cache; independent of TensorRT's classes.

    TensorRT calls the methods with its names from C++, which cannot pass exceptions on: they are stored in ``error``.
    """

    batch_size = 1

    def __init__(self, data_loader: Iterable[Mapping[str, Any]], cache: Any) -> None:
        self.data_loader = data_loader
        self.cache = cache
        self.input_metadata: TensorMetadata | None = None
        # Copies of batches that were in host memory, by input.
        self.device_buffers: dict[str, memory.DeviceArray] = {}
        # What TensorRT reads until it requests the next batch.
        self._batch: list[Any] = []
        self.is_strict = False  # whether data of another dtype is refused, not converted
        self.reset()

    def reset(self) -> None:
        """Start from the beginning, for another network."""
        self._iterator: Iterator[Mapping[str, Any]] | None = None
        self._contents: bytes | None = None
        self._digest: FeedDigest | None = FeedDigest()
        self.num_batches = 0
        # The error of the calibration. It cannot be raised through C++; check_calibration raises it after the build.
        self.error: Exception | None = None

    def set_input_metadata(self, input_metadata: TensorMetadata) -> None:
        """Set names, dtypes and shapes of the inputs, here and in the data loader if it has an ``input_metadata``.

        Data of other dtypes is then refused, until ``CreateConfig`` sets the inputs of its network.
        """
        self.set_network_inputs(input_metadata)
        self.is_strict = True

    def set_network_inputs(self, input_metadata: TensorMetadata) -> None:
        """Set the inputs like :meth:`set_input_metadata`; data of other dtypes is converted."""
        self.is_strict = False
        self.input_metadata = with_data_types(input_metadata)
        if hasattr(self.data_loader, "input_metadata"):
            self.data_loader.input_metadata = self.input_metadata

    def first_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the first batch by input; none if a cache is read, or if the data loader follows the network."""
        if hasattr(self.data_loader, "input_metadata") or self.read_cache():
            return {}
        try:
            self._iterator = iter(self.data_loader)
            first = next(self._iterator, None)
        except Exception:  # of the user's data loader; the calibration meets and reports it
            self._iterator = None
            return {}
        if first is None:
            return {}
        self._iterator = itertools.chain([first], self._iterator)
        return {name: tuple(array.shape) for name, array in first.items() if hasattr(array, "shape")}

    def data_digest(self) -> str | None:
        """Digest of the batches (:class:`trtops.calibration.data.FeedDigest`); None if some were on the device."""
        return None if self._digest is None else self._digest.hexdigest()

    @property
    def cache_contents(self) -> bytes | None:
        """The calibration cache; None before it was read or written."""
        return self._contents

    def free(self) -> None:
        """Free device memory."""
        for buffer in self.device_buffers.values():
            buffer.free()
        self.device_buffers.clear()
        self._batch = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def get_batch_size(self) -> int:
        """Return the samples of a batch, which TensorRT ignores with explicit batch."""
        return self.batch_size

    def get_batch(self, names: list[str], *_: Any) -> list[int] | None:
        """Return the device addresses of the next batch, by the order of names; None after the last one or an error."""
        try:
            return self._next_batch(names)
        except KeyboardInterrupt:
            library.keep_interrupt()
            self.free()
            return None
        # Any exception of the user's data loader: it cannot be raised through C++.
        except Exception as exc:
            self.error = exc
            log.error("Calibration stopped: %s", exc)
            self.free()
            return None

    def _next_batch(self, names: list[str]) -> list[int] | None:
        if self._iterator is None:
            self._iterator = iter(self.data_loader)
        feed = next(self._iterator, None)
        if feed is None:
            self.free()
            if self.num_batches == 0:
                raise errors.CalibrationError(
                    "The calibrator's data loader returned no batch. A generator can be iterated only once: use a list."
                )
            return None
        if missing := [name for name in names if name not in feed]:
            raise errors.InputError(
                f"The calibration data has no {', '.join(map(repr, missing))}; it has {list(feed)}. A data loader that "
                "makes its data from the network's inputs gets them from CreateConfig, EngineFromNetwork, or "
                "set_input_metadata."
            )
        # Device memory is not copied back only to compute a digest.
        if any(isinstance(value, int) or memory.device_address(value) is not None for value in feed.values()):
            self._digest = None
        elif self._digest is not None:
            self._digest.add({name: from_torch(value) if is_torch(value) else value for name, value in feed.items()})
        batch = {name: self._as_fp32(name, value) for name, value in feed.items()}
        if self.input_metadata is not None:
            # Addresses have no shape to check.
            inputs = {name: spec for name, spec in self.input_metadata.items() if not isinstance(batch.get(name), int)}
            check_feed(inputs, {name: value for name, value in batch.items() if not isinstance(value, int)})
        self.num_batches += 1
        addresses = [self._device_address(name, batch[name]) for name in names]
        self._batch = [batch, addresses]
        return addresses

    def _as_fp32(self, name: str, value: Any) -> Any:
        """Convert an array for TensorRT's calibration: to FP32, or indices to INT32 on releases without INT64."""
        if isinstance(value, int) or memory.device_address(value) is not None:
            dtype = None if isinstance(value, int) else DataType.of(value.dtype)
            if dtype is not None and dtype.is_floating and dtype is not DataType.FLOAT32:
                raise errors.InputError(
                    f"Calibration input {name!r} is {dtype.value} in device memory; expected float32. Convert it first."
                )
            return value
        array = from_torch(value) if is_torch(value) else np.asarray(value)
        if self.is_strict:
            return array
        spec = None if self.input_metadata is None else self.input_metadata.get(name)
        dtype = DataType.of(array.dtype)
        if dtype.is_floating or (spec is not None and spec.dtype is DataType.FLOAT32):
            return array.astype(np.float32, copy=False)
        if dtype is DataType.INT64 and "INT64" not in library.load().DataType.__members__:
            return dtypes.as_int32(name, array)
        return array

    def _device_address(self, name: str, value: Any) -> int:
        if isinstance(value, int):
            return value
        on_device = memory.device_address(value)
        if on_device is not None:
            # It may not be written yet, and the stream on which TensorRT reads it is not known.
            memory.call("cudaDeviceSynchronize")
            return on_device[0]
        array = np.ascontiguousarray(value)
        buffer = self.device_buffers.get(name)
        if buffer is None or buffer.dtype != array.dtype:
            buffer = self.device_buffers[name] = memory.DeviceArray(array.shape, array.dtype)
        buffer.copy_from(array)
        return buffer.ptr

    def read_calibration_cache(self, *_: Any) -> bytes | None:
        """Return the cache; None without one, and if it cannot be read."""
        try:
            return self.read_cache()
        except OSError as exc:
            self.error = exc
            return None

    def read_cache(self) -> bytes | None:
        """Return the cache; None without one."""
        if self._contents is not None:
            return self._contents
        if self.cache is None:
            return None
        if isinstance(self.cache, (str, os.PathLike)):
            path = Path(self.cache)
            self._contents = path.read_bytes() if path.exists() else None
        elif getattr(self.cache, "readable", lambda: True)():
            contents = read_open_file(self.cache)
            self._contents = contents.encode() if isinstance(contents, str) else contents
        return self._contents or None

    def write_calibration_cache(self, contents: Any, *_: Any) -> None:
        """Store the cache."""
        contents = self._contents = bytes(contents)
        if self.cache is None:
            return
        try:
            if isinstance(self.cache, (str, os.PathLike)):
                with open_atomically(Path(self.cache)) as file:
                    file.write(contents)
            elif getattr(self.cache, "writable", lambda: True)():
                if getattr(self.cache, "seekable", bool)():
                    self.cache.seek(0)
                    self.cache.truncate()
                write_open_file(self.cache, contents)
            else:
                log.warning("The calibration cache was not saved: %s is open for reading only.", self.cache)
        except OSError as exc:
            self.error = exc


def prepare_calibrator(calibrator: Any, network: Any, profile: Profile) -> dict[str, tuple[int, ...]]:
    """Give one of our calibrators a network's inputs, and return the shapes of its first batch within the profile.

    Inputs have these shapes, or otherwise the ``opt`` ones of the profile. Others' calibrators are unchanged.
    """
    if not getattr(calibrator, "is_trtops_calibrator", False):
        return {}
    ranges: dict[str, ShapeTuple] = {}
    for tensor in inputs_of(network):
        shapes = None if tensor.is_shape_tensor else profile.find(tensor.name)
        if shapes is not None:
            ranges[tensor.name] = shapes
    metadata = _calibration_inputs(network, {name: shapes.opt for name, shapes in ranges.items()})
    calibrator.reset()
    calibrator.set_network_inputs(metadata)
    accepted: dict[str, tuple[int, ...]] = {}
    for name, shape in calibrator.first_shapes().items():
        # At shapes outside the profile, calibration by TensorRT 8.6 accesses memory that is not its own.
        if name in ranges and ranges[name].accepts(shape):
            accepted[name] = shape
            metadata[name] = replace(metadata[name], shape=shape)
    return accepted


def prepare_calibrator_of(config: Any, network: Any) -> None:
    """Give a network's inputs to a config's calibrator if it is ours, unless the user set them.

    The config may have been made with TensorRT's API.
    """
    calibrator: Any = config.int8_calibrator if library.line().supports(Feature.CALIBRATOR) else None
    if not getattr(calibrator, "is_trtops_calibrator", False) or calibrator.is_strict:
        return
    profile, shapes = config.get_calibration_profile(), {}
    for tensor in inputs_of(network):
        if not tensor.is_shape_tensor:
            fixed = tuple(tensor.shape)
            ranges = profile.get_shape(tensor.name) if profile is not None and -1 in fixed else ()
            shapes[tensor.name] = tuple(ranges[1]) if ranges else fixed
    calibrator.set_network_inputs(_calibration_inputs(network, shapes))


def _calibration_inputs(network: Any, shapes: Mapping[str, tuple[int, ...]]) -> TensorMetadata:
    """A network's inputs with the given shapes. Calibration computes in FP32, whatever the network declares."""
    metadata = TensorMetadata()
    for tensor in inputs_of(network):
        dtype = dtypes.from_trt(tensor.dtype)
        metadata.add(tensor.name, DataType.FLOAT32 if dtype.is_floating else dtype, shapes.get(tensor.name))
    return metadata


def check_calibration(calibrator: Any) -> None:
    """Raise the error stored by a calibrator during a build, as CalibrationError."""
    error = getattr(calibrator, "error", None)
    if error is not None:
        raise errors.CalibrationError(f"INT8 calibration failed: {error}") from error
