"""The types that files may name, and how a JSON object becomes what it stands for."""

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

# Who defines the types that files may name, imported when one is met; the rooms above may add theirs.
HOMES: dict[str, str] = {
    **dict.fromkeys(
        ("RunResults", "IterationResult", "LazyArray", "LazyNumpyArray"),
        "trtops.comparator.results",
    ),
    **dict.fromkeys(("AccuracyResult", "AccuracyResults"), "trtops.comparator.accuracy"),
    "FormattedArray": "trtops.common",
}
_HOME_OF_ENDINGS = {ending: "trtops.comparator.metric_results" for ending in ("Result", "Threshold")}
"""The same for types whose names end so: those of the table of metrics, which need not be listed here again."""


def _home_of(kind: str) -> str | None:
    return HOMES.get(kind) or next((home for ending, home in _HOME_OF_ENDINGS.items() if kind.endswith(ending)), None)


class Encoder:
    """How objects of each type are saved."""

    registered: ClassVar[dict[type, tuple[str, Callable[[Any], dict[str, Any]]]]] = {}

    @classmethod
    def register(cls, kind: type[T], alias: str | None = None) -> Callable[[Callable[[T], dict[str, Any]]], Any]:
        """Decorate the function that turns an object of a type into a dict of its parts.

        Args:
            kind: The type; its ``__name__`` marks the object in the file.
            alias: Ignored; accepted so that both decorators of a type can be written alike.
        """

        def decorate(function: Callable[[T], dict[str, Any]]) -> Callable[[T], dict[str, Any]]:
            cls.registered[kind] = (kind.__name__, function)
            return function

        return decorate


class Decoder:
    """How objects of each type are read."""

    registered: ClassVar[dict[str, Callable[[dict[str, Any]], Any]]] = {}

    @classmethod
    def register(cls, kind: type[T], alias: str | None = None) -> Callable[[Callable[[dict[str, Any]], T]], Any]:
        """Decorate the function that makes an object of a type from a dict of its parts.

        Args:
            kind: The type, whose ``__name__`` marks its objects.
            alias: A second name that is read as the type.
        """

        def decorate(function: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
            for name in filter(None, (kind.__name__, alias)):
                cls.registered[name] = function
            return function

        return decorate


class Hook:
    """Turns JSON objects into what they stand for, innermost first."""

    def __init__(self, resolve: Callable[[object], Any], read_array: Callable[[Any], Array]) -> None:
        self.resolve = resolve
        self.read_array = read_array

    def __call__(self, pairs: list[tuple[str, Any]]) -> Any:
        """What an object's members stand for."""
        content = {self.resolve(key): value for key, value in pairs}
        kind = self._named_kind(content)
        if kind == "ndarray":
            return self._decoded(kind, lambda: self.read_array(content["array"]))
        content = {key: self.finish(value) for key, value in content.items()}
        if kind is None:
            return content
        if kind == "ExtendedArray":
            return self._decoded(kind, lambda: _read_extended_array(content["bits"], content["dtype"]))
        if kind == "Tensor":
            return self._decoded(kind, lambda: _read_tensor(content["tensor"]))
        decode = Decoder.registered.get(kind)
        if decode is None and (home := _home_of(kind)) is not None:
            importlib.import_module(home)
            decode = Decoder.registered.get(kind)
        if decode is None:
            hint = errors.near(str(kind), {*Decoder.registered, *HOMES, "ndarray", "Tensor"})
            raise errors.FormatError(f"it holds an object of the unknown type {str(kind)[:80]!r}. {hint}")
        return self._decoded(kind, lambda: decode(content))

    def finish(self, value: Any) -> Any:
        """Put long strings back in their places, also inside lists."""
        if isinstance(value, list):
            return (
                [self.finish(item) for item in value] if any(isinstance(item, (str, list)) for item in value) else value
            )
        return self.resolve(value) if isinstance(value, str) else value

    def _named_kind(self, content: dict[str, Any]) -> str | None:
        for key, value in content.items():
            if isinstance(value, str) and value == LEGACY_VALUE and key.startswith(LEGACY_MARKER):
                del content[key]
                return key[len(LEGACY_MARKER) :]
        kind = self.resolve(content.pop(MARKER, None))
        if kind is not None and not isinstance(kind, str):
            raise errors.FormatError(f"{MARKER} is {kind!r:.80}; expected the name of a type")
        return kind

    @staticmethod
    def _decoded(kind: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except errors.FormatError:
            raise
        except KeyError as exc:
            raise errors.FormatError(f"a {kind} lacks its member {exc}") from None
        except (TypeError, ValueError, AttributeError, IndexError, MemoryError, OverflowError) as exc:
            raise errors.FormatError(f"a {kind} in it is damaged: {exc}") from None


def _read_extended_array(bits: Any, dtype: object) -> Array:
    import ml_dtypes
    import numpy as np

    known = getattr(ml_dtypes, str(dtype), None)
    if not isinstance(bits, np.ndarray) or not isinstance(known, type) or bits.dtype.kind != "u":
        raise errors.FormatError(f"an array has the unknown dtype {dtype!r:.80}")
    array: Array = bits.view(np.dtype(known))
    return array


def _read_tensor(text: object) -> Any:
    if not isinstance(text, str):
        raise errors.FormatError("a Tensor is no text")
    try:
        import torch
    except ImportError:
        raise errors.FormatError("it holds a torch tensor; install torch to read it") from None
    return torch.load(io.BytesIO(binascii.a2b_base64(text)), weights_only=True)
