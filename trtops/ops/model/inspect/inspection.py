"""The result of an inspection: a record for programs, and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trtops.record import JSONValue, Record, to_jsonable


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection; the record and the text are created on request.

    Attributes:
        kind: ``onnx``, ``network``, ``engine``, ``ort``, ``data``, ``tactics``, ``calibration``, ``run`` or
            ``sparsity``.
    """

    kind: str
    _describe: Callable[[], Record | JSONValue] = field(repr=False)
    _text: Callable[[], str] = field(repr=False)

    def text(self) -> str:
        """The result as text."""
        return self._text()

    def to_json(self) -> JSONValue:
        """The result as JSON values."""
        return to_jsonable(self._describe())
