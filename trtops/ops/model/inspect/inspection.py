"""The result of an inspection: a record for programs, and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtops.record import JSONValue, Record, to_jsonable


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection; the record and the text are created on request."""

    describe: Callable[[], Record | JSONValue]
    text: Callable[[], str]

    def to_json(self) -> JSONValue:
        """The result as JSON values."""
        return to_jsonable(self.describe())
