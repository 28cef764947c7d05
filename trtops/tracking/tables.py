"""Tables in a run, shown by the UI as tables and read by ``mlflow.load_table``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from trtops.record import JSONValue
from trtops.tracking import schema
from trtops.tracking.base import Run


def log_table(run: Run, path: str, columns: Sequence[str], rows: Iterable[Sequence[JSONValue]]) -> None:
    """Log a table in the format of ``mlflow.log_table``; a run can have one. NaN and infinities become null."""
    data: list[JSONValue] = [
        [None if isinstance(value, float) and not math.isfinite(value) else value for value in row] for row in rows
    ]
    run.log_json({"columns": list(columns), "data": data}, path)
    run.set_tags({schema.Tag.TABLES: json.dumps([{"path": path, "type": "table"}])})
