"""What inspecting something gives: a record for programs, and text for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trtops.record import JSONValue, Record, to_jsonable


@dataclass(frozen=True)
class Inspection:
    """What was found; described and put into words when that is asked for.

    Attributes:
        kind: What was looked at: ``onnx``, ``network``, ``engine``, ``ort``, ``data``, ``tactics``, ``calibration``, ``run``
            or ``sparsity``.
    """

    kind: str
    _describe: Callable[[], Record | JSONValue] = field(repr=False)
    _text: Callable[[], str] = field(repr=False)

    def text(self) -> str:
        """What was found, for people."""
        return self._text()

    def to_json(self) -> JSONValue:
        """What was found, as JSON values."""
        return to_jsonable(self._describe())
