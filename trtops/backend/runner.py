"""The contract of a runner; see :mod:`trtops.backend.base` for the other contracts."""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from trtops import errors
from trtops.metadata import TensorMetadata, check_feed, with_data_types
from trtops.system.activity import Activity
from trtops.system.limits import time_limit

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

_log = logging.getLogger(__name__)

Feed: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""Arrays by input name, in host memory unless a runner accepts others."""


class ProfiledFeed(dict[str, Any]):
    """A feed for one optimization profile; engines with several profiles select this one.

    ``point`` says which shapes of the profile it has: ``min``, ``opt``, ``max`` or ``between``. For given data it is
    empty, or ``outside`` if no profile accepts the shapes.
    """

    def __init__(self, arrays: Feed, profile: int | None, point: str = "") -> None:
        """Copy the mapping, not the arrays."""
        super().__init__(arrays)
        self.profile = profile
        self.point = point


class BaseRunner(ABC):
    """Runs inference on one model or engine.

    A runner holds its session or context while it is active: in a ``with`` block, or between :meth:`activate` and
    :meth:`deactivate`. Arrays returned by :meth:`infer` may be overwritten by the next call.

    Subclasses implement :meth:`infer_impl`, :meth:`get_input_metadata_impl` and, if they hold resources,
    :meth:`activate_impl` and :meth:`deactivate_impl`.
    """

    # Numbered per kind, so that a script gives its runners the same names every time.
    _counters: ClassVar[defaultdict[str, itertools.count[int]]] = defaultdict(itertools.count)
    # Makes an inference fail that exceeds the time limit, if the back end can stop one.
    _stop_inference: Callable[[], None] | None = None

    def __init__(self, name: str | None = None, prefix: str = "runner") -> None:
        """Name the runner (default: ``<prefix>-N<count>``)."""
        self.name = name if name is not None else f"{prefix}-N{next(self._counters[prefix])}"
        self.is_active = False
        self._inference_seconds: float | None = None
        self._input_metadata: TensorMetadata | None = None
        self._expected_inputs: TensorMetadata | None = None

    def __enter__(self) -> Self:
        self.activate()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.deactivate()

    def activate(self) -> None:
        """Acquire the resources; after an exception the runner is inactive and holds none."""
        if self.is_active:
            return
        self._seconds = time_limit()
        try:
            self.activate_impl()
        # Ctrl-C during the activation, too, must not leave memory of the device in use.
        except BaseException:
            self.deactivate_impl()
            raise
        self.is_active = True

    def deactivate(self) -> None:
        """Release the resources; does nothing if the runner is inactive."""
        if not self.is_active:
            return
        self.is_active = False
        self._inference_seconds = None
        self._input_metadata = None
        self._expected_inputs = None
        self.deactivate_impl()

    def infer(self, feed_dict: Feed, check_inputs: bool = True, *args: Any, **options: Any) -> dict[str, Any]:
        """Run one inference, and return the outputs by name, in the model's order, in host memory.

        Further arguments go to :meth:`infer_impl`.

        Names, dtypes and shapes of the feed are checked first, unless ``check_inputs`` is False (InputError).
        InferenceError if the back end fails, or the runner is not active.
        """
        self._require_active()
        if check_inputs:
            if self._expected_inputs is None:
                self._expected_inputs = self.get_input_metadata(use_numpy_dtypes=False)
            check_feed(self._expected_inputs, feed_dict)
        implementation: Callable[..., dict[str, Any]] = self.infer_impl
        with Activity(f"running inference with {self.name}", self._seconds, self._stop_inference):
            return implementation(feed_dict, *args, **options)

    def get_input_metadata(self, use_numpy_dtypes: bool | None = None) -> TensorMetadata:
        """Return names, dtypes and shapes of the model's inputs, in order; only while active.

        Dtypes are numpy's, as in Polygraphy; with ``use_numpy_dtypes=False`` members of DataType.
        """
        self._require_active()
        if self._input_metadata is None:
            self._input_metadata = with_data_types(self.get_input_metadata_impl())
        return self._input_metadata if use_numpy_dtypes is False else self._input_metadata.with_numpy_dtypes()

    def last_inference_time(self) -> float | None:
        """Return the seconds of the last inference inside the back end; None if it was not measured."""
        if self._inference_seconds is None:
            _log.warning("%s: `inference_time` was not set; infer_impl() sets it after each inference", self.name)
        return self._inference_seconds

    def last_device_time(self) -> float | None:
        """Return the seconds of the last inference on the accelerator, without copies; None if unknown."""
        return None

    def second_context(self) -> BaseRunner | None:
        """Return an inactive runner of this active runner's loaded engine; None if it cannot be shared.

        The engine stays this runner's. Both may infer at once, in two threads.
        """
        return None

    def _require_active(self) -> None:
        if not self.is_active:
            raise errors.InferenceError(f"{self.name} | Must be activated first: in a `with` block, or by activate().")

    @property
    def inference_time(self) -> float:
        """The seconds of the last inference, set by subclasses; InferenceError if there was none."""
        seconds = self.last_inference_time()
        if seconds is None:
            raise errors.InferenceError(f"{self.name} has not run an inference since it was activated.")
        return seconds

    @inference_time.setter
    def inference_time(self, seconds: float) -> None:
        self._inference_seconds = seconds

    @abstractmethod
    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run one inference on a checked feed, and set :attr:`inference_time`."""

    @abstractmethod
    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the metadata of the inputs; called once per activation."""

    def activate_impl(self) -> None:  # noqa: B027 - optional to fill in
        """Acquire the resources."""

    def deactivate_impl(self) -> None:  # noqa: B027 - optional to fill in
        """Release the resources; also called if :meth:`activate_impl` fails."""
