"""The types allowed in files, and the decoding of JSON objects."""

from __future__ import annotations

import binascii
import importlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from trtops import errors

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = "np.ndarray[Any, Any]"

MARKER = "polygraphy_class"
LEGACY_MARKER = "__polygraphy_encoded_"
LEGACY_VALUE = "polygraphy_serialized_json_type"

T = TypeVar("T")

# Modules of the types that files may name, imported when one occurs. Packages above may add theirs.
HOMES: dict[str, str] = {
    **dict.fromkeys(("RunResults", "IterationResult", "LazyArray", "LazyNumpyArray"), "trtops.comparator.results"),
    **dict.fromkeys(("AccuracyResult", "AccuracyResults"), "trtops.comparator.accuracy"),
    "FormattedArray": "trtops.backend.trt.infer.formats",
    **dict.fromkeys(("TacticReplayData", "Algorithm", "TensorInfo"), "trtops.backend.trt.choices.selector"),
}
# The same by the end of a type's name, for the results and thresholds of all metrics.
_HOME_OF_ENDINGS = {ending: "trtops.comparator.metric_results" for ending in ("Result", "Threshold")}


class Encoder:
    """Functions from objects of a type to a dict of their parts."""

    registered: ClassVar[dict[type, tuple[str, Callable[[Any], dict[str, Any]]]]] = {}

    @classmethod
    def register(cls, kind: type[T], alias: str | None = None) -> Callable[[Callable[[T], dict[str, Any]]], Any]:
        """Decorate the encoding function of a type; its ``__name__`` marks its objects; ``alias`` is ignored."""

        def decorate(function: Callable[[T], dict[str, Any]]) -> Callable[[T], dict[str, Any]]:
            cls.registered[kind] = (kind.__name__, function)
            return function

        return decorate


class Decoder:
    """Functions from a dict of parts to objects of a type."""

    registered: ClassVar[dict[str, Callable[[dict[str, Any]], Any]]] = {}

    @classmethod
    def register(cls, kind: type[T], alias: str | None = None) -> Callable[[Callable[[dict[str, Any]], T]], Any]:
        """Decorate the decoding function of a type; its objects are marked by its ``__name__`` or ``alias``."""

        def decorate(function: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
            for name in filter(None, (kind.__name__, alias)):
                cls.registered[name] = function
            return function

        return decorate


def decode_object(content: dict[str, Any], read_array: Callable[[Any], Array]) -> Any:
    """Return the object for a JSON object, given a reader of the member ``array`` of an ``ndarray``."""
    kind = content.pop(MARKER, None)
    if kind is None:
        marked = (key for key, value in content.items() if isinstance(value, str) and value == LEGACY_VALUE)
        old = next((key for key in marked if key.startswith(LEGACY_MARKER)), None)
        if old is None:
            return content
        del content[old]
        kind = old.removeprefix(LEGACY_MARKER)
    if not isinstance(kind, str):
        raise errors.FormatError(f"{MARKER} is {kind!r:.80}; expected the name of a type")
    if kind not in Decoder.registered:
        home = HOMES.get(kind) or next((home for end, home in _HOME_OF_ENDINGS.items() if kind.endswith(end)), None)
        if home is not None:
            importlib.import_module(home)
    try:
        if kind == "ndarray":
            return read_array(content["array"])
        if kind == "ExtendedArray":
            return _read_extended_array(content["bits"], content["dtype"])
        if kind == "Tensor":
            return _read_tensor(content["tensor"])
        if kind in Decoder.registered:
            return Decoder.registered[kind](content)
    except errors.FormatError:
        raise
    except KeyError as exc:
        raise errors.FormatError(f"a {kind} lacks its member {exc}") from None
    except (TypeError, ValueError, AttributeError, IndexError, MemoryError, OverflowError) as exc:
        raise errors.FormatError(f"a {kind} in it is damaged: {exc}") from None
    hint = errors.near(kind, {*Decoder.registered, *HOMES, "ndarray", "Tensor"})
    missing = "This could be because a required module is missing."
    raise errors.FormatError(f"Could not decode serialized type: {kind[:80]}. {missing} {hint}")


def _read_extended_array(bits: Any, dtype: object) -> Array:
    import ml_dtypes
    import numpy as np

    scalar_type = getattr(ml_dtypes, str(dtype), None)
    if not isinstance(bits, np.ndarray) or not isinstance(scalar_type, type) or bits.dtype.kind != "u":
        raise errors.FormatError(f"an array has the unknown dtype {dtype!r:.80}")
    array: Array = bits.view(np.dtype(scalar_type))
    return array


def _read_tensor(text: str) -> Any:
    try:
        import torch
    except ImportError:
        raise errors.FormatError("it holds a torch tensor; install torch to read it") from None
    return torch.load(io.BytesIO(binascii.a2b_base64(text)), weights_only=True)
