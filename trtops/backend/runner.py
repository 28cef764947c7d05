"""The contract of a runner, which is all that running a model takes; see :mod:`trtops.backend.base` for the others."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from trtops import errors
from trtops.metadata import FeedCheck, TensorMetadata

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

T = TypeVar("T")

Feed: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""Arrays by input name, in host memory unless a runner says that it takes others."""

ValueOrCallable: TypeAlias = "T | Callable[[], T]"


class BaseRunner(ABC):
    """Runs inference on one model or engine.

    A runner is made cheaply and does nothing until it is activated, by ``with`` or by :meth:`activate`; then it holds
    its session or context, and lets go of it at :meth:`deactivate`, also when something fails in between. It may be
    activated again afterwards. Arrays returned by :meth:`infer` belong to the runner, and may be overwritten by the
    next call: copy what is to be kept.

    Subclasses fill in :meth:`infer_impl`, :meth:`get_input_metadata_impl` and, where there is something to hold,
    :meth:`activate_impl` and :meth:`deactivate_impl`.

    Attributes:
        name: Names the runner in results. Unless given it is counted up per kind of runner, so that a script gives
            its runners the same names every time.
        is_active: Whether the runner is active now.
    """

    _counters: ClassVar[defaultdict[str, itertools.count[int]]] = defaultdict(itertools.count)

    def __init__(self, name: str | None = None, prefix: str = "runner") -> None:
        """Name the runner, as ``<prefix>-N<count>`` unless a name is given."""
        self.name = name if name is not None else f"{prefix}-N{next(self._counters[prefix])}"
        self.is_active = False
        self._inference_seconds: float | None = None
        self._input_metadata: TensorMetadata | None = None
        self._feed_check: FeedCheck | None = None

    def __enter__(self) -> Self:
        self.activate()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.deactivate()

    def activate(self) -> None:
        """Take hold of what inference needs. Costs whatever building or loading costs.

        Raises:
            BackendError: If that fails; the runner is left inactive and holds nothing.
        """
        if self.is_active:
            return
        try:
            self.activate_impl()
        except BaseException:
            self.deactivate_impl()
            raise
        self.is_active = True

    def deactivate(self) -> None:
        """Let go of everything; does nothing to an inactive runner."""
        if not self.is_active:
            return
        self.is_active = False
        self._inference_seconds = None
        self._input_metadata = None
        self._feed_check = None
        self.deactivate_impl()

    def infer(self, feed_dict: Feed, check_inputs: bool = True) -> dict[str, Any]:
        """Run one inference.

        Args:
            feed_dict: One array per input of the model, by name, with the input's dtype and a shape that fits.
            check_inputs: Whether names, dtypes and shapes are checked first.

        Returns:
            The outputs by name, in the model's order, in host memory; owned by the runner and valid until the next
            call.

        Raises:
            InputError: If the feed does not fit; see :func:`trtops.metadata.check_feed`.
            InferenceError: If the back end fails, or the runner is not active.
        """
        if not self.is_active:
            raise errors.InferenceError(
                f"{self.name} is not active. Use it in a `with` block, or call activate() first."
            )
        if check_inputs:
            if self._feed_check is None:
                self._feed_check = FeedCheck(self.get_input_metadata())
            self._feed_check(feed_dict)
        return self.infer_impl(feed_dict)

    def get_input_metadata(self, use_numpy_dtypes: bool | None = None) -> TensorMetadata:
        """The model's inputs: names, dtypes and shapes, in order.

        Args:
            use_numpy_dtypes: Accepted for scripts that pass it; dtypes are :class:`trtops.metadata.DataType` either way.

        Raises:
            InferenceError: If the runner is not active.
        """
        if not self.is_active:
            raise errors.InferenceError(
                f"{self.name} is not active. Use it in a `with` block, or call activate() first."
            )
        if self._input_metadata is None:
            self._input_metadata = self.get_input_metadata_impl()
        return self._input_metadata

    def last_inference_time(self) -> float:
        """Seconds that the last inference took inside the back end.

        Raises:
            InferenceError: If there was none since activation.
        """
        if self._inference_seconds is None:
            raise errors.InferenceError(f"{self.name} has not run an inference since it was activated.")
        return self._inference_seconds

    def last_device_time(self) -> float | None:
        """Seconds that the last inference took on the accelerator, apart from copies; None where nobody knows."""
        return None

    @property
    def inference_time(self) -> float:
        """What :meth:`last_inference_time` returns; subclasses set it after each inference."""
        return self.last_inference_time()

    @inference_time.setter
    def inference_time(self, seconds: float) -> None:
        self._inference_seconds = seconds

    @abstractmethod
    def infer_impl(self, feed_dict: Feed) -> dict[str, Any]:
        """Run one inference on a feed that was checked, and set :attr:`inference_time`."""

    @abstractmethod
    def get_input_metadata_impl(self) -> TensorMetadata:
        """The inputs' metadata; called once per activation."""

    def activate_impl(self) -> None:  # noqa: B027 - optional to fill in
        """Take hold of what inference needs."""

    def deactivate_impl(self) -> None:  # noqa: B027 - optional to fill in
        """Let go of it; also called after :meth:`activate_impl` failed half-way."""
